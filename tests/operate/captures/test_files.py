"""Captures in a real directory: listed, found by their ids, and exported as plain files."""

import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.config.settings import Debug
from dragoman.operate import AdminError, NotFound
from dragoman.operate.captures.files import export_capture, find_capture, list_captures, read_capture
from dragoman.proxy.capture.files import capture_directory
from dragoman.proxy.capture.files import read_capture as read
from dragoman.proxy.capture.format import Capture

FIXTURE = Path(__file__).parents[2] / "fixtures" / "captures" / "kiro-cut-call.json"


def fixture(**changes: object) -> Capture:
    return replace(read(FIXTURE.read_bytes()), **changes)


@pytest.fixture
def debug(tmp_path: Path) -> Debug:
    return Debug(directory=tmp_path / "captures")


def test_captures_are_listed_with_the_oldest_first_and_found_by_either_end_of_their_id(debug: Debug) -> None:
    assert list_captures(debug) == []
    for number in range(2):
        capture_directory(debug).write(fixture(request_id=f"req_beef{number}", time=f"2026-11-15T12:00:0{number}.000Z"))
    assert [kept.summary.request_id for kept in list_captures(debug)] == ["req_beef0", "req_beef1"]
    for which, expected in (("last", "req_beef1"), ("req_beef0", "req_beef0"), ("beef1", "req_beef1")):
        assert find_capture(debug, which).request_id == expected


@pytest.mark.parametrize("which", ["last", "req_1"])
def test_a_capture_that_does_not_exist_is_not_found(debug: Debug, which: str) -> None:
    with pytest.raises(NotFound):
        find_capture(debug, which)


def test_a_name_is_never_taken_for_a_file(debug: Debug) -> None:
    with pytest.raises(NotFound):
        find_capture(debug, str(FIXTURE))
    assert read_capture(FIXTURE) == fixture()


def test_a_file_that_is_no_capture_and_a_directory_that_is_a_file_are_errors(debug: Debug, tmp_path: Path) -> None:
    file = tmp_path / "captures"
    file.write_text("not a capture")
    with pytest.raises(AdminError, match="captures"):
        read_capture(file)
    with pytest.raises(AdminError, match="must be a directory"):
        list_captures(debug)


def test_an_export_holds_every_body_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    capture = fixture()
    files = export_capture(capture, tmp_path / "exported")
    assert {file.name for file in files} == {
        "request_body.json",
        "kiro_request_body.json",
        "response_stream_raw.txt",
        "kiro_request_body_2.json",
        "response_stream_raw_2.txt",
        "response_stream_modified.txt",
    }
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert capture.response is not None
    sent = b"".join(chunk.data for chunk in capture.response.chunks)
    assert (tmp_path / "exported" / "response_stream_modified.txt").read_bytes() == sent
