"""Code in Markdown: known at every place, however the text is cut."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.stages.rewrite_text import CodeMarks
from laws import cuts
from tables import each_row

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


@each_row(("text", "fenced"), [*((text, True) for text in FENCED), *((text, False) for text in NOT_FENCED)])
def test_a_place_is_fenced_between_the_marks_of_a_fence(text: str, fenced: bool) -> None:
    assert {marks(*pieces).fenced for pieces in cuts(text)} == {fenced}


@each_row(("text", "in_span"), [*((text, True) for text in IN_SPAN), *((text, False) for text in IN_NO_SPAN)])
def test_a_place_after_open_backticks_is_in_a_span_until_they_close_or_the_line_ends(text: str, in_span: bool) -> None:
    assert {marks(*pieces).in_span for pieces in cuts(text)} == {in_span}


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
