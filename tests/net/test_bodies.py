"""Bodies come out the same however the network cuts them, and never take what follows them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.net.bodies import BudgetShare, ByteBudget, ChunkedBody, IncomingBody, SizedBody
from dragoman.net.errors import RequestRejected

AFTER = b"GET /next HTTP/1.1\r\n"
WIRE = b'5\r\nhello\r\n1;name="v"\r\n,\r\n0006 ; x\r\n world\r\n000\r\nX-Sum: abc\r\nX-Two:\r\n\r\n'


def drive(body: IncomingBody, data: bytes, points: list[int]) -> bytes:
    """Feeds the pieces and returns what the body left over."""
    edges = [0, *sorted(points), len(data)]
    for start, end in itertools.pairwise(edges):
        if body.done:
            return data[start:]
        taken = body.feed(data[start:end])
        if taken < end - start:
            return data[start + taken :]
    return b""


@pytest.mark.parametrize("point", range(len(WIRE + AFTER)))
def test_chunks_survive_every_single_cut(point: int) -> None:
    body = ChunkedBody(100, BudgetShare(ByteBudget(1 << 40)))
    assert drive(body, WIRE + AFTER, [point]) == AFTER
    assert (body.done, body.peek()) == (True, b"hello, world")


@settings(max_examples=100)
@given(st.lists(st.integers(0, len(WIRE + AFTER))))
def test_chunks_survive_any_cuts(points: list[int]) -> None:
    body = ChunkedBody(100, BudgetShare(ByteBudget(1 << 40)))
    assert drive(body, WIRE + AFTER, points) == AFTER
    assert body.peek() == b"hello, world"


@settings(max_examples=50)
@given(st.binary(min_size=1, max_size=200), st.lists(st.integers(0, 200)))
def test_a_sized_body_takes_exactly_its_length(content: bytes, points: list[int]) -> None:
    body = SizedBody(len(content), 1000, BudgetShare(ByteBudget(1 << 40)))
    data = content + AFTER
    assert drive(body, data, [min(point, len(data)) for point in points]) == AFTER
    assert body.peek() == content


@settings(max_examples=100)
@given(st.binary(max_size=300), st.lists(st.integers(0, 300)))
def test_any_bytes_give_the_same_verdict_in_any_cutting(data: bytes, points: list[int]) -> None:
    def verdict(cuts: list[int]) -> tuple[bytes | str, bool]:
        body = ChunkedBody(100, BudgetShare(ByteBudget(1 << 40)))
        try:
            drive(body, data, cuts)
        except RequestRejected as refusal:
            return refusal.message, False
        return body.peek(), body.done

    assert verdict([min(point, len(data)) for point in points]) == verdict([])
