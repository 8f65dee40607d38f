"""Bytes of an event stream pass, but for what one function changes."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.framing.sse import DataRewriter

STREAM = (
    b": comment\n\nevent: a\ndata: one \xf0\x9f\xa6\x86\n\ndata:two\r\n\r\nid: 7\ndata: one\nretry: 1\n\n"
    b"data: several\ndata: lines one\n\n\n\ndata: [DONE]\n\n"
)


def shout(data: bytes) -> bytes:
    return data.replace(b"one", b"ONE!") if b"one" in data else data


def run(chunks: list[bytes]) -> bytes:
    rewriter = DataRewriter(shout)
    out = [piece for chunk in chunks for piece in rewriter.feed(chunk)]
    return b"".join([*out, *rewriter.finish()])


def test_only_single_data_lines_are_changed() -> None:
    assert run([STREAM]) == STREAM.replace(b"data: one", b"data: ONE!")


@settings(max_examples=60)
@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cut_gives_the_same_bytes(points: list[int]) -> None:
    edges = [0, *sorted(points), len(STREAM)]
    chunks = [STREAM[start:end] for start, end in pairwise(edges)]
    assert run(chunks) == run([STREAM])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_byte_by_byte_gives_the_same_bytes(size: int) -> None:
    chunks = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert run(chunks) == run([STREAM])


def test_unchanged_values_are_returned_themselves() -> None:
    rewriter = DataRewriter(lambda data: data)
    assert b"".join([*rewriter.feed(STREAM), *rewriter.finish()]) == STREAM


def test_an_event_that_never_ends_passes() -> None:
    assert run([b"data: one"]) == b"data: ONE!"
