"""Runs over replicas that share a Valkey: resumed byte for byte, joined and paid for once, on whichever replica."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bench.resume.replies import whole_part, without_signs

from dragoman.state.parked_run import ParkedRun
from dragoman.store.shared_runs import RunBounds
from fakes.upstream import Answer, Gate
from postgres import Postgres
from raw_http import dial, read_answer, request_bytes
from release import collector_off, expect_release
from state.parked_rig import DIALECTS
from state.replica_rig import PARK, SETTINGS, Replicas, replicas
from valkey_server import ValkeyServer
from waiting import wait_until

clients = pytest.mark.parametrize("client", DIALECTS)
SCOPE = "x-dragoman-run-scope"


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """A Valkey that no other test kills."""
    started = ValkeyServer()
    yield started
    started.remove()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, server: ValkeyServer) -> Iterator[Replicas]:
    with replicas(tmp_path_factory.mktemp("replicas"), server, 3) as started:
        yield started


@pytest.fixture
def rig(three: Replicas) -> Iterator[Replicas]:
    yield three
    three.opened.set()  # whatever a test that has failed left


@clients
def test_a_stream_is_resumed_elsewhere_byte_for_byte_while_it_is_made(rig: Replicas, client: str) -> None:
    dialect = DIALECTS[client]
    calls = rig.calls(dialect.protocol)
    rig.opened.clear()
    run, begun = rig.leave_after(0, 900, rig.request(client, PARK))
    count, seen = whole_part(client, begun)
    with ThreadPoolExecutor(2) as pool:
        rest = [pool.submit(rig.resume, place, client, f"{run}:{count - 1}") for place in (1, 2)]
        wait_until(lambda: rig.count_readings(1) == rig.count_readings(2) == 1)
        rig.opened.set()
        for reply in rest:
            answered = reply.result(60)
            assert (answered.status, answered.get("x-dragoman-run"), answered.get(SCOPE)) == (200, run, None)
            assert without_signs(seen + answered.body) == dialect.events
    here, there = (rig.resume(place, client, f"{run}:{count}") for place in (0, 1))
    assert here.body == there.body
    assert rig.calls(dialect.protocol) == calls + 1


@pytest.mark.parametrize(("client", "upstream"), [("responses", "chat"), ("gemini-array", "messages")])
def test_a_translated_stream_is_the_same_on_every_replica(rig: Replicas, client: str, upstream: str) -> None:
    run, begun = rig.leave_after(0, 1200, rig.request(client, PARK, upstream=upstream))
    whole = [rig.resume(place, client, f"{run}:-1", upstream=upstream).body for place in range(3)]
    count, seen = whole_part(client, begun)
    assert whole[0].startswith(seen)
    assert whole == [whole[0]] * 3
    assert seen + rig.resume(2, client, f"{run}:{count - 1}", upstream=upstream).body == whole[0]


def test_a_browsers_cursor_gets_ids_elsewhere(rig: Replicas) -> None:
    run, begun = rig.leave_after(0, 600, rig.request("chat", PARK))
    count, _ = whole_part("chat", begun)
    here, there = (rig.resume(place, "chat", "", f"last-event-id: {run}:{count - 1}") for place in (0, 1))
    assert there.body.startswith(b"id: %b:%d\ndata: " % (run.encode(), count))
    assert here.body == there.body


@pytest.mark.parametrize("stream", [True, False])
@clients
def test_one_key_on_all_replicas_at_once_is_one_upstream_call(rig: Replicas, client: str, stream: bool) -> None:
    dialect = DIALECTS[client]
    calls = rig.calls(dialect.protocol)
    request = rig.request(client, f"idempotency-key: all-{client}-{stream}", stream=stream)
    with ThreadPoolExecutor(9) as pool:
        replies = list(pool.map(lambda number: rig.send(number % 3, request), range(9)))
    replies += [rig.send(place, request) for place in range(3)]
    assert [without_signs(reply.body) for reply in replies] == [dialect.events if stream else dialect.whole] * 12
    assert len({reply.get("x-dragoman-run") for reply in replies}) == 1
    assert len({reply.get("x-dragoman-request-id") for reply in replies}) == 12
    assert rig.calls(dialect.protocol) == calls + 1


def test_fifty_requests_at_once_with_one_key_are_one_upstream_call(rig: Replicas) -> None:
    calls, request = rig.calls("chat"), rig.request("chat", "idempotency-key: fifty")
    with ThreadPoolExecutor(50) as pool:
        replies = list(pool.map(lambda number: rig.send(number % 3, request), range(50)))
    assert {reply.body for reply in replies} == {DIALECTS["chat"].stream}
    assert rig.calls("chat") == calls + 1


@pytest.mark.parametrize(("client", "status"), [("chat", 409), ("messages", 400)])
def test_a_key_that_another_replica_has_for_another_request_is_refused(rig: Replicas, client: str, status: int) -> None:
    assert rig.send(0, rig.request(client, "idempotency-key: twice")).status == 200
    other = rig.request(client, "idempotency-key: twice", "x-dragoman-explain: 1")
    refused = [rig.send(place, other) for place in range(3)]
    assert [answer.status for answer in refused] == [status] * 3
    assert all(b"used with another request" in answer.body for answer in refused)
    assert rig.send(1, rig.request(client, "idempotency-key: twice", key="bob")).status == 200


def test_another_keys_run_is_as_unknown_elsewhere_as_one_that_does_not_exist(rig: Replicas) -> None:
    run, _ = rig.leave_after(0, 600, rig.request("chat", PARK))
    unknown = "run_" + "0" * 48
    answers = [
        rig.resume(1, "chat", f"{run}:-1", key="bob"),
        rig.resume(1, "chat", f"{unknown}:-1", key="bob"),
        rig.resume(1, "messages", f"{run}:-1"),
    ]
    assert [answer.status for answer in answers] == [404] * 3
    assert answers[0].body.replace(run.encode(), b"") == answers[1].body.replace(unknown.encode(), b"")
    assert rig.resume(1, "chat", f"{run}:-1").status == 200


def test_a_retry_without_a_key_is_joined_elsewhere_once(rig: Replicas, server: ValkeyServer) -> None:
    calls, retry = rig.calls("chat"), rig.request("chat", PARK, "x-stainless-retry-count: 1", key="bob")
    rig.opened.clear()
    run, _ = rig.leave_after(0, 600, rig.request("chat", PARK, key="bob"))
    lost = "{dragoman:1}:runs:lost:" + rig.find_owner(0, run) + "*"
    wait_until(lambda: server.execute("KEYS", lost) == b"*1")
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(rig.send, 1, retry)
        wait_until(lambda: rig.count_readings(1) == 1)
        rig.opened.set()
        joined = joining.result(60)
    assert (joined.get("x-dragoman-run"), joined.body) == (run, DIALECTS["chat"].stream)
    assert rig.calls("chat") == calls + 1
    again = [rig.send(place, retry) for place in (0, 2)]
    assert run not in [answer.get("x-dragoman-run") for answer in again]
    assert rig.calls("chat") == calls + 3


def test_requests_that_wait_elsewhere_fail_alike_and_the_key_is_free_again(rig: Replicas) -> None:
    chat = rig.upstreams["chat"]
    opened, choose = threading.Event(), chat.choose
    answer = Answer(b'{"error":{"message":"no"}}', status=429, content_type="application/json", gate=Gate(opened))
    chat.choose = lambda request: answer
    request, calls = rig.request("chat", "idempotency-key: fails"), rig.calls("chat")
    with ThreadPoolExecutor(3) as pool:
        sent = [pool.submit(rig.send, place, request) for place in range(3)]
        wait_until(lambda: sum(map(rig.count_readings, range(3))) == 2)
        opened.set()
        replies = [reply.result(60) for reply in sent]
    chat.choose = choose
    assert [(reply.status, b'"message":"no"' in reply.body) for reply in replies] == [(429, True)] * 3
    assert rig.calls("chat") == calls + 1
    assert rig.send(1, request).status == 200


def test_a_run_goes_on_for_a_client_of_another_replica(rig: Replicas) -> None:
    request = rig.request("chat", "idempotency-key: leaves", "x-dragoman-park: 0")
    rig.opened.clear()
    with dial(rig.gateways[0].port) as first:
        first.sendall(request)
        assert first.recv(10)
        with ThreadPoolExecutor(1) as pool:
            joined = pool.submit(rig.send, 1, request)
            wait_until(lambda: rig.count_readings(1) == 1 and rig.count_clients(0) == 1)
            first.close()
            wait_until(lambda: rig.count_clients(0) == 0)
            rig.opened.set()
            assert joined.result(60).body == DIALECTS["chat"].stream


def test_a_run_without_any_client_is_cancelled(rig: Replicas) -> None:
    request = rig.request("chat", "idempotency-key: no", "x-dragoman-park: 0")
    rig.opened.clear()
    run, _ = rig.leave_after(0, 600, request)
    wait_until(lambda: [one.outcome for one in rig.gateways[0].outcomes if one.run == run] == ["client_gone"])
    rig.opened.set()
    calls = rig.calls("chat")
    assert rig.send(1, request).body == DIALECTS["chat"].stream  # the key is free
    assert rig.calls("chat") == calls + 1


def test_a_replica_that_stops_leaves_its_ended_replies_to_the_others(tmp_path: Path, valkey: ValkeyServer) -> None:
    with replicas(tmp_path, valkey) as rig:
        request = rig.request("chat", "idempotency-key: kept")
        run = rig.send(0, request).get("x-dragoman-run")
        rig.gateways[0].stop_soon().result(60)
        joined = rig.send(1, request)
        assert (joined.get("x-dragoman-run"), joined.body) == (run, DIALECTS["chat"].stream)
        assert rig.calls("chat") == 1


def test_an_ended_run_is_kept_as_long_elsewhere_as_here(tmp_path: Path, valkey: ValkeyServer) -> None:
    with replicas(tmp_path, valkey, settings=SETTINGS.replace("20", "0.5")) as rig:
        run = rig.send(0, rig.request("chat", PARK)).get("x-dragoman-run")
        wait_until(lambda: rig.resume(1, "chat", f"{run}:-1").status == 404)
        assert rig.resume(0, "chat", f"{run}:-1").status == 404
        assert valkey.execute("GET", "{dragoman:1}:runs:total") == b"$1"  # one digit: zero


def test_a_run_without_room_is_of_its_replica_and_its_head_says_so(tmp_path: Path, valkey: ValkeyServer) -> None:
    with replicas(tmp_path, valkey) as rig:
        rig.set_bounds(0, RunBounds(4000, 1000, 1000))
        reply = rig.send(0, rig.request("chat", "idempotency-key: full"))
        run = reply.get("x-dragoman-run")
        assert reply.get(SCOPE) == "replica"
        here, there = (rig.resume(place, "chat", f"{run}:-1") for place in (0, 1))
        assert (here.status, here.get(SCOPE), there.status) == (200, "replica", 404)
        rig.send(1, rig.request("chat", "idempotency-key: full"))
        assert rig.calls("chat") == 2


@pytest.mark.parametrize("where", ["in the shared state", "in its replica"])
def test_a_run_that_grows_too_large_ends_elsewhere_with_an_error_that_does_not_call_a_retry_safe(
    tmp_path: Path, valkey: ValkeyServer, where: str
) -> None:
    with replicas(tmp_path, valkey) as rig:
        rig.opened.clear()
        with dial(rig.gateways[0].port) as client, ThreadPoolExecutor(1) as pool:
            client.sendall(rig.request("chat", "idempotency-key: large"))
            wait_until(lambda: rig.count_clients(0) == 1)
            joined = pool.submit(rig.send, 1, rig.request("chat", "idempotency-key: large"))
            wait_until(lambda: rig.count_readings(1) == 1)
            if where == "in its replica":
                rig.limit_memory(0, 3000)
            else:
                rig.set_bounds(0, RunBounds(3000, 100_000, 100_000))
            rig.opened.set()
            reply, there = read_answer(client), joined.result(30)
        run = reply.get("x-dragoman-run")
        assert (reply.body, reply.get(SCOPE)) == (DIALECTS["chat"].stream, None)
        assert (there.get("x-dragoman-run"), b"not safe to send the request again" in there.body) == (run, True)
        assert rig.resume(1, "chat", f"{run}:-1").status == 404
        here = rig.resume(0, "chat", f"{run}:-1")
        assert (here.status, here.get(SCOPE)) == ((404, None) if where == "in its replica" else (200, "replica"))


@pytest.mark.rest
def test_without_valkey_runs_are_of_their_replica_until_it_is_back(tmp_path: Path, valkey: ValkeyServer) -> None:
    with replicas(tmp_path, valkey) as rig:
        valkey.kill()
        wait_until(lambda: rig.is_out(0) and rig.is_out(1))
        reply = rig.send(0, rig.request("chat", "idempotency-key: out"))
        run = reply.get("x-dragoman-run")
        assert (reply.body, reply.get(SCOPE)) == (DIALECTS["chat"].stream, "replica")
        assert rig.send(0, rig.request("chat", "idempotency-key: out")).get("x-dragoman-run") == run
        unknown = rig.resume(1, "chat", f"{run}:-1")
        assert (unknown.status, b"shared state does not answer" in unknown.body) == (503, True)
        valkey.start()
        wait_until(lambda: rig.resume(1, "chat", f"{run}:-1").status == 200)
        joined = rig.send(1, rig.request("chat", "idempotency-key: out"))
        assert (joined.body, joined.get(SCOPE), rig.calls("chat")) == (DIALECTS["chat"].stream, None, 1)


@pytest.mark.rest
@pytest.mark.parametrize("fault", ["flushed", "restarted"])
def test_a_client_elsewhere_gets_every_byte_though_valkey_loses_all(
    tmp_path: Path, valkey: ValkeyServer, fault: str
) -> None:
    with replicas(tmp_path, valkey) as rig:
        rig.opened.clear()
        key = "idempotency-key: lost"
        run, begun = rig.leave_after(0, 900, rig.request("chat", key))
        count, seen = whole_part("chat", begun)
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(rig.resume, 1, "chat", f"{run}:{count - 1}")
            wait_until(lambda: rig.count_readings(1) == 1)
            if fault == "restarted":
                valkey.kill()
                valkey.start()
            else:
                valkey.flush()
            rig.opened.set()
            assert seen + rest.result(60).body == DIALECTS["chat"].stream
        wait_until(lambda: rig.resume(1, "chat", f"{run}:-1").status == 200)
        assert rig.send(1, rig.request("chat", key)).body == DIALECTS["chat"].stream
        assert rig.calls("chat") == 1


def test_on_postgresql_alone_an_unknown_run_may_be_on_another_replica(tmp_path: Path, postgres: Postgres) -> None:
    with replicas(tmp_path, None, store_url=postgres.empty_database()) as rig:
        run = rig.send(0, rig.request("chat", PARK)).get("x-dragoman-run")
        assert rig.resume(0, "chat", f"{run}:-1").status == 200
        elsewhere = rig.resume(1, "chat", f"{run}:-1")
        assert (elsewhere.status, b"store.shared" in elsewhere.body) == (404, True)


@pytest.mark.parametrize("ending", ["answered", "gone"])
def test_a_run_that_was_read_elsewhere_is_released(rig: Replicas, ending: str) -> None:
    """The replicas keep what a client may still ask for, but nothing of its requests."""
    with collector_off(), expect_release(ending, kept=(ParkedRun,)):
        rig.opened.clear()
        run, begun = rig.leave_after(0, 900, rig.request("chat", PARK))
        count, _ = whole_part("chat", begun)
        with dial(rig.gateways[1].port) as client:
            path = DIALECTS["chat"].path
            client.sendall(request_bytes(path, b"", f"x-dragoman-resume: {run}:{count - 1}", key=rig.keys["alice"]))
            wait_until(lambda: rig.count_readings(1) == 1)
            if ending == "answered":
                rig.opened.set()
                read_answer(client)
        rig.opened.set()
        wait_until(lambda: rig.count_readings(1) == 0)
