"""Of a stream that is too long to be kept, the beginning and the end are."""

from hypothesis import given
from hypothesis import strategies as st

from dragoman.flow.capture.head_and_tail import TAIL_BYTES, Kept


@given(st.lists(st.integers(1, TAIL_BYTES // 3), max_size=60), st.integers(0, 20))
def test_the_beginning_and_as_much_of_the_end_as_fits_are_kept_in_order(sizes: list[int], room: int) -> None:
    kept = Kept[int](gap=-1)
    for number, size in enumerate(sizes):
        if number < room:
            kept.add(number)
        else:
            kept.add_last(number, size)
    if len(sizes) <= room:
        assert kept.is_whole
        assert kept.all() == tuple(range(len(sizes)))
        return
    assert not kept.is_whole
    told = kept.all()
    assert told[: room + 1] == (*range(room), -1)
    last = told[room + 1 :]
    assert last == tuple(range(len(sizes) - len(last), len(sizes)))
    assert sum(sizes[number] for number in last) <= TAIL_BYTES
    more = len(sizes) - len(last) - 1
    assert more < room or sum(sizes[more:]) > TAIL_BYTES


def test_the_last_piece_is_kept_however_large() -> None:
    kept = Kept[str]()
    kept.add_last("small", 10)
    kept.add_last("huge", TAIL_BYTES * 2)
    assert kept.all() == ("huge",)
    kept.add_last("small", 10)
    assert kept.all() == ("small",)
