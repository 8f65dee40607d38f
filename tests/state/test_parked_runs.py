"""Streams that outlive their client's connection: resumed byte for byte, called upstream once, and per client key."""

import json
import random
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from bench.resume.replies import whole_part, without_signs

from fakes.upstream import Answer, End, Gate
from raw_http import Answered, dial
from scripting import write_reply
from state.parked_rig import DIALECTS, Parking, parking
from waiting import wait_until

clients = pytest.mark.parametrize("client", DIALECTS)
PARK = "x-dragoman-park: 1"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parking]:
    with parking(tmp_path_factory.mktemp("parked"), "[responses]\npark_s = 20\n") as shared:
        yield shared


@clients
def test_a_stream_is_resumed_byte_for_byte_after_any_cut(rig: Parking, client: str) -> None:
    dialect, chance = DIALECTS[client], random.Random(7)
    for _ in range(5):
        calls = rig.calls(dialect.protocol)
        run, begun = rig.leave_after(chance.randrange(1, 2000), rig.request(client, "", PARK))
        count, seen = whole_part(client, begun)
        rest = rig.resume(client, f"{run}:{count - 1}")
        assert (rest.status, rest.get("x-dragoman-run")) == (200, run)
        assert without_signs(seen + rest.body) == dialect.events
        assert rig.calls(dialect.protocol) == calls + 1


@pytest.mark.parametrize(
    ("client", "upstream"),
    [
        ("responses", "chat"),
        ("messages", "chat"),
        ("chat", "messages"),
        ("gemini", "chat"),
        ("gemini-array", "messages"),
        ("chat", "gemini"),
    ],
)
def test_a_translated_stream_is_resumed_as_it_was_begun(rig: Parking, client: str, upstream: str) -> None:
    run, begun = rig.leave_after(900, rig.request(client, upstream, PARK))
    whole = rig.resume(client, f"{run}:-1", upstream=upstream).body
    count, seen = whole_part(client, begun)
    assert whole.startswith(seen)
    rest = rig.resume(client, f"{run}:{count - 1}", upstream=upstream).body
    assert seen + rest == whole
    if client == "responses":
        events = re.findall(rb"data: (\{.*\})", rest)
        numbers = [json.loads(event)["sequence_number"] for event in events]
        assert numbers == list(range(count, count + len(numbers)))
    if client == "gemini-array":
        assert json.loads(whole)[-1]["candidates"][0]["finishReason"] == "STOP"


def test_only_a_browsers_cursor_gets_ids(rig: Parking) -> None:
    run, begun = rig.leave_after(600, rig.request("chat", "", PARK))
    assert b"id: run_" not in begun
    count, _ = whole_part("chat", begun)
    rest = rig.resume("chat", "", f"last-event-id: {run}:{count - 1}")
    assert rest.body.startswith(b"id: %b:%d\ndata: " % (run.encode(), count))


def test_the_upstreams_own_ids_do_not_replace_the_cursor(tmp_path: Path) -> None:
    with parking(tmp_path) as rig:
        own = DIALECTS["chat"].stream.replace(b"data: {", b"id: 7\ndata: {")
        rig.upstreams["chat"].choose = lambda request: Answer(own)
        run = rig.send("chat", "", PARK).get("x-dragoman-run")
        assert rig.resume("chat", f"{run}:-1").body == own
        marked = rig.resume("chat", "", f"last-event-id: {run}:-1").body.split(b"\n\n")
        assert marked[3].startswith(b"id: 7\ndata: {")
        assert marked[3].endswith(b"}\nid: %b:3" % str(run).encode())


def test_a_run_belongs_to_its_path(rig: Parking) -> None:
    run, _ = rig.leave_after(600, rig.request("chat", "", PARK))
    assert rig.resume("messages", f"{run}:0").status == 404
    assert rig.resume("chat", "nonsense").status == 404


@clients
def test_an_unknown_run_is_not_found_in_the_shape_of_the_protocol(rig: Parking, client: str) -> None:
    answered = rig.resume(client, "run_" + "0" * 48 + ":-1")
    error = json.loads(answered.body)["error"]
    assert (answered.status, "not found" in error["message"]) == (404, True)


def test_a_client_that_does_not_come_back_has_its_request_cancelled(tmp_path: Path) -> None:
    with parking(tmp_path, "[responses]\npark_s = 0.5\n") as rig:
        rig.upstreams["chat"].choose = lambda request: Answer(DIALECTS["chat"].stream[:1500], end=End.HANG)
        run, _ = rig.leave_after(300, rig.request("chat", "", PARK))
        wait_until(lambda: bool(rig.upstreams["chat"].closed))
        wait_until(lambda: len(rig.gateway.outcomes) == 1)
        assert rig.resume("chat", f"{run}:0").status == 404
        assert rig.gateway.outcomes[0].outcome == "client_gone"


def test_without_parking_a_client_that_leaves_ends_its_request_and_gets_no_run(rig: Parking) -> None:
    assert rig.send("chat").get("x-dragoman-run") is None


LEFT = 50  # clients that leave after the last byte of their request


def leave_at_once(port: int, request: bytes) -> None:
    with dial(port) as client:
        client.sendall(request)


@pytest.mark.parametrize("header", [PARK, "x-dragoman-park: drain", "idempotency-key: left-{}"])
def test_a_request_runs_though_its_client_leaves_after_the_last_byte(rig: Parking, header: str) -> None:
    calls, large = rig.calls("chat"), "x" * 100_000  # which is read in a thread
    for number in range(LEFT):
        leave_at_once(rig.gateway.port, rig.request("chat", "", header.format(number), user=large))
    wait_until(lambda: rig.calls("chat") == calls + LEFT)
    if "{}" in header:
        assert rig.send("chat", "", header.format(0), user=large).body == DIALECTS["chat"].stream
        assert rig.calls("chat") == calls + LEFT


def test_an_ordinary_request_ends_though_its_client_leaves_after_the_last_byte(tmp_path: Path) -> None:
    with parking(tmp_path) as rig:
        chat = rig.upstreams["chat"]
        chat.choose = lambda request: Answer(DIALECTS["chat"].stream[:1500], end=End.HANG)
        for _ in range(LEFT):
            leave_at_once(rig.gateway.port, rig.request("chat"))
            leave_at_once(rig.gateway.port, rig.request("chat", "", "x-dragoman-park: 0", "idempotency-key: one"))
        wait_until(lambda: len(rig.gateway.outcomes) == 2 * LEFT)
        assert {outcome.outcome for outcome in rig.gateway.outcomes} == {"client_gone"}
        wait_until(lambda: len(chat.closed) >= rig.calls("chat"))


@clients
def test_the_configuration_parks_every_stream(tmp_path: Path, client: str) -> None:
    dialect = DIALECTS[client]
    with parking(tmp_path, '[responses]\non_disconnect = "drain"\npark_s = 30\n') as rig:
        run, begun = rig.leave_after(300, rig.request(client))
        wait_until(lambda: len(rig.gateway.outcomes) == 1)
        count, seen = whole_part(client, begun)
        rest = rig.resume(client, f"{run}:{count - 1}")
        assert without_signs(seen + rest.body) == dialect.events
        assert rig.gateway.outcomes[0].outcome == "ok"
        assert rig.calls(dialect.protocol) == 1


@pytest.mark.parametrize("requested", ["cancel", "drain"])
@clients
def test_a_request_decides_against_the_configuration(tmp_path: Path, client: str, requested: str) -> None:
    header, policy = ("0", "park") if requested == "cancel" else ("drain", "cancel")
    upstream = DIALECTS[client].protocol
    with parking(tmp_path, f'[responses]\non_disconnect = "{policy}"\npark_s = 0\n') as rig:
        request = rig.request(client, "", f"x-dragoman-park: {header}", "idempotency-key: one")
        with rig.hold() if requested == "cancel" else nullcontext():
            rig.leave_after(300, request)
            wait_until(lambda: len(rig.gateway.outcomes) == 1)
        assert rig.gateway.outcomes[0].outcome == ("client_gone" if requested == "cancel" else "ok")
        if requested == "cancel":
            wait_until(lambda: len(rig.upstreams[upstream].closed) == 1)


@clients
def test_a_retry_with_the_same_key_is_the_same_reply_and_is_paid_for_once(rig: Parking, client: str) -> None:
    dialect = DIALECTS[client]
    calls, key = rig.calls(dialect.protocol), f"idempotency-key: once-{client}"
    replies: list[Answered] = []
    threads = [threading.Thread(target=lambda: replies.append(rig.send(client, "", key))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    replies.append(rig.send(client, "", key))
    assert [without_signs(reply.body) for reply in replies] == [dialect.events] * 4
    assert rig.calls(dialect.protocol) == calls + 1
    other = rig.send(client, "", key, metadata={"another": "request"})
    assert other.status == (400 if client == "messages" else 409)
    assert rig.send(client, "", key, key="bob").status == 200
    assert rig.calls(dialect.protocol) == calls + 2


@clients
def test_a_whole_reply_is_the_same_for_a_retry_with_its_key(rig: Parking, client: str) -> None:
    dialect = DIALECTS[client]
    calls, key = rig.calls(dialect.protocol), f"idempotency-key: whole-{client}"
    replies = [rig.send(client, "", key, stream=False) for _ in range(2)]
    assert [reply.body for reply in replies] == [dialect.whole] * 2
    assert replies[0].get("x-dragoman-run") == replies[1].get("x-dragoman-run")
    assert rig.calls(dialect.protocol) == calls + 1


def test_a_failure_is_not_kept_for_a_retry(tmp_path: Path) -> None:
    with parking(tmp_path) as rig:
        choose = rig.upstreams["chat"].choose
        rig.upstreams["chat"].choose = lambda request: Answer(
            b'{"error":{"message":"no"}}', status=400, content_type="application/json"
        )
        assert rig.send("chat", "", "idempotency-key: again").status == 400
        rig.upstreams["chat"].choose = choose
        assert rig.send("chat", "", "idempotency-key: again").status == 200


def test_two_requests_with_one_key_fail_alike(tmp_path: Path) -> None:
    with parking(tmp_path) as rig:
        rig.upstreams["chat"].choose = lambda request: Answer(
            b'{"error":{"message":"no"}}', status=429, content_type="application/json", gate=Gate(rig.opened)
        )
        with ThreadPoolExecutor(2) as threads:
            with rig.hold():
                sent = [threads.submit(rig.send, "chat", "", "idempotency-key: both") for _ in range(2)]
                wait_until(lambda: rig.count_clients() == [2])
            assert [reply.result(timeout=60).status for reply in sent] == [429, 429]
        assert rig.calls("chat") == 1


def test_a_resumed_stream_gets_keep_alives_but_not_with_ids(tmp_path: Path) -> None:
    with parking(tmp_path) as rig:
        signs = b": alive\n\n" * 450  # enough of them that not all arrive with the end
        events = write_reply("chat", "one two three").body.replace(b"data: [DONE]", signs + b"data: [DONE]")
        gate = Gate(rig.opened, events.index(signs))
        rig.upstreams["chat"].choose = lambda request: Answer(events, cut=90, pause_s=0.008, gate=gate)
        for with_ids in (False, True):
            with ThreadPoolExecutor(1) as threads:
                with rig.hold():
                    run, begun = rig.leave_after(600, rig.request("chat", "", PARK))
                    rig.wait_left(2 if with_ids else 1)
                    cursor = f"{run}:{whole_part('chat', begun)[0] - 1}"
                    fields = (f"last-event-id: {cursor}",) if with_ids else ()
                    resumed = threads.submit(rig.resume, "chat", cursor, *fields)
                    wait_until(lambda: 1 in rig.count_clients())
                assert (b": alive\n\n" in resumed.result(timeout=60).body) is not with_ids
