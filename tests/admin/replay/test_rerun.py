"""A captured request runs again without a socket and without waiting."""

import asyncio
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.admin.errors import AdminError
from dragoman.admin.replay.difference import compare_captures
from dragoman.admin.replay.rerun import rerun
from dragoman.flow.capture.file_format import read_capture as read
from dragoman.flow.capture.format import Capture
from dragoman.http.handler import replay_site

FIXTURE = Path(__file__).parents[2] / "fixtures" / "captures" / "kiro-cut-call.json"


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


def test_an_incomplete_capture_is_refused() -> None:
    with pytest.raises(AdminError, match=r"incomplete \(sent\)"):
        rerun(replace(fixture(), truncated=("sent",)), replay_site)


def test_it_can_run_in_a_thread_beside_a_running_loop() -> None:
    capture = fixture()
    replayed = asyncio.run(asyncio.to_thread(rerun, capture, replay_site))
    assert [part.name for part in compare_captures(capture, replayed) if part.changes] == []
