"""Streams that outlive their client's connection: resumed byte for byte, called upstream once, and per client key."""

import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e import speak_chat, speak_messages, speak_responses
from e2e.meaning import Meant, Say
from e2e.raw_http import Answered, ask, request_bytes
from fakes.upstream import Answer, End, FakeUpstream
from gateway import Running, provider_section, running

WORDS = Meant((Say(" ".join(f"word-{number}" for number in range(40))),))
BODIES: dict[str, tuple[str, bytes, dict[str, object]]] = {
    "chat": (
        "/v1/chat/completions",
        speak_chat.stream(WORDS),
        {"messages": [{"role": "user", "content": "Hi"}]},
    ),
    "messages": (
        "/v1/messages",
        speak_messages.stream(WORDS),
        {"max_tokens": 99, "messages": [{"role": "user", "content": "Hi"}]},
    ),
    "responses": ("/v1/responses", speak_responses.stream(WORDS), {"input": "Hi", "store": False}),
}
clients = pytest.mark.parametrize("client", BODIES)


@contextmanager
def rigged(directory: Path, settings: str = "") -> Iterator[tuple[Running, dict[str, FakeUpstream]]]:
    fakes = {name: FakeUpstream(keep_alive=False) for name in BODIES}
    sections = []
    try:
        for name, fake in fakes.items():
            fake.__enter__()
            fake.answers = [Answer(BODIES[name][1], cut=60, pause_s=0.005)]
            sections.append(provider_section(name, fake.url, name))
        toml = "\n".join(["[retry]\nattempts = 1\n", settings, *sections])
        with running(toml, directory, stored=("alice", "bob")) as gateway:
            yield gateway, fakes
    finally:
        for fake in fakes.values():
            fake.__exit__(None, None, None)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, dict[str, FakeUpstream]]]:
    with rigged(tmp_path_factory.mktemp("parked"), "[responses]\npark_s = 20\n") as shared:
        yield shared


def body_for(client: str, upstream: str, **fields: object) -> bytes:
    return json.dumps({"model": f"{upstream}/m", "stream": True, **BODIES[client][2], **fields}).encode()


def send(gateway: Running, client: str, body: bytes, *fields: str, key: str = "alice") -> Answered:
    return ask(gateway.port, request_bytes(BODIES[client][0], body, *fields, key=gateway.keys[key]))


def leave_after(gateway: Running, client: str, body: bytes, size: int, *fields: str) -> tuple[str, bytes]:
    """Read so many bytes of a reply, then leave; return the run and the bytes of the body."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=60) as opened:
        opened.sendall(request_bytes(BODIES[client][0], body, *fields, key=gateway.keys["alice"]))
        received = b""
        while len(received) < size or b"\r\n\r\n" not in received:
            received += opened.recv(64)
    head, _, rest = received.partition(b"\r\n\r\n")
    [run] = [line.split(b": ")[1].decode() for line in head.split(b"\r\n") if line.startswith(b"x-dragoman-run")]
    return run, unchunk(rest)


def unchunk(data: bytes) -> bytes:
    body = b""
    while b"\r\n" in data:
        size, _, data = data.partition(b"\r\n")
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return body


def split(body: bytes) -> list[bytes]:
    """Return the whole events of a body, without signs of life and [DONE]."""
    blocks = [block + b"\n\n" for block in body.split(b"\n\n")[:-1]]
    return [block for block in blocks if not block.startswith((b":", b"event: ping", b"data: [DONE]"))]


@clients
def test_a_stream_is_resumed_byte_for_byte_after_any_cut(
    rig: tuple[Running, dict[str, FakeUpstream]], client: str
) -> None:
    gateway, fakes = rig
    whole = split(BODIES[client][1])
    chance = random.Random(7)
    for _ in range(8):
        calls = len(fakes[client].calls)
        run, begun = leave_after(
            gateway, client, body_for(client, client), chance.randrange(1, 1500), "x-dragoman-park: 1"
        )
        seen = split(begun)
        assert seen == whole[: len(seen)]
        rest = send(gateway, client, b"", f"x-dragoman-resume: {run}:{len(seen) - 1}")
        assert (rest.status, rest.get("x-dragoman-run")) == (200, run)
        assert split(rest.body) == whole[len(seen) :]
        assert len(fakes[client].calls) == calls + 1


@pytest.mark.parametrize(("client", "upstream"), [("responses", "chat"), ("messages", "chat"), ("chat", "messages")])
def test_a_translated_stream_is_resumed_as_it_was_begun(
    rig: tuple[Running, dict[str, FakeUpstream]], client: str, upstream: str
) -> None:
    gateway, _ = rig
    run, begun = leave_after(gateway, client, body_for(client, upstream), 900, "x-dragoman-park: 1")
    all_of_it = split(send(gateway, client, b"", f"x-dragoman-resume: {run}:-1").body)
    seen = split(begun)
    assert seen == all_of_it[: len(seen)]
    rest = split(send(gateway, client, b"", f"x-dragoman-resume: {run}:{len(seen) - 1}").body)
    assert seen + rest == all_of_it
    if client == "responses":
        numbers = [json.loads(block.split(b"data: ")[1])["sequence_number"] for block in rest]
        assert numbers == list(range(len(seen), len(all_of_it)))


def test_only_a_browsers_cursor_gets_ids(rig: tuple[Running, dict[str, FakeUpstream]]) -> None:
    gateway, _ = rig
    run, begun = leave_after(gateway, "chat", body_for("chat", "chat"), 600, "x-dragoman-park: 1")
    assert b"id: run_" not in begun
    after = len(split(begun)) - 1
    rest = send(gateway, "chat", b"", f"last-event-id: {run}:{after}")
    assert split(rest.body)[0].startswith(b"id: %b:%d\ndata: " % (run.encode(), after + 1))


def test_a_run_belongs_to_its_key_and_its_path(rig: tuple[Running, dict[str, FakeUpstream]]) -> None:
    gateway, _ = rig
    run, _ = leave_after(gateway, "chat", body_for("chat", "chat"), 600, "x-dragoman-park: 1")
    unknown = "run_" + "0" * 48
    foreign = send(gateway, "chat", b"", f"x-dragoman-resume: {run}:0", key="bob")
    missing = send(gateway, "chat", b"", f"x-dragoman-resume: {unknown}:0", key="bob")
    assert (foreign.status, foreign.body.replace(run.encode(), unknown.encode())) == (404, missing.body)
    assert send(gateway, "messages", b"", f"x-dragoman-resume: {run}:0").status == 404
    assert send(gateway, "chat", b"", "x-dragoman-resume: nonsense").status == 404


def test_a_client_that_does_not_come_back_has_its_request_cancelled(tmp_path: Path) -> None:
    with rigged(tmp_path, "[responses]\npark_s = 0.5\n") as (gateway, fakes):
        endless = Answer(BODIES["chat"][1][:1500], end=End.HANG)
        fakes["chat"].answers = [endless]
        run, _ = leave_after(gateway, "chat", body_for("chat", "chat"), 300, "x-dragoman-park: 1")
        wait_until(lambda: bool(fakes["chat"].closed))
        assert send(gateway, "chat", b"", f"x-dragoman-resume: {run}:0").status == 404


def test_without_parking_a_client_that_leaves_ends_its_request_and_gets_no_run(
    rig: tuple[Running, dict[str, FakeUpstream]],
) -> None:
    gateway, _ = rig
    assert send(gateway, "chat", body_for("chat", "chat")).get("x-dragoman-run") is None


def test_the_configuration_parks_every_stream(tmp_path: Path) -> None:
    with rigged(tmp_path, '[responses]\non_disconnect = "drain"\npark_s = 30\n') as (gateway, fakes):
        run, begun = leave_after(gateway, "chat", body_for("chat", "chat"), 300)
        wait_until(lambda: len(gateway.outcomes) == 1)
        rest = send(gateway, "chat", b"", f"x-dragoman-resume: {run}:{len(split(begun)) - 1}")
        assert split(begun) + split(rest.body) == split(BODIES["chat"][1])
        assert gateway.outcomes[0].outcome == "ok"
        assert len(fakes["chat"].calls) == 1


@clients
def test_a_retry_with_the_same_key_is_the_same_reply_and_is_paid_for_once(
    rig: tuple[Running, dict[str, FakeUpstream]], client: str
) -> None:
    gateway, fakes = rig
    calls = len(fakes[client].calls)
    body, key = body_for(client, client), f"idempotency-key: once-{client}"
    replies: list[Answered] = []
    threads = [threading.Thread(target=lambda: replies.append(send(gateway, client, body, key))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    replies.append(send(gateway, client, body, key))
    assert [split(reply.body) for reply in replies] == [split(BODIES[client][1])] * 4
    assert len(fakes[client].calls) == calls + 1
    other = send(gateway, client, body_for(client, client, temperature=0.5), key)
    assert other.status == (400 if client == "messages" else 409)
    assert send(gateway, client, body, key, key="bob").status == 200
    assert len(fakes[client].calls) == calls + 2


def test_a_failure_is_not_kept_for_a_retry(rig: tuple[Running, dict[str, FakeUpstream]]) -> None:
    gateway, fakes = rig
    good = fakes["chat"].answers
    fakes["chat"].answers = [Answer(b'{"error":{"message":"no"}}', status=400, content_type="application/json")]
    assert send(gateway, "chat", body_for("chat", "chat"), "idempotency-key: again").status == 400
    fakes["chat"].answers = good
    assert send(gateway, "chat", body_for("chat", "chat"), "idempotency-key: again").status == 200


def wait_until(condition: Callable[[], bool], patience_s: float = 30.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
