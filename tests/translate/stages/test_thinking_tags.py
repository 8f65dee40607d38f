"""Reasoning between tags: found only at the beginning of a reply, however it is cut, and handled by mode."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.hub.events import (
    CitationAdded,
    Closed,
    Delta,
    Event,
    Failed,
    OpaqueAdded,
    Opened,
    TextBlock,
    ThinkingBlock,
)
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.request import Citation
from dragoman.translate.stages.guard import Guard
from dragoman.translate.stages.thinking_tags import NAMES, Mode, ThinkingTags
from laws import assert_any_recut_agrees, assert_bounded, assert_linear, run
from replies import END, START, call, join_deltas, split_delta, text
from tables import each_row

LOST = Failed(Failure(Kind.LOST, "gone"))
SEAL = Opaque("kiro", OpaqueForm.SIGNATURE, "s")


def after(mode: Mode, *events: Event) -> list[Event]:
    return run(ThinkingTags(mode), [START, *events, END])[1:-1]


def parts(written: str, mode: Mode = Mode.AS_REASONING) -> list[tuple[str, str]]:
    """What a text becomes: kinds of blocks and their texts."""
    events = join_deltas(after(mode, *text(0, written)))
    kinds = {event.block: type(event.what) for event in events if isinstance(event, Opened)}
    names = {TextBlock: "text", ThinkingBlock: "thought"}
    return [(names[kinds[event.block]], event.text) for event in events if isinstance(event, Delta)]


# What is found


@each_row(
    ("written", "expected"),
    [
        *((f"<{name}>x</{name}>\n\nHi", [("thought", "x"), ("text", "Hi")]) for name in NAMES),
        ("\n \n<think>x</think>Hi", [("thought", "x"), ("text", "Hi")]),
        ("<think>x</think>\n\n\nHi", [("thought", "x"), ("text", "\nHi")]),  # one blank line is stripped
        ("<think>x</think>\nHi", [("thought", "x"), ("text", "Hi")]),
        ("<think>x</think>\r\n\r\nHi", [("thought", "x"), ("text", "Hi")]),
        ("<think>x</think> Hi", [("thought", "x"), ("text", " Hi")]),
        ("<think>x</think>\rHi", [("thought", "x"), ("text", "\rHi")]),
        ("<think>x</thinking>y</think>z", [("thought", "x</thinking>y"), ("text", "z")]),  # a tag closes its own name
        ("<thinking>x y", [("thought", "x y")]),  # thoughts without an end stay thoughts
        ("<thinking>x </thinki", [("thought", "x </thinki")]),
        ("<thinking>x</thinking>", [("thought", "x")]),
        ("<think>x</think>Hi `<thinking>`", [("thought", "x"), ("text", "Hi `<thinking>`")]),  # a later tag is text
        ("<think>x</think><think>y</think>", [("thought", "x"), ("text", "<think>y</think>")]),
        # an open backtick hides the closing tag only on its own line
        ("<think>it`s so</think>" + "x" * 300 + "`", [("thought", "it`s so"), ("text", "x" * 300 + "`")]),
        ("<think>it`s so\n</think>\nHi `there`", [("thought", "it`s so\n"), ("text", "Hi `there`")]),
    ],
)
def test_what_stands_between_the_first_tags_is_thought(written: str, expected: list[tuple[str, str]]) -> None:
    assert parts(written) == expected


def test_thoughts_go_out_as_they_come_and_only_a_possible_tag_waits() -> None:
    stage = ThinkingTags()
    for event in (START, Opened(0, TextBlock())):
        stage.feed(event)
    assert stage.feed(Delta(0, "<thinking>abc")) == [Opened(0, ThinkingBlock()), Delta(0, "abc")]
    assert stage.feed(Delta(0, "d </thi")) == [Delta(0, "d ")]
    assert stage.feed(Delta(0, "s")) == [Delta(0, "</this")]


# What is no tag


@each_row(
    "plain",
    [
        *("Hi <thinking>x</thinking>", "`<thinking>` is a tag", '"<thinking>" is a tag'),
        *("```\n<thinking>x</thinking>\n```", "<thinker>x</thinker>", "<thinking x>y</thinking>"),
        *("<THINKING>x</THINKING>", "< thinking>", "<thin", "<", "  ", "\n", " " * 300 + "<thinking>x</thinking>"),
    ],
)
def test_text_that_does_not_begin_with_a_tag_is_left_alone(plain: str) -> None:
    assert parts(plain) == [("text", plain)]


@each_row(
    "thought",
    [
        *("the user wrote `</think>` here", "code `a </think> b` here", '"</think>" ends it', "'</think>' ends it"),
        *("“</think>” ends it", "see\n```xml\n<think>y</think>\n```\nand so on"),
        *("see\n~~~\n</think>\n~~~\nand so on", "```inline </think> ``` and so on"),
    ],
)
def test_a_quoted_or_coded_closing_tag_does_not_close(thought: str) -> None:
    assert parts(f"<think>{thought}</think>\n\nHi") == [("thought", thought), ("text", "Hi")]


@each_row("thought", ['he answer "no"', "it`s fine", "`code`", "a\n```\nb\n```\nc", "'quoted'"])
def test_quotes_and_code_that_have_ended_do_not_hide_the_closing_tag(thought: str) -> None:
    assert parts(f"<think>{thought}</think>\n\nHi") == [("thought", thought), ("text", "Hi")]
    assert parts(f"<think>{thought}</think>") == [("thought", thought)]


# Modes


def test_each_mode_handles_reasoning_differently() -> None:
    written = "<thinking>x</thinking>\n\nHi"
    assert parts(written, Mode.AS_REASONING) == [("thought", "x"), ("text", "Hi")]
    assert parts(written, Mode.REMOVE) == [("text", "Hi")]
    assert parts(written, Mode.PASS) == [("text", written)]
    assert parts(written, Mode.STRIP_TAGS) == [("text", "x\n\nHi")]


def test_a_reply_of_thoughts_only_leaves_nothing_when_they_are_removed() -> None:
    assert after(Mode.REMOVE, *text(0, "<think>x</think>")) == []
    assert after(Mode.REMOVE, *text(0, "<think>x")) == []


NATIVE: list[Event] = [Opened(0, ThinkingBlock()), Delta(0, "n"), OpaqueAdded(0, SEAL), Closed(0)]


def test_native_thoughts_go_too_when_they_are_removed_and_stay_otherwise() -> None:
    answer = text(1, "Hi")
    assert [type(event) for event in after(Mode.REMOVE, *NATIVE, *answer)] == [Opened, Delta, Closed]
    assert after(Mode.AS_REASONING, *NATIVE, *answer) == [*NATIVE, *answer]


# The reply around it


def test_other_blocks_keep_their_order_and_get_new_numbers() -> None:
    events = after(Mode.AS_REASONING, *text(0, "<think>x</think>Hi"), *call(1, "f", "{}"), *text(2, "end"))
    assert [event.block for event in events if isinstance(event, Opened)] == [0, 1, 2, 3]
    assert join_deltas(events)[-3:] == [Opened(3, TextBlock()), Delta(3, "end"), Closed(3)]
    trips: list[str] = []
    run(Guard(trips.append), [START, *events, END])
    assert trips == []


def test_tags_after_native_reasoning_and_blank_text_still_begin_the_reply() -> None:
    events = join_deltas(after(Mode.AS_REASONING, *NATIVE, *text(1, "\n"), *text(2, "<think>x</think>Hi")))
    assert [event.text for event in events if isinstance(event, Delta)] == ["n", "\n", "x", "Hi"]
    kinds = [type(event.what) for event in events if isinstance(event, Opened)]
    assert kinds == [ThinkingBlock, TextBlock] * 2


def test_text_after_a_call_does_not_begin_the_reply_again() -> None:
    events = after(Mode.AS_REASONING, *text(0, "Hi"), *call(1, "f", "{}"), *text(2, "<think>x</think>"))
    assert events[-3:] == text(2, "<think>x</think>")


def test_an_empty_block_of_text_stays_one() -> None:
    assert after(Mode.AS_REASONING, *text(0)) == text(0)


def test_citations_follow_their_text_and_lose_a_place_that_moved() -> None:
    cited = CitationAdded(0, Citation(url="https://a.example", start=0, end=2))
    opened, delta, closed = text(0, "Hi")
    assert after(Mode.AS_REASONING, opened, delta, cited, closed) == [opened, delta, cited, closed]
    moved = after(Mode.AS_REASONING, opened, Delta(0, "<think>x</think>"), cited, delta, closed)
    assert moved[-4:] == [*text(1, "Hi")[:2], CitationAdded(1, Citation(url="https://a.example")), Closed(1)]


def test_a_failure_lets_go_of_what_was_held_back() -> None:
    reply: list[Event] = [START, Opened(0, TextBlock()), Delta(0, "<thin"), LOST]
    assert run(ThinkingTags(), reply) == reply


# The laws

ODD = (
    ' \n<thinking>a `</thinking>` b "</thinking>" c\n```\n</thinking>\n``` x\n```\nd it`s</thinking>'
    "\r\n\nHi `<thinking>` é😀"
)
WRITTEN = [ODD, "<think>x</think>\n\nHi", "plain `text`\n", "<thinking>open </thinkin", '<think>"</think>']
ATOMS = ["<think>", "</think>", "`", "```", "\n", '"', "x", " ", "<", "</th", "~~~", "\r"]


@each_row("mode", list(Mode))
@each_row("written", WRITTEN)
def test_any_recut_of_the_deltas_agrees(mode: Mode, written: str) -> None:
    assert_any_recut_agrees(lambda: ThinkingTags(mode), [START, *text(0, written), END], split_delta, join_deltas)


@settings(max_examples=100)
@given(st.lists(st.sampled_from(ATOMS), max_size=14))
def test_any_text_in_any_cut_is_taken_alike(pieces: list[str]) -> None:
    whole = join_deltas(after(Mode.AS_REASONING, *text(0, "<think>" + "".join(pieces))))
    assert join_deltas(after(Mode.AS_REASONING, *text(0, "<think>", *pieces))) == whole
    assert join_deltas(after(Mode.AS_REASONING, *text(0, *("<think>" + "".join(pieces))))) == whole
    kept = "".join(event.text for event in after(Mode.PASS, *text(0, *pieces)) if isinstance(event, Delta))
    assert kept == "".join(pieces)


@pytest.mark.parametrize("piece", ["x", "`", "</thinking", "`</thinking>", '"</thinking>" ', "\n"])
def test_thinking_costs_linear_time_and_bounded_memory(piece: str) -> None:
    def start_stage() -> ThinkingTags:
        stage = ThinkingTags()
        for event in (START, Opened(0, TextBlock()), Delta(0, "<thinking>`")):
            stage.feed(event)
        return stage

    assert_linear(start_stage, Delta(0, piece), 500)

    class Deaf:
        """Drops the output, so that only what is held counts."""

        def __init__(self) -> None:
            self._stage = start_stage()

        def feed(self, event: Event) -> list[Event]:
            self._stage.feed(event)
            return []

        def finish(self) -> list[Event]:
            return []

    assert_bounded(Deaf, (Delta(0, piece) for _ in range(20_000)), 200_000)
