"""A captured request runs again without a socket and without waiting, and a fixture expects the result."""

import asyncio
import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.operate import AdminError
from dragoman.operate.captures.replay.difference import compare_captures
from dragoman.operate.captures.replay.rerun import FIXTURES, choose_file, make_fixture, rerun, write_fixture
from dragoman.proxy.capture.files import read_capture as read
from dragoman.proxy.capture.format import CLIENT_LEFT, Capture
from dragoman.server.handler import replay_site
from wire_json import JsonObject

FIXTURE = Path(__file__).parents[3] / "fixtures" / "captures" / "kiro-cut-call.json"


def fixture() -> Capture:
    return read(FIXTURE.read_bytes())


def test_the_same_code_gives_the_same_capture() -> None:
    capture = fixture()
    assert [part.name for part in compare_captures(capture, rerun(capture, replay_site)) if part.changes] == []


def test_an_hour_without_data_is_replayed_at_once() -> None:
    capture = fixture()
    first, *others = capture.upstream_requests
    assert first.response is not None
    late = replace(first, response=replace(first.response, ended_at=first.response.ended_at + 3600.0))
    began = time.monotonic()
    rerun(replace(capture, upstream_requests=(late, *others)), replay_site)
    assert time.monotonic() - began < 60.0


def test_a_client_that_left_does_not_interrupt_the_reading_of_its_large_request() -> None:
    capture = fixture()
    body = msgspec.json.decode(capture.request.body, type=JsonObject)
    body["messages"] = [{"role": "user", "content": "word " * 200_000}, *body["messages"]]
    request = replace(capture.request, body=msgspec.json.encode(body))
    left = replace(capture, request=request, interrupted_by=CLIENT_LEFT, duration_ms=capture.duration_ms + 1000)
    assert len(rerun(left, replay_site).upstream_requests) == len(capture.upstream_requests)


def test_an_incomplete_capture_is_refused() -> None:
    with pytest.raises(AdminError, match=r"incomplete \(sent\)"):
        rerun(replace(fixture(), truncated=("sent",)), replay_site)


def test_it_can_run_in_a_thread_beside_a_running_loop() -> None:
    capture = fixture()
    replayed = asyncio.run(asyncio.to_thread(rerun, capture, replay_site))
    assert [part.name for part in compare_captures(capture, replayed) if part.changes] == []


def test_results_are_replayed_ones_and_times_recorded_ones() -> None:
    recorded = fixture()
    first, *others = recorded.events
    replayed = replace(recorded, outcome="lost", events=(replace(first, at=99.0), *others), duration_ms=1.0)
    made = make_fixture(recorded, replayed)
    assert (made.outcome, made.events[0].at, made.duration_ms) == ("lost", first.at, recorded.duration_ms)
    assert [request.response for request in made.upstream_requests] == [
        request.response for request in recorded.upstream_requests
    ]


def test_ids_of_the_machine_are_removed() -> None:
    recorded = fixture()
    first, *others = recorded.upstream_requests
    named = replace(first, headers=(("user-agent", f"tool {'ab' * 32}"),))
    made = make_fixture(recorded, replace(recorded, upstream_requests=(named, *others)))
    assert made.upstream_requests[0].headers == (("user-agent", f"tool {'0' * 64}"),)


def test_a_fixture_is_written_into_a_file_a_directory_or_by_its_name(tmp_path: Path) -> None:
    recorded = fixture()
    file = write_fixture(recorded, recorded, str(tmp_path / "new" / "mine.json"))
    assert read(file.read_bytes()) == make_fixture(recorded, recorded)
    assert choose_file(recorded, str(tmp_path)) == tmp_path / f"{recorded.request_id}.json"
    assert choose_file(recorded, "a-name") == FIXTURES / "a-name.json"
