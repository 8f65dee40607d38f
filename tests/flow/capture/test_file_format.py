"""Captures of version 0.1 are read, listed and replayed as they were then."""

from pathlib import Path

import pytest

from dragoman.admin.replay.difference import Change, compare_captures
from dragoman.admin.replay.rerun import rerun
from dragoman.flow.capture.file_format import UnreadableCapture, read_capture, read_summary
from dragoman.flow.capture.format import summarize
from dragoman.http.handler import replay_site

FOLDER = Path(__file__).parents[2] / "fixtures" / "captures_version_1"
PACKED, READABLE = FOLDER / "kiro-cut-call.capture", FOLDER / "kiro-cut-call.json"


def test_both_forms_of_an_old_capture_are_read_alike() -> None:
    packed, readable = read_capture(PACKED.read_bytes()), read_capture(READABLE.read_bytes())
    assert packed == readable
    assert (packed.request_id, packed.requested_model) == ("req_a519407e0bb1d63c00000001", "kiro/claude-sonnet-4.5")
    assert (packed.time, packed.duration_ms) == ("2026-11-15T12:01:29.314504+00:00", 613.824)
    assert packed.upstream_requests[0].headers
    assert packed.settings.providers.keys() == {"kiro"}


def test_an_old_capture_is_listed_from_its_first_line() -> None:
    line = PACKED.read_bytes().partition(b"\n")[0]
    assert read_summary(line) == summarize(read_capture(PACKED.read_bytes()))


def is_reworded_loss(part: str, change: Change) -> bool:
    """Whether only the reason of a loss differs, which is text for people."""
    reasonless = [None if loss is None else loss.partition(": ")[0] for loss in (change.was, change.now)]
    return part == "ledger" and reasonless[0] == reasonless[1]


def test_an_old_capture_replays_to_the_same_result() -> None:
    capture = read_capture(PACKED.read_bytes())
    parts = compare_captures(capture, rerun(capture, replay_site))
    assert [change for part in parts for change in part.changes if not is_reworded_loss(part.name, change)] == []


@pytest.mark.parametrize(
    "body", [b'{"version":1}', b'{"version":1,"asked":[]}', b'{"version":3}', b"dragoman capture 1 {}\nx"]
)
def test_a_file_that_is_no_capture_is_reported_as_such(body: bytes) -> None:
    with pytest.raises(UnreadableCapture):
        read_capture(body)
