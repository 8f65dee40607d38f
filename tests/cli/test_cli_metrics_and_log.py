"""Metrics and log of a gateway: one scrape for all workers, one line for each request."""

import os
import signal

import msgspec
import pytest

import asking
from scraping import scrape, total, value
from shell import Served, Shell
from waiting import wait_until

ANSWERED = "dragoman_requests_answered_total"
ENDED = "dragoman_requests_total"


def ask(served: Served, model: str = "echo", *, stream: bool = False, **headers: str) -> str:
    """Send a request on a connection of its own and return its id."""
    reply = asking.ask(served, "chat", model, "hush hush", stream=stream, key=served.key, headers=headers)
    assert (b"hush" in reply.body) == (reply.status == 200)
    return reply.headers["x-dragoman-request-id"]


@pytest.mark.rest
def test_any_worker_returns_the_metrics_of_all(shell: Shell) -> None:
    with shell.serve("--workers", "2") as served:
        wait_until(lambda: value(scrape(served.url), "dragoman_workers") == 2)
        for number in range(30):
            ask(served, stream=bool(number % 2))
        wait_until(lambda: value(scrape(served.url), ANSWERED) == total(scrape(served.url), ENDED) == 30)
        seen = [scrape(served.url) for _ in range(10)]  # by both workers, on connections of their own
        assert {value(each, ANSWERED) for each in seen} == {30}
        assert {total(each, ENDED) for each in seen} == {30}
        assert {total(each, "gen_ai_server_request_duration_seconds_count") for each in seen} == {30}
        assert {total(each, "gen_ai_server_time_to_first_token_seconds_count") for each in seen} == {15}


def test_counts_survive_a_killed_worker(shell: Shell) -> None:
    with shell.serve("--workers", "2") as served:
        wait_until(lambda: value(scrape(served.url), "dragoman_workers") == 2)
        for _ in range(20):
            ask(served)
        wait_until(lambda: value(scrape(served.url), ANSWERED) == 20)
        before = served.workers
        os.kill(min(before), signal.SIGKILL)
        wait_until(lambda: len(served.workers - before) == 1 and len(served.workers) == 2)
        assert value(scrape(served.url), ANSWERED) == 20
        for _ in range(20):
            ask(served)
        wait_until(lambda: value(scrape(served.url), ANSWERED) == 40)
        wait_until(lambda: value(scrape(served.url), "dragoman_workers") == 2)


def test_each_request_has_one_line_of_json_with_its_id(shell: Shell) -> None:
    with shell.serve("--log-json") as served:
        good = ask(served, stream=True, **{"user-agent": "fake-agent/1.2 (x)"})
        bad = ask(served, "echo/no-such-model")
        chosen = ask(served, stream=False, **{"x-request-id": "my-own-id-7"})
        assert served.end() == 0
    lines = [msgspec.json.decode(line, type=dict[str, object]) for line in served.err.splitlines()]
    by_id = {line.get("request_id"): line for line in lines if line["logger"] == "dragoman.requests"}
    assert by_id[chosen]["client_request_id"] == "my-own-id-7"
    assert "client_request_id" not in by_id[good]
    assert set(by_id) == {good, bad, chosen}
    assert len([line for line in lines if line["logger"] == "dragoman.requests"]) == 3
    fields = by_id[good]
    assert (fields["outcome"], fields["route"], fields["client"], fields["stream"]) == (
        "ok",
        "echo/echo",
        "fake-agent",
        True,
    )
    assert all(
        isinstance(fields[name], int | float) for name in ("input_tokens", "output_tokens", "duration_ms", "ttft_ms")
    )
    assert by_id[bad]["outcome"] == "not_found"
    assert "hush" not in served.err
    assert served.key not in served.err


def test_the_text_log_has_one_line_for_each_request(shell: Shell) -> None:
    with shell.serve() as served:
        request_id = ask(served)
        wait_until(lambda: request_id in served.err)  # long before anything else happens
        assert served.end() == 0
    (line,) = [line for line in served.err.splitlines() if request_id in line]
    assert " info dragoman.requests: " in line
    assert " chat>echo echo/echo ok " in line or " chat echo/echo ok " in line


@pytest.mark.parametrize("workers", ["1", "2"])
def test_no_line_is_lost_when_the_gateway_stops(shell: Shell, workers: str) -> None:
    with shell.serve("--workers", workers) as served:
        request_ids = {ask(served) for _ in range(25)}
        assert served.end() == 0
    assert {one for one in request_ids if f": {one} " in served.err} == request_ids
