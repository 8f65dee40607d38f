"""The laws themselves: they accept machines that keep them and catch machines that break them."""

from collections.abc import Iterable

import pytest

from laws import (
    assert_any_cut_agrees,
    assert_any_recut_agrees,
    assert_bounded,
    assert_identity,
    assert_linear,
    assert_total,
    cut,
    cuts,
    recuts,
)


class Lines:
    """Keeps the laws: lines out of bytes."""

    def __init__(self) -> None:
        self.held = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        *lines, self.held = (self.held + chunk).split(b"\n")
        return lines

    def finish(self) -> list[bytes]:
        return [self.held]


class LinesPerRead(Lines):
    """Breaks law 1: every read starts afresh."""

    def feed(self, chunk: bytes) -> list[bytes]:
        return chunk.split(b"\n")


class Strict(Lines):
    """Breaks law 4: raises on input."""

    def feed(self, chunk: bytes) -> list[bytes]:
        return [chunk.decode().encode()]


class Shouting:
    """Breaks law 3: alters what passes."""

    def feed(self, chunk: bytes) -> list[bytes]:
        return [chunk.upper()]

    def finish(self) -> list[bytes]:
        return []


Delta = tuple[str, str]


class Bold:
    """Replaces a marker; obeys law 2 only if it holds text back."""

    def __init__(self, hold: bool) -> None:
        self.hold = hold
        self.held = ""

    def feed(self, event: Delta) -> list[Delta]:
        text = (self.held + event[1]).replace("**", "!")
        self.held = "*" if self.hold and text.endswith("*") else ""
        return [("text", text.removesuffix(self.held))]

    def finish(self) -> list[Delta]:
        return [("text", self.held)]


def split(event: Delta, after: int) -> tuple[Delta, Delta] | None:
    kind, text = event
    return ((kind, text[:after]), (kind, text[after:])) if 0 < after < len(text) else None


def join_text(events: Iterable[Delta]) -> str:
    return "".join(text for _, text in events)


def test_cuts_hold_whole_bytes_sevens_and_every_single_cut() -> None:
    made = list(cuts(b"abcdefgh"))
    assert made[:3] == [[b"abcdefgh"], [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"], [b"abcdefg", b"h"]]
    assert [pieces for pieces in made if len(pieces) == 2][1:] == [
        [b"abcdefgh"[:point], b"abcdefgh"[point:]] for point in range(1, 8)
    ]
    assert all(b"".join(pieces) == b"abcdefgh" for pieces in made)


def test_equal_points_give_an_empty_piece() -> None:
    assert cut(b"abc", [2, 0, 2]) == [b"", b"ab", b"", b"c"]


def test_recuts_keep_the_text_and_cover_every_single_cut() -> None:
    made = list(recuts([("text", "abcd"), ("text", "ef")], split))
    assert all(join_text(events) == "abcdef" for events in made)
    assert [("text", "abc"), ("text", "d"), ("text", "ef")] in made
    assert [("text", letter) for letter in "abcdef"] in made


def test_the_law_of_cuts_catches_a_machine_that_forgets_between_reads() -> None:
    assert_any_cut_agrees(Lines, b"one\ntwo")
    with pytest.raises(AssertionError, match="cut as"):
        assert_any_cut_agrees(LinesPerRead, b"one\ntwo")


def test_the_law_of_recuts_catches_a_marker_split_over_deltas() -> None:
    events = [("text", "a**b"), ("text", "c*")]
    assert_any_recut_agrees(lambda: Bold(hold=True), events, split, join_text)
    with pytest.raises(AssertionError, match="re-cut as"):
        assert_any_recut_agrees(lambda: Bold(hold=False), events, split, join_text)


def test_the_law_of_identity_catches_an_altered_byte() -> None:
    with pytest.raises(AssertionError):
        assert_identity(Shouting, b"abc")
    assert_identity(Shouting, b"ABC")


def test_the_law_of_totality_catches_a_machine_that_raises() -> None:
    assert_total(Lines, b"\xff\n")
    with pytest.raises(UnicodeDecodeError):
        assert_total(Strict, "é".encode())


def test_the_law_of_linear_time_catches_a_rescanned_buffer() -> None:
    with pytest.raises(AssertionError, match="times as many"):
        assert_linear(Lines, b"x" * 1000, 150)


def test_the_law_of_bounded_memory_catches_an_endless_buffer() -> None:
    assert_bounded(Lines, (b"x" * 999 + b"\n" for _ in range(20)), 100_000)
    with pytest.raises(AssertionError, match="allowed"):
        assert_bounded(Lines, (b"x" * 1000 for _ in range(200)), 100_000)
