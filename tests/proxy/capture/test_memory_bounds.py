"""Recordings share a budget, and keep the beginning and the end of a stream that exceeds it."""

from hypothesis import given
from hypothesis import strategies as st

from dragoman.proxy.capture.memory_bounds import TAIL_BYTES, HeadAndTail, MemoryBudget


@given(st.lists(st.integers(1, TAIL_BYTES // 3), max_size=60), st.integers(0, 20))
def test_the_beginning_and_as_much_of_the_end_as_fits_are_kept_in_order(sizes: list[int], room: int) -> None:
    parts = HeadAndTail[int](gap=-1)
    for number, size in enumerate(sizes):
        if number < room:
            parts.add(number)
        else:
            parts.add_to_tail(number, size)
    if len(sizes) <= room:
        assert parts.is_complete
        assert parts.parts() == tuple(range(len(sizes)))
        return
    assert not parts.is_complete
    found = parts.parts()
    assert found[: room + 1] == (*range(room), -1)
    last = found[room + 1 :]
    assert last == tuple(range(len(sizes) - len(last), len(sizes)))
    assert sum(sizes[number] for number in last) <= TAIL_BYTES
    more = len(sizes) - len(last) - 1
    assert more < room or sum(sizes[more:]) > TAIL_BYTES


def test_the_last_part_is_kept_however_large_it_is() -> None:
    parts = HeadAndTail[str]()
    parts.add_to_tail("small", 10)
    parts.add_to_tail("huge", TAIL_BYTES * 2)
    assert parts.parts() == ("huge",)
    parts.add_to_tail("small", 10)
    assert parts.parts() == ("small",)


def test_a_budget_gives_no_more_than_is_left() -> None:
    budget = MemoryBudget(10)
    assert budget.reserve(8)
    assert not budget.reserve(3)
    assert budget.left == 2
    budget.release(8)
    assert budget.reserve(10)
