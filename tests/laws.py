"""The general laws as functions: a machine joins by one line, `assert_any_cut_agrees(SseFramer, STREAM)`.

A machine takes items by `feed` and ends by `finish`; both give an iterable. Bytes and text are cut, events are re-cut.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import Protocol, TypeVar

from hypothesis import strategies as st

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)
Text = TypeVar("Text", bytes, str)
Event = TypeVar("Event")
Result = TypeVar("Result")


class Machine(Protocol[In, Out]):
    def feed(self, item: In, /) -> Iterable[Out]: ...
    def finish(self) -> Iterable[Out]: ...


Split = Callable[[Event, int], tuple[Event, Event] | None]
"""Cuts a delta after n characters; None for an event that is no delta, or where nothing is left after the cut."""


def run(machine: Machine[In, Out], items: Iterable[In]) -> list[Out]:
    out: list[Out] = []
    for item in items:
        out.extend(machine.feed(item))
    out.extend(machine.finish())
    return out


def as_is(out: list[Out]) -> list[Out]:
    return out


# Cuts of bytes or text


def cut(data: Text, points: Iterable[int]) -> list[Text]:
    """The pieces between the points; two equal points give an empty piece."""
    edges = [0, *sorted(points), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def pieces_of(data: Text, size: int) -> list[Text]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def cuts(data: Text) -> Iterator[list[Text]]:
    """Whole, byte by byte, in pieces of seven, with empty reads between, and every single cut."""
    yield [data]
    yield pieces_of(data, 1)
    yield pieces_of(data, 7)
    yield [piece for byte in pieces_of(data, 1) for piece in (data[:0], byte)]
    for point in range(1, len(data)):
        yield [data[:point], data[point:]]


def random_cuts(data: Text) -> st.SearchStrategy[list[Text]]:
    points = st.lists(st.integers(0, len(data)), max_size=12)
    return points.map(lambda chosen: cut(data, chosen))


def assert_any_cut_agrees(
    make: Callable[[], Machine[Text, Out]], data: Text, fold: Callable[[list[Out]], Result] | None = None
) -> None:
    """Law 1. Framers must agree exactly; a decoder passes the fold that joins neighbouring deltas."""
    same = fold or as_is
    whole = same(run(make(), [data]))
    for pieces in cuts(data):
        assert same(run(make(), pieces)) == whole, f"cut as {pieces!r:.300}"


# Cuts of deltas


def recut(event: Event, size: int, split: Split[Event]) -> list[Event]:
    """The event as deltas of at most `size` characters."""
    pieces: list[Event] = []
    while halves := split(event, size):
        pieces.append(halves[0])
        event = halves[1]
    return [*pieces, event]


def recuts(events: Sequence[Event], split: Split[Event]) -> Iterator[list[Event]]:
    """As they are, in deltas of 1, 2, 3 and 7 characters, and every single cut of every delta."""
    yield list(events)
    for size in (1, 2, 3, 7):
        yield [piece for event in events for piece in recut(event, size, split)]
    for index, event in enumerate(events):
        point = 1
        while halves := split(event, point):
            yield [*events[:index], *halves, *events[index + 1 :]]
            point += 1


def assert_any_recut_agrees(
    make: Callable[[], Machine[Event, Out]],
    events: Sequence[Event],
    split: Split[Event],
    fold: Callable[[list[Out]], Result],
) -> None:
    """Law 2, for stages and encoders; `fold` joins neighbouring deltas."""
    whole = fold(run(make(), events))
    for pieces in recuts(events, split):
        assert fold(run(make(), pieces)) == whole, f"re-cut as {pieces!r:.300}"


# Other laws


def assert_identity(make: Callable[[], Machine[bytes, bytes]], data: bytes) -> None:
    """Law 3: what a tap passes on begins with what it was fed, to the byte, read by read."""
    for pieces in cuts(data):
        tap = make()
        assert [b"".join(tap.feed(piece)) for piece in pieces] == pieces
        list(tap.finish())


def assert_total(make: Callable[[], Machine[Text, Out]], junk: Text) -> None:
    """Law 4: any input is taken without an exception, and the end may come anywhere."""
    for pieces in ([junk], pieces_of(junk, 1), pieces_of(junk, 7)):
        run(make(), pieces)
    for end in range(len(junk)):
        run(make(), [junk[:end]])


def assert_linear(make: Callable[[], Machine[In, Out]], item: In, count: int, factor: int = 8) -> None:
    """Law 4: `factor` times the items cost about `factor` times the time, not its square.

    The best of eight tries counts, and 2.5 times the share is allowed for noise; a run is given up once far beyond.
    """
    _assert_linear_cost(lambda size: _make_feeder(make(), repeat(item, size)), count, factor)


def assert_linear_run(
    make: Callable[[], Machine[In, Out]], items: Callable[[int], Iterable[In]], count: int, factor: int = 8
) -> None:
    """Law 4 for input whose items differ: `items(n)` gives input of size n, made before the time is taken."""
    _assert_linear_cost(lambda size: _make_feeder(make(), list(items(size))), count, factor)


def assert_linear_function(
    function: Callable[[In], object], argument: Callable[[int], In], count: int, factor: int = 8
) -> None:
    """Law 4 for a plain function: `argument(n)` gives an argument of size n, made before the time is taken."""

    def prepare(size: int) -> Callable[[float], float]:
        given = argument(size)

        def seconds(enough: float) -> float:
            start = time.process_time()
            function(given)
            return time.process_time() - start

        return seconds

    _assert_linear_cost(prepare, count, factor)


def _make_feeder(machine: Machine[In, Out], items: Iterable[In]) -> Callable[[float], float]:
    """Return a function that feeds the items and gives the CPU seconds; it stops early after `enough` seconds."""

    def seconds(enough: float) -> float:
        start = time.process_time()
        for fed, item in enumerate(items):
            for _ in machine.feed(item):
                pass
            if fed % 64 == 0 and time.process_time() - start > enough:
                break
        for _ in machine.finish():
            pass
        return time.process_time() - start

    return seconds


def _assert_linear_cost(prepare: Callable[[int], Callable[[float], float]], count: int, factor: int) -> None:
    gc.disable()  # its passes over all live objects are no cost of the machine
    try:
        for _ in range(8):  # one good pair is proof: only noise makes a linear run long
            short = min(prepare(count)(5.0) for _ in range(3))
            allowed = 2.5 * factor * max(short, 0.002)
            longest = prepare(count * factor)(2 * allowed)
            if longest <= allowed:
                return
    finally:
        gc.enable()
    raise AssertionError(f"{short:.4f} s, then {longest:.4f} s for {factor} times as many items")


def assert_bounded(make: Callable[[], Machine[In, Out]], items: Iterable[In], limit: int) -> None:
    """Law 4: while it eats the items, the machine and its output never hold more than `limit` bytes."""
    machine = make()
    tracemalloc.start()
    try:
        run(machine, items)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= limit, f"held {peak} bytes, {limit} allowed"


def assert_prefixes_stay(requests: Sequence[Sequence[bytes]]) -> None:
    """Law 8: what one request of a session has sent is the beginning of the next, block by block."""
    for number, (before, after) in enumerate(pairwise(requests), 1):
        for place, block in enumerate(before):
            now = after[place] if place < len(after) else b"nothing"
            assert now == block, f"block {place} of request {number - 1} is another in request {number}"
