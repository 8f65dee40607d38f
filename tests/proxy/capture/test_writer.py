"""Requests are recorded as the settings say, and written by a thread within bounds."""

import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.config.settings import Debug
from dragoman.net.sink import CollectorSink
from dragoman.proxy.capture.files import CaptureBounds, CaptureDirectory, capture_directory, load_capture
from dragoman.proxy.capture.format import Capture
from dragoman.proxy.capture.memory_bounds import MemoryBudget
from dragoman.proxy.capture.writer import CaptureWriter, Counts, Job, RequestCapture
from dragoman.proxy.outcome import Outcome
from narrowing import present
from proxy.capture.recordings import make_recording
from proxy.in_memory import make_request

BUDGET = 1000


def make_job(path: Path, size: int = 10, before: threading.Event | None = None) -> Job:
    def make_capture() -> Capture:
        if before is not None:
            before.wait(40)
        return replace(make_recording().make_capture(), request_id="req_1")

    return Job(make_capture, frozenset(), CaptureDirectory(path, CaptureBounds(100, 1 << 20, 3600)), size)


def serve(captures: RequestCapture, debug: Debug, status: int) -> None:
    sink, request = CollectorSink(), make_request(headers=[(b"authorization", b"Bearer dgm_secret-of-the-client")])
    recording = captures.begin(request, sink, 0.0, debug)
    assert recording is not None
    sink.respond(status, [], b"{}")
    recording.record_outcome(Outcome(request_id="req_1", started_at=0.0, client_protocol="chat", outcome="ok"), None)
    recording.on_end()


def test_a_job_is_written_and_its_memory_released(tmp_path: Path) -> None:
    budget = MemoryBudget(BUDGET)
    writer = CaptureWriter(budget)
    assert budget.reserve(10)
    writer.put(make_job(tmp_path))
    writer.close()
    assert (writer.counts, budget.left) == (Counts(1, 0), BUDGET)
    assert len(list(tmp_path.glob("*.capture"))) == 1


def test_a_directory_that_cannot_be_written_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    writer = CaptureWriter(MemoryBudget(BUDGET))
    writer.put(make_job(tmp_path / "file"))
    writer.put(make_job(tmp_path / "file"))
    writer.close()
    assert writer.counts == Counts(0, 2)
    [record] = caplog.records
    assert "captures cannot be written to" in record.getMessage()


def test_what_does_not_fit_into_the_queue_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.proxy.capture.writer.MAX_WAITING", 1)
    budget, gate = MemoryBudget(BUDGET), threading.Event()
    writer = CaptureWriter(budget)
    for _ in range(4):
        assert budget.reserve(10)
        writer.put(make_job(tmp_path, before=gate))
    dropped = writer.counts.dropped
    assert dropped >= 2
    gate.set()
    writer.close()
    assert (writer.counts, budget.left) == (Counts(4 - dropped, dropped), BUDGET)


def test_nothing_is_recorded_unless_the_settings_say_so() -> None:
    sink = CollectorSink()
    assert RequestCapture().begin(make_request(), sink, 0.0, Debug(capture="off")) is None
    assert sink.listener is None


def test_only_failed_requests_are_written_if_the_settings_say_so(tmp_path: Path) -> None:
    captures, debug = RequestCapture(), Debug(capture="errors", directory=tmp_path)
    before = captures.memory_left
    serve(captures, debug, 200)
    captures.close()
    assert (captures.counts.written, captures.memory_left) == (0, before)
    serve(captures, debug, 500)
    captures.close()
    assert (captures.counts.written, captures.memory_left) == (1, before)


def test_a_request_is_written_without_its_key(tmp_path: Path) -> None:
    captures, status = RequestCapture(), 200
    serve(captures, Debug(capture="all", directory=tmp_path), status)
    captures.close()
    [file] = tmp_path.glob("*.capture")
    found = load_capture(file)
    assert present(found.response).status == status
    assert dict(found.request.headers)["authorization"] != "Bearer dgm_secret-of-the-client"


def test_old_captures_are_removed_even_if_nothing_is_captured(tmp_path: Path) -> None:
    debug = Debug(capture="off", directory=tmp_path, keep=1)
    many = capture_directory(replace(debug, keep=9))
    for number in range(3):
        many.write(replace(make_recording().make_capture(), request_id=f"req_{number}"))
    RequestCapture().remove_old(debug)
    assert len(many.files()) == 1
