"""Two workers of one gateway: a request that concerns the other one gets there, and its reply comes back unchanged."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dragoman.server import worker_group
from fakes.upstream import Answer, End, FakeUpstream, Gate
from gateway import Running, provider_section, running_workers
from raw_http import Answered, ask, dial, read_answer, request_bytes
from scripting import encode_chat
from scripting.replies import ScriptedReply, Text
from waiting import wait_until

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
WORDS = ScriptedReply((Text(" ".join(f"word-{number}" for number in range(40))),))
STREAM = encode_chat.encode_stream(WORDS)
BODY = json.dumps({"model": "up/m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}).encode()

Workers = tuple[Running, Running]


@pytest.fixture
def fake() -> Iterator[FakeUpstream]:
    with FakeUpstream(keep_alive=False) as upstream:
        upstream.answers = [Answer(STREAM, cut=250, pause_s=0.001)]
        yield upstream


@pytest.fixture
def workers(fake: FakeUpstream, tmp_path: Path) -> Iterator[Workers]:
    with running_workers(make_settings(fake, park_s=600), tmp_path) as both:
        yield both


def make_settings(fake: FakeUpstream, park_s: float) -> str:
    return f"[retry]\nattempts = 1\n[responses]\npark_s = {park_s}\n{provider_section('chat', fake.url)}"


def open_reply(worker: Running, *fields: str, size: int = 600) -> tuple[socket.socket, bytes]:
    """Return the connection of a reply, and the bytes that were read of it."""
    opened = dial(worker.port)
    opened.sendall(request_bytes(CHAT, BODY, *fields))
    received = b""
    while len(received) < size:
        received += opened.recv(64)
    return opened, received


def begin(worker: Running, *fields: str, size: int = 600) -> tuple[str, bytes]:
    """Read so many bytes of a reply, then leave; return its run and what was read."""
    opened, received = open_reply(worker, *fields, size=size)
    opened.close()
    head = received.partition(b"\r\n\r\n")[0]
    [run] = [line.split(b": ")[1].decode() for line in head.split(b"\r\n") if line.startswith(b"x-dragoman-run")]
    return run, received


def resume(worker: Running, run: str, after: int = -1, path: str = CHAT) -> Answered:
    return ask(worker.port, request_bytes(path, b"", f"x-dragoman-resume: {run}:{after}"))


def ask_at_once(workers: Workers, data: bytes) -> list[Answered]:
    """Send a request to each worker twice, all at the same time."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda worker: ask(worker.port, data), workers * 2))


def read_to_end(opened: socket.socket) -> bytes:
    received = b""
    try:
        while piece := opened.recv(65536):
            received += piece
    except ConnectionResetError:
        return received
    return received


def test_a_stream_is_resumed_on_the_worker_that_does_not_have_it(workers: Workers, fake: FakeUpstream) -> None:
    for worker, other in (workers, workers[::-1]):
        run, _ = begin(worker, "x-dragoman-park: 1")
        assert run.startswith(f"run_{workers.index(worker):02x}")
        assert len(run) == len("run_") + 48
        here, there = resume(worker, run), resume(other, run)
        assert (here.status, here.body) == (there.status, there.body) == (200, STREAM)
        ids = {"x-request-id", "x-dragoman-request-id", "content-length", "transfer-encoding"}
        assert [field for field in here.headers if field[0] not in ids] == [
            field for field in there.headers if field[0] not in ids
        ]
        assert resume(other, run, 5).body == resume(worker, run, 5).body
    assert len(fake.calls) == 2


def test_an_idempotency_key_on_both_workers_is_one_upstream_call(workers: Workers, fake: FakeUpstream) -> None:
    replies: list[Answered] = []
    for key in ("a", "b", "c", "d"):  # some belong to the first worker, some to the second
        replies += ask_at_once(workers, request_bytes(CHAT, BODY, f"idempotency-key: {key}"))
    assert [reply.body for reply in replies] == [STREAM] * 16
    assert len({reply.get("x-dragoman-run") for reply in replies}) == len(fake.calls) == 4
    assert {str(reply.get("x-dragoman-run"))[:6] for reply in replies} == {"run_00", "run_01"}
    ids = [reply.get("x-request-id") for reply in replies]
    assert len(set(ids)) == 16
    wait_until(lambda: sum(len(worker.outcomes) for worker in workers) >= 16)
    observed = [outcome.request_id for worker in workers for outcome in worker.outcomes]
    assert sorted(observed) == sorted(map(str, ids))


def test_a_retry_without_a_key_is_joined_on_the_worker_that_has_its_run(workers: Workers, fake: FakeUpstream) -> None:
    first, other = workers
    has_left = threading.Event()
    fake.answers = [Answer(STREAM, cut=250, gate=Gate(has_left, len(STREAM) - 500))]
    retry = request_bytes(CHAT, BODY, "x-dragoman-park: 1", "x-stainless-retry-count: 1")
    run, _ = begin(first, "x-dragoman-park: 1")
    wait_until(lambda: first.app.server.connections == 0)  # it knows that the client has left
    has_left.set()
    joined = ask(other.port, retry)
    assert (joined.get("x-dragoman-run"), joined.body) == (run, STREAM)
    assert len(fake.calls) == 1
    again = ask(other.port, retry)  # a run is taken over once
    assert str(again.get("x-dragoman-run")).startswith("run_01")
    assert (again.body, len(fake.calls)) == (STREAM, 2)


def test_the_other_workers_answer_to_a_bad_request_comes_in_the_protocol_of_the_client(workers: Workers) -> None:
    first, other = workers
    run, _ = begin(first, "x-dragoman-park: 1")
    assert resume(other, run, path=MESSAGES).status == 404
    assert b"not_found_error" in resume(other, run, path=MESSAGES).body
    assert resume(other, "run_01" + "0" * 46).status == resume(other, "run_00" + "0" * 46).status == 404
    assert resume(other, "run_ff" + "0" * 46).status == 404
    refused = ask(other.port, request_bytes(CHAT, b"", f"x-dragoman-resume: {run}:-1", key="dgm_wrong"))
    assert refused.status == 401


def test_a_whole_reply_and_its_request_id_pass_through_the_other_worker(workers: Workers, fake: FakeUpstream) -> None:
    fake.answers = [Answer(encode_chat.encode_whole(WORDS), content_type="application/json")]
    body = json.dumps({"model": "up/m", "messages": [{"role": "user", "content": "Hi"}]}).encode()
    for key in ("a", "b", "c", "d"):
        data = request_bytes(CHAT, body, f"idempotency-key: {key}", f"x-request-id: own-{key}")
        replies = [ask(worker.port, data) for worker in workers]
        assert replies[0].body == replies[1].body == fake.answers[0].body
        assert [reply.get("x-request-id") for reply in replies] == [f"own-{key}"] * 2
        assert len({reply.get("x-dragoman-request-id") for reply in replies}) == 2
        assert all(reply.get("content-length") for reply in replies)
    assert len(fake.calls) == 4


def test_a_whole_reply_for_which_the_first_worker_has_no_memory_is_refused(
    workers: Workers, fake: FakeUpstream
) -> None:
    whole = encode_chat.encode_whole(ScriptedReply((Text("x" * 1_000_000),)))
    fake.answers = [Answer(whole, content_type="application/json")]
    body = json.dumps({"model": "up/m", "messages": [{"role": "user", "content": "Hi"}]}).encode()
    workers[0].app._budget.limit = 500_000
    for key in ("a", "b", "c", "d"):
        data = request_bytes(CHAT, body, f"idempotency-key: {key}")
        assert ask(workers[1].port, data).status in (200, 503)  # the first one may have to make it
        refused = ask(workers[0].port, data)
        assert (refused.status, b"server.max_buffered_mb" in refused.body) == (503, True)
    wait_until(lambda: workers[0].app._budget.held == 0)
    workers[0].app._budget.limit = 10_000_000
    assert ask(workers[0].port, data).status == 200


def test_a_client_that_leaves_through_the_other_worker_is_missed_there(workers: Workers, fake: FakeUpstream) -> None:
    fake.answers = [Answer(STREAM[:1500], end=End.HANG)]
    staying = []
    for key in ("a", "b", "c", "d"):
        staying.append(open_reply(workers[0], f"idempotency-key: {key}", size=300)[0])
        begin(workers[1], f"idempotency-key: {key}", size=300)
    assert not fake.closed
    for worker in workers:
        worker.adopt(make_settings(fake, park_s=0.5))
    for one in staying:
        one.close()
    wait_until(lambda: len(fake.closed) == 4)  # half a second later no client has come back


def test_a_client_may_leave_through_the_other_worker_after_the_last_byte(workers: Workers, fake: FakeUpstream) -> None:
    content = [{"role": "user", "content": "x" * 1_000_000}]  # more than the socket between the workers holds
    body = json.dumps({"model": "up/m", "stream": True, "messages": content}).encode()
    for number in range(20):
        with dial(workers[number % 2].port) as client:
            client.sendall(request_bytes(CHAT, body, f"idempotency-key: left-{number}"))
    wait_until(lambda: len(fake.calls) == 20)
    assert {len(call.body) for call in fake.calls} == {len(body) - len("up/")}


def test_a_client_that_reads_slowly_through_the_other_worker_slows_down_the_upstream(
    workers: Workers, fake: FakeUpstream
) -> None:
    event = STREAM.split(b"\n\n")[1] + b"\n\n"
    fake.answers = [Answer(event * 100, floods=True, opening=STREAM.split(b"\n\n")[0] + b"\n\n")]
    opened = []
    for key in ("a", "b", "c", "d"):
        opened.append(dial(workers[0].port))
        opened[-1].sendall(request_bytes(CHAT, BODY, f"idempotency-key: {key}"))
        opened[-1].recv(64)
    sent = -1
    while sent != fake.sent:
        sent = fake.sent
        time.sleep(0.5)
    assert 0 < sent < 4 * 8 * 1024 * 1024
    for one in opened:
        one.close()


def test_a_worker_that_ends_in_the_middle_breaks_the_reply(
    workers: Workers, fake: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_group, "RESTART_S", 0.3)
    first, other = workers
    fake.answers = [Answer(STREAM[:1500], end=End.HANG)]
    run, _ = begin(other, "x-dragoman-park: 1", size=300)
    with dial(first.port) as opened:
        opened.sendall(request_bytes(CHAT, b"", f"x-dragoman-resume: {run}:-1"))
        opened.recv(64)
        assert other.app.group is not None
        asyncio.run_coroutine_threadsafe(other.app.group.server.close(), other.loop).result(60)
        assert not read_to_end(opened).endswith(b"0\r\n\r\n")
    unreachable = resume(first, run)
    assert (unreachable.status, unreachable.get("retry-after")) == (503, "1")
    assert json.loads(unreachable.body)["error"]["message"].startswith("Worker 1 of the gateway")


def test_a_worker_answers_only_those_who_know_the_secret(workers: Workers) -> None:
    group = workers[0].app.group
    assert group is not None
    path = group._member.socket_path(1)
    for fields in ((), ("x-dragoman-worker-secret: guess",), ("x-dragoman-worker-key: environment",)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as opened:
            opened.settimeout(60)
            opened.connect(path)
            opened.sendall(request_bytes(CHAT, BODY, *fields))
            assert read_answer(opened).status == 403
    spoofed = request_bytes(CHAT, BODY, "x-dragoman-worker-secret: secret-of-this-test", key=None)
    assert ask(workers[0].port, spoofed).status == 401
