"""Every capture in tests/fixtures/captures replays to the same result.

`dragoman replay ID --as-fixture NAME` adds one; after an intended change, the same command on the file renews it.
"""

from pathlib import Path

import pytest

from dragoman.operate.captures.replay.difference import compare_captures
from dragoman.operate.captures.replay.rerun import rerun
from dragoman.proxy.capture.files import read_capture
from dragoman.server.handler import replay_site

FIXTURES = sorted((Path(__file__).parent / "fixtures" / "captures").glob("*.json"))


@pytest.mark.parametrize("file", FIXTURES, ids=lambda file: file.stem)
def test_a_captured_request_still_replays_to_the_same_result(file: Path) -> None:
    capture = read_capture(file.read_bytes())
    changes = [
        (part.name, change)
        for part in compare_captures(capture, rerun(capture, replay_site))
        for change in part.changes
    ]
    assert changes == []


def test_there_are_captures_to_replay() -> None:
    assert FIXTURES
