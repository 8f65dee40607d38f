"""Code in Markdown: known at every place, however the text is cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.stages.rewrite_text import CodeMarks
from laws import cuts

FENCED = [
    "```\nx",
    "  ```py\nx",
    "~~~\nx",
    "a\n```\nx\n```py\ny",  # a line with more than the marks does not close
    "```\nx\n``\n",
    "````\nx\n```\n",
    "```\nx\n~~~\n",
]
NOT_FENCED = ["", "x", "a ```\nx", "```\nx\n```\n", "```\nx\n````\ny", "```a```\nx", "``\nx", "~~\nx"]
IN_SPAN = ["`x", "a `x", "``x ` y", "`a` `b", "```a``` `b"]
IN_NO_SPAN = ["x", "`a`", "``a`` b", "`a\nb", "`a` b", "``a ` b``"]


def marks(*pieces: str) -> CodeMarks:
    code = CodeMarks()
    for piece in pieces:
        code.advance(piece)
    return code


@pytest.mark.parametrize("text", FENCED)
def test_a_place_within_a_fence_is_fenced(text: str) -> None:
    assert all(marks(*pieces).fenced for pieces in cuts(text))


@pytest.mark.parametrize("text", NOT_FENCED)
def test_a_place_outside_of_any_fence_is_not_fenced(text: str) -> None:
    assert not any(marks(*pieces).fenced for pieces in cuts(text))


@pytest.mark.parametrize("text", IN_SPAN)
def test_a_place_after_open_backticks_is_in_a_span(text: str) -> None:
    assert all(marks(*pieces).in_span for pieces in cuts(text))


@pytest.mark.parametrize("text", IN_NO_SPAN)
def test_a_place_after_closed_backticks_or_a_line_end_is_in_no_span(text: str) -> None:
    assert not any(marks(*pieces).in_span for pieces in cuts(text))


def test_three_backticks_that_close_on_their_line_are_a_span() -> None:
    assert marks("```a").fenced
    assert not marks("```a```").fenced
    assert not marks("```a```").in_span


@settings(max_examples=100)
@given(st.lists(st.sampled_from(["`", "``", "```", "~~~", "\n", " ", "x"]), max_size=20))
def test_any_cut_agrees(pieces: list[str]) -> None:
    whole = marks("".join(pieces))
    apart = marks(*pieces)
    assert (apart.fenced, apart.in_span) == (whole.fenced, whole.in_span)
