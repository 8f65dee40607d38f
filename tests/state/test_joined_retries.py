"""Retries without an idempotency key: they get the reply of a request whose client left, and only that."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.resume.replies import without_signs

from dragoman.operate.prices import Pricing
from dragoman.operate.usage.usage_writer import make_row
from raw_http import Answered, dial, get
from state.parked_rig import DIALECTS, Parking, parking
from waiting import wait_until

clients = pytest.mark.parametrize("client", DIALECTS)
FIRST, RETRY = "x-stainless-retry-count: 0", "x-stainless-retry-count: 1"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Parking]:
    with parking(tmp_path, '[responses]\non_disconnect = "park"\npark_s = 600\n') as opened:
        yield opened


def leave_before_reply(rig: Parking, request: bytes) -> None:
    """Send a request and leave once it has reached the gateway."""
    calls = sum(map(rig.calls, rig.upstreams))
    with rig.hold():
        with dial(rig.gateway.port) as opened:
            opened.sendall(request)
            wait_until(lambda: sum(map(rig.calls, rig.upstreams)) > calls)
        rig.wait_left()


@clients
def test_a_retry_gets_the_stream_from_its_first_event(rig: Parking, client: str) -> None:
    dialect = DIALECTS[client]
    run, _ = rig.leave_after(500, rig.request(client, "", FIRST))
    rig.wait_left()
    retried = rig.send(client, "", RETRY)
    assert (retried.status, retried.get("x-dragoman-run")) == (200, run)
    assert without_signs(retried.body) == dialect.events
    assert rig.calls(dialect.protocol) == 1
    wait_until(lambda: len(rig.gateway.outcomes) == 2)
    paid, joined = sorted(rig.gateway.outcomes, key=lambda outcome: outcome.started_at)
    assert (paid.run, joined.run, paid.attempts, joined.attempts) == (run, run, 1, 0)
    assert paid.usage is not None
    assert joined.usage is not None
    assert (paid.usage.output > 0, joined.usage.input, joined.usage.output) == (True, 0, 0)
    assert joined.requested_model == paid.requested_model
    row = make_row(joined, Pricing({}), 0)
    assert (row.run, row.input_tokens, row.output_tokens, row.route) == (run, 0, 0, "")


@clients
def test_a_retry_gets_the_whole_reply_that_its_first_try_did_not_wait_for(rig: Parking, client: str) -> None:
    dialect = DIALECTS[client]
    leave_before_reply(rig, rig.request(client, "", FIRST, stream=False))
    retried = rig.send(client, "", RETRY, stream=False)
    assert (retried.status, retried.body) == (200, dialect.whole)
    assert rig.calls(dialect.protocol) == 1


def test_equal_requests_side_by_side_are_never_joined(rig: Parking) -> None:
    replies: list[Answered] = []
    threads = [threading.Thread(target=lambda: replies.append(rig.send("chat", "", RETRY))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {reply.status for reply in replies} == {200}
    assert len({reply.get("x-dragoman-run") for reply in replies}) == 3
    assert rig.calls("chat") == 3


def test_a_run_is_taken_over_once_and_only_by_a_retry_of_the_same_request(rig: Parking) -> None:
    run, _ = rig.leave_after(500, rig.request("chat", "", FIRST))
    rig.wait_left()
    others = [
        rig.send("chat", "", FIRST),  # a first try
        rig.send("chat"),  # from a client that does not count
        rig.send("chat", "", RETRY, temperature=0.5),
        rig.send("chat", "", RETRY, "x-dragoman-explain: 1"),
        rig.send("chat", "", RETRY, key="bob"),
        rig.send("chat", "", RETRY, "idempotency-key: mine"),
    ]
    assert run not in {other.get("x-dragoman-run") for other in others}
    joined = rig.send("chat", "", RETRY)
    again = rig.send("chat", "", RETRY)
    assert joined.get("x-dragoman-run") == run
    assert again.get("x-dragoman-run") != run
    assert rig.calls("chat") == 1 + len(others) + 1


def test_a_reply_that_was_delivered_is_not_given_to_a_retry(rig: Parking) -> None:
    first = rig.send("chat", "", FIRST)
    assert rig.send("chat", "", RETRY).get("x-dragoman-run") != first.get("x-dragoman-run")
    run, _ = rig.leave_after(500, rig.request("chat", "", FIRST))
    rig.wait_left(1)
    assert rig.resume("chat", f"{run}:-1").status == 200
    assert rig.send("chat", "", RETRY).get("x-dragoman-run") != run


def test_nothing_is_joined_where_nothing_is_parked(tmp_path: Path) -> None:
    with parking(tmp_path, "[responses]\njoin_unmarked_retries = true\n") as rig:
        leave_and_end(rig)
        assert rig.send("chat", "", RETRY).get("x-dragoman-run") is None
        assert rig.calls("chat") == 2


def leave_and_end(rig: Parking) -> None:
    with dial(rig.gateway.port) as opened:
        opened.sendall(rig.request("chat", "", FIRST))
        opened.recv(100)
    wait_until(lambda: len(rig.gateway.outcomes) == 1)


def test_the_setting_allows_retries_of_clients_that_do_not_count_them(tmp_path: Path) -> None:
    settings = '[responses]\non_disconnect = "park"\njoin_unmarked_retries = true\n'
    with parking(tmp_path, settings) as rig:
        run, _ = rig.leave_after(500, rig.request("gemini"))
        rig.wait_left()
        assert rig.send("gemini", "", FIRST).get("x-dragoman-run") != run
        assert rig.send("gemini").get("x-dragoman-run") == run
        assert rig.calls("gemini") == 2
        shown = get(rig.gateway.port, "/metrics").body
        assert b'dragoman_runs_joined_total{by="retry"} 1' in shown
        assert b'dragoman_runs_joined_total{by="key"} 0' in shown
