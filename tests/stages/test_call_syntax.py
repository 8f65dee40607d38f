"""Calls written into the text as tags: found only where they are meant, whole, once, and however they are cut."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.hub.events import CallBlock, Closed, Delta, Ended, Event, Failed, Opened, Stop, TextBlock, ThinkingBlock
from dragoman.hub.failure import Failure, Kind
from dragoman.stages.guard import Guard
from dragoman.stages.text_calls import MAX_CALL_CHARS, TextCalls
from laws import assert_any_recut_agrees, assert_linear, recut, run
from replies import END, START, call, join_deltas, split_delta, text
from tables import each_row

LOST = Failed(Failure(Kind.LOST, "gone"))
F = '<invoke name="f">\n<parameter name="s">a</parameter>\n</invoke>'
G = '<invoke name="g"></invoke>'
BLOCK = f"<function_calls>\n{F}\n</function_calls>"
SCHEMA = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "b": {"type": "boolean"},
        "l": {"type": "array"},
        "o": {"type": ["object", "null"]},
        "either": {"type": ["string", "integer"]},
        "any": {},
        "choice": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "open": {"anyOf": [{"type": "integer"}, {}]},
        "far": {"$ref": "#/$defs/list"},
        "round": {"$ref": "#/properties/round"},
    },
    "$defs": {"list": {"type": "array"}},
}
TOOLS = {"f": SCHEMA, "g": None}


def after(*events: Event, end: Event = END) -> list[Event]:
    return run(TextCalls(TOOLS), [START, *events, end])


def parts(written: str, *more: Event) -> list[tuple[str, str]]:
    """What a text becomes: `text`, or a call's name, each with its text."""
    events = join_deltas(after(*text(0, written), *more))
    names = {
        event.block: event.what.name if isinstance(event.what, CallBlock) else "text"
        for event in events
        if isinstance(event, Opened)
    }
    return [(names[event.block], event.text) for event in events if isinstance(event, Delta)]


def argument(name: str, written: str) -> object:
    ((tool, arguments),) = parts(
        f'<function_calls><invoke name="f"><parameter name="{name}">{written}</parameter></invoke></function_calls>'
    )
    assert tool == "f"
    return msgspec.json.decode(arguments)[name]


# What is found


def test_a_call_is_made_and_the_text_around_it_keeps_its_whitespace() -> None:
    assert parts(f"ok\n\n{BLOCK}\nthen") == [("text", "ok\n\n"), ("f", '{"s":"a"}'), ("text", "\nthen")]


def test_the_calls_of_one_block_are_made_in_order() -> None:
    assert parts(f"<function_calls>{F}\n{G} </function_calls>") == [("f", '{"s":"a"}'), ("g", "{}")]


def test_both_forms_may_stand_in_one_text() -> None:
    written = f"a {BLOCK} b [Called g with args: {{}}] c < d [e] <f {BLOCK}"
    assert parts(written) == [
        ("text", "a "),
        ("f", '{"s":"a"}'),
        ("text", " b "),
        ("g", "{}"),
        ("text", " c < d [e] <f "),  # what follows repeats the first call
    ]


def test_the_reply_ends_for_its_calls() -> None:
    assert after(*text(0, BLOCK))[-1] == Ended(Stop.TOOL)
    assert after(*text(0, BLOCK), end=LOST)[-1] == LOST


@pytest.mark.parametrize("end", ["", "\n", "</", "\n</function_calls"])
def test_the_last_closing_tag_may_be_missing(end: str) -> None:
    assert parts(f"<function_calls>{F}{end}") == [("f", '{"s":"a"}')]


# What values mean


@each_row(
    ("name", "written", "expected"),
    [
        ("s", "5", "5"),
        ("s", ' "q" \n', ' "q" \n'),
        ("s", "<b>&amp;</b>\n</parameter> <parameter>", "<b>&amp;</b>\n</parameter> <parameter>"),
        ("s", "", ""),
        ("s", "é😀", "é😀"),
        ("n", "5", 5),
        ("n", "\n5 ", 5),
        ("n", "5.5", "5.5"),
        ("n", "five", "five"),
        ("n", "true", "true"),
        ("x", "5", 5),
        ("x", "-1.5e3", -1500.0),
        ("b", "true", True),
        ("b", "True", "True"),
        ("b", "1", "1"),
        ("l", '["a", {"b": 1}]', ["a", {"b": 1}]),
        ("l", "[1", "[1"),
        ("o", '{"a": "}"}', {"a": "}"}),
        ("o", "null", None),
        ("o", "[]", "[]"),
        ("either", "5", "5"),
        ("any", "5", "5"),
        ("unheard", "5", "5"),
        ("choice", "5", 5),
        ("choice", "null", None),
        ("open", "5", "5"),
        ("far", "[]", []),
        ("round", "5", "5"),
        ("l", "[" * 10_000, "[" * 10_000),
    ],
)
def test_a_value_is_text_unless_the_schema_wants_what_it_spells(name: str, written: str, expected: object) -> None:
    found = argument(name, written)
    assert (found, type(found)) == (expected, type(expected))


def test_numbers_keep_every_digit() -> None:
    written = '<invoke name="f"><parameter name="n">123456789012345678901234567890</parameter></invoke>'
    assert parts(f"<function_calls>{written}</function_calls>") == [("f", '{"n":123456789012345678901234567890}')]


def test_without_a_schema_every_value_is_text() -> None:
    written = '<invoke name="g"><parameter name="a">1</parameter><parameter name="b">{}</parameter></invoke>'
    assert parts(f"<function_calls>{written}</function_calls>") == [("g", '{"a":"1","b":"{}"}')]


# What is no call


@each_row(
    "plain",
    [
        BLOCK.replace('"f"', '"h"'),  # not offered
        f'<function_calls>{F}<invoke name="h"></invoke></function_calls>',
        f"`{BLOCK}`".replace("\n", " "),
        f"```\n{BLOCK}\n```",
        f"~~~\n{BLOCK}\n~~~\n",
        F,
        "<function_calls></function_calls>",
        "<function_calls>",
        "<function_calls> why not",
        '<function_calls><invoke name="f">and',
        '<function_calls><invoke name="f"><parameter name="s">a',
        '<function_calls><invoke name="f"><parameter name="s">a</parameter>',
        '<function_calls><invoke name="f"><parameter name="s">a</parameter></function_calls>',
        '<function_calls><invoke name="f"><parameter name="">a</parameter></invoke></function_calls>',
        f"<function_calls>{F} and",
        f'<function_calls>{F}<invoke name="g',
        f"<function_calls>{' ' * 40}{F}</function_calls>",
        "<function_call",
        "<f",
        "<",
        "a < b <c> List[int] <function>",
    ],
)
def test_anything_else_stays_text(plain: str) -> None:
    assert parts(plain) == [("text", plain)]
    assert after(*text(0, plain))[-1] == END


def test_thoughts_are_not_searched() -> None:
    thought: list[Event] = [Opened(0, ThinkingBlock()), Delta(0, BLOCK), Closed(0)]
    assert after(*thought) == [START, *thought, END]


def test_a_call_may_follow_what_looked_like_one() -> None:
    assert parts(f"<function_calls> no {BLOCK}")[1][0] == "f"
    assert parts(f'<function_calls><invoke name="f"> no {BLOCK}')[1][0] == "f"


def test_arguments_without_end_are_given_up() -> None:
    stage = TextCalls(TOOLS)
    stage.feed(Opened(0, TextBlock()))
    stage.feed(Delta(0, '<function_calls><invoke name="f"><parameter name="s">'))
    assert not list(stage.feed(Delta(0, "x")))
    assert list(stage.feed(Delta(0, "x" * MAX_CALL_CHARS))) != []


def test_text_that_could_be_no_call_passes_at_once() -> None:
    stage = TextCalls(TOOLS)
    stage.feed(START)
    stage.feed(Opened(0, TextBlock()))
    assert list(stage.feed(Delta(0, "a <b> c"))) == [Opened(0, TextBlock()), Delta(0, "a <b> c")]
    assert list(stage.feed(Delta(0, "c <fun"))) == [Delta(0, "c ")]
    assert list(stage.feed(Delta(0, "ny>"))) == [Delta(0, "<funny>")]


# Beside native calls


def test_a_call_that_is_also_native_is_made_once_in_either_order() -> None:
    native = call(1, "f", '{ "s" : ', '"a" }')
    assert [name for name, _ in parts(BLOCK, *native)] == ["f"]
    events = after(*call(0, "f", '{"s":"a"}'), *text(1, f"a{BLOCK}b"))
    assert sum(isinstance(event, Opened) and isinstance(event.what, CallBlock) for event in events) == 1
    again = '[Called f with args: {"s": "a"}] [Called f with args: {"s": 1}]'
    assert [name for name, _ in parts(f"{BLOCK}{BLOCK}{again}") if name != "text"] == ["f", "f"]


# The laws

ODD = (
    f"ok <<function_calls>\n  {F.replace('>a<', '>é😀</parameter> x</parameterr<')}\n{G}\n</function_calls> `{G}`"
    f"\n```\n{BLOCK}\n```\n<function_calls>{G} no <function_calls>{F}</func"
)


def test_any_recut_of_the_deltas_agrees() -> None:
    reply = [START, *text(0, ODD), *call(1, "g", "{}"), END]
    assert_any_recut_agrees(lambda: TextCalls(TOOLS), reply, split_delta, join_deltas)


ATOMS = [
    *("<", "<function_calls>", '<invoke name="f">', '<invoke name="h">', '<parameter name="n">', "1", "</parameter>"),
    *("</invoke>", "</function_calls>", "[Called g with args: {}]", "`", "```", "\n", "x", "</", " " * 20),
]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(ATOMS), max_size=14))
def test_any_text_in_any_cut_is_taken_alike_and_legal(pieces: list[str]) -> None:
    whole = after(*text(0, "".join(pieces)))
    assert join_deltas(after(*text(0, *pieces))) == join_deltas(whole)
    single = [piece for event in text(0, "".join(pieces)) for piece in recut(event, 1, split_delta)]
    assert join_deltas(after(*single)) == join_deltas(whole)
    trips: list[str] = []
    run(Guard(trips.append), whole)
    assert trips == []


OPEN = '<function_calls><invoke name="f"><parameter name="s">'


@each_row("begun", ["", "<function_calls>", f"<function_calls>{F}", OPEN, f"{OPEN}</parameter>"])
@each_row("piece", ["<", " ", "</parameter>", "</parameter> ", BLOCK, "x</", '<parameter name="'])
def test_searching_costs_linear_time(begun: str, piece: str) -> None:
    def stage() -> TextCalls:
        made = TextCalls(TOOLS)
        made.feed(START)
        made.feed(Opened(0, TextBlock()))
        made.feed(Delta(0, begun))
        return made

    assert_linear(stage, Delta(0, piece), 300)
