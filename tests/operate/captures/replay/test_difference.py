"""Two captures are compared part by part."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.operate.captures.replay.difference import Difference, compare_captures
from dragoman.proxy.capture.files import read_capture as read
from dragoman.proxy.capture.format import Capture

FIXTURE = Path(__file__).parents[3] / "fixtures" / "captures" / "kiro-cut-call.json"


def fixture() -> Capture:
    return read(FIXTURE.read_bytes())


def with_body(body: bytes) -> Capture:
    capture = fixture()
    request = replace(capture.upstream_requests[0], body=body)
    return replace(capture, upstream_requests=(request, *capture.upstream_requests[1:]))


def changes(old: Capture, new: Capture) -> dict[str, tuple[Difference, ...]]:
    return {part.name: part.changes for part in compare_captures(old, new) if part.changes}


def test_a_capture_equals_itself() -> None:
    assert changes(fixture(), fixture()) == {}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b'{"a":1,"b":[1,2]}', b'{"a":1,"b":[1,3]}', Difference("/b/1", "2", "3")),
        (b'{"a":1}', b'{"a":1,"b/c":2}', Difference("/b~1c", None, "2")),
        (b'{"a":1}', b"{}", Difference("/a", "1", None)),
        (b"not json", b"nor this", Difference("", "not json", "nor this")),
    ],
)
def test_json_bodies_are_compared_field_by_field(old: bytes, new: bytes, expected: Difference) -> None:
    [found] = changes(with_body(old), with_body(new)).values()
    assert found == (expected,)


def test_random_ids_are_equal_if_they_stand_in_the_same_places() -> None:
    one, two = b"0" * 24, b"f" * 24
    same = with_body(b'{"a":"%b","b":"%b"}' % (one, one)), with_body(b'{"a":"%b","b":"%b"}' % (two, two))
    assert changes(*same) == {}
    assert changes(same[0], with_body(b'{"a":"%b","b":"%b"}' % (one, two)))


def test_a_missing_event_and_another_outcome_are_found() -> None:
    capture = fixture()
    found = changes(capture, replace(capture, events=capture.events[:-1], outcome="lost"))
    assert sorted(found) == ["hub events", "outcome"]
    [event] = found["hub events"]
    assert (event.place, event.now) == (f"event {len(capture.events)}", None)


def test_a_reworded_reason_of_a_loss_is_no_difference_and_another_loss_is_one() -> None:
    capture = fixture()
    [loss] = capture.losses
    assert changes(capture, replace(capture, losses=(replace(loss, why="reworded"),))) == {}
    [found] = changes(capture, replace(capture, losses=(replace(loss, path="/other"),))).values()
    assert found == (Difference("loss 1", f"{loss.how.value} {loss.path}", f"{loss.how.value} /other"),)
