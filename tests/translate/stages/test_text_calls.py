"""Calls written into the text, in brackets or as tags: found only where they are meant, and however they are cut."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.hub.events import (
    CallBlock,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    Opened,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    TruncatedCall,
)
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.stages.guard import Guard
from dragoman.translate.stages.text_calls import MAX_CALL_CHARS, TextCalls
from laws import assert_any_recut_agrees, assert_linear, recut, run
from replies import END, START, call, join_deltas, split_delta, text
from tables import each_row

LOST = Failed(Failure(Kind.LOST, "gone"))
CALL = '[Called f with args: {"s":"}]"}]'
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


def start_stage(begun: str = "") -> TextCalls:
    stage = TextCalls(TOOLS)
    for event in (START, Opened(0, TextBlock()), Delta(0, begun)):
        stage.feed(event)
    return stage


def count_calls(events: list[Event]) -> int:
    return sum(isinstance(event, Opened) and isinstance(event.what, CallBlock) for event in events)


# What is found


@each_row(
    ("written", "expected"),
    [
        (f"ok {CALL}", [("text", "ok "), ("f", '{"s":"}]"}')]),
        (f"{CALL}\n\nthen", [("f", '{"s":"}]"}'), ("text", "\n\nthen")]),
        (
            'a[Called f with args: {}] b\n[Called g with args:{"x":{"y":[1]}} ]c',
            [("text", "a"), ("f", "{}"), ("text", " b\n"), ("g", '{"x":{"y":[1]}}'), ("text", "c")],
        ),
        (f"ok\n\n{BLOCK}\nthen", [("text", "ok\n\n"), ("f", '{"s":"a"}'), ("text", "\nthen")]),
        (f"<function_calls>{F}\n{G} </function_calls>", [("f", '{"s":"a"}'), ("g", "{}")]),
        (  # both forms, of which the last repeats the first call
            f"a {BLOCK} b [Called g with args: {{}}] c < d [e] <f {BLOCK}",
            [("text", "a "), ("f", '{"s":"a"}'), ("text", " b "), ("g", "{}"), ("text", " c < d [e] <f ")],
        ),
        *((f"<function_calls>{F}{end}", [("f", '{"s":"a"}')]) for end in ("", "\n", "</", "\n</function_calls")),
    ],
)
def test_calls_are_made_in_order_and_the_text_around_them_keeps_its_whitespace(
    written: str, expected: list[tuple[str, str]]
) -> None:
    assert parts(written) == expected


@each_row("written", [CALL, BLOCK])
def test_the_reply_ends_for_its_calls(written: str) -> None:
    cut = Ended(Stop.LENGTH, cut=(TruncatedCall("c", "g", "{"),))
    tool = Ended(Stop.TOOL)
    for end, expected in ((END, tool), (Ended(Stop.LENGTH), tool), (cut, cut), (LOST, LOST)):
        assert after(*text(0, written), end=end)[-1] == expected
    assert after(*text(0, "no call"))[-1] == END


def test_ids_are_the_same_each_time_and_differ_between_calls_replies_and_seeds() -> None:
    def ids(seed: str, reply: str) -> list[str]:
        events = [Started(reply, "m"), *text(0, '[Called f with args: {}][Called f with args: {"a":1}]'), END]
        events = run(TextCalls({"f": None}, seed), events)
        return [event.what.id for event in events if isinstance(event, Opened) and isinstance(event.what, CallBlock)]

    assert ids("s", "r") == ids("s", "r")
    seen = {*ids("s", "r"), *ids("s", "r2"), *ids("s2", "r")}
    assert len(seen) == 6
    assert all(id.startswith("tooluse_") and len(id) <= 64 for id in seen)


# What values mean


@each_row(
    ("name", "written", "expected"),
    [
        *(("s", same, same) for same in ("5", ' "q" \n', "<b>&amp;</b>\n</parameter> <parameter>", "", "é😀")),
        *(("n", "5", 5), ("n", "\n5 ", 5), ("n", "5.5", "5.5"), ("n", "five", "five"), ("n", "true", "true")),
        *(("x", "5", 5), ("x", "-1.5e3", -1500.0), ("b", "true", True), ("b", "True", "True"), ("b", "1", "1")),
        *(("l", '["a", {"b": 1}]', ["a", {"b": 1}]), ("l", "[1", "[1"), ("l", "[" * 10_000, "[" * 10_000)),
        *(("o", '{"a": "}"}', {"a": "}"}), ("o", "null", None), ("o", "[]", "[]"), ("far", "[]", [])),
        *((name, "5", "5") for name in ("either", "any", "unheard", "open", "round")),
        *(("choice", "5", 5), ("choice", "null", None)),
    ],
)
def test_a_value_is_text_unless_the_schema_wants_what_it_spells(name: str, written: str, expected: object) -> None:
    call = f'<invoke name="f"><parameter name="{name}">{written}</parameter></invoke>'
    ((tool, arguments),) = parts(f"<function_calls>{call}</function_calls>")
    found = msgspec.json.decode(arguments)[name]
    assert (tool, found, type(found)) == ("f", expected, type(expected))


@each_row(
    ("call", "expected"),
    [
        (  # numbers keep every digit
            '<invoke name="f"><parameter name="n">123456789012345678901234567890</parameter></invoke>',
            ("f", '{"n":123456789012345678901234567890}'),
        ),
        (  # without a schema every value is text
            '<invoke name="g"><parameter name="a">1</parameter><parameter name="b">{}</parameter></invoke>',
            ("g", '{"a":"1","b":"{}"}'),
        ),
    ],
)
def test_arguments_are_written_as_the_schema_has_them(call: str, expected: tuple[str, str]) -> None:
    assert parts(f"<function_calls>{call}</function_calls>") == [expected]


# What is no call


@each_row(
    "plain",
    [
        *("[Called h with args: {}]", BLOCK.replace('"f"', '"h"')),  # not offered
        f'<function_calls>{F}<invoke name="h"></invoke></function_calls>',
        *("`[Called f with args: {}]`", "see ``x [Called f with args: {}]`` there", f"`{BLOCK}`".replace("\n", " ")),
        *(f"{fence}\n{made}\n{fence}\n" for fence in ("```", "~~~") for made in ("[Called f with args: {}]", BLOCK)),
        *(
            f"[Called f with args: {rest}"
            for rest in ("{]", '{"a":}]', '{"a":1}', '{"a":1}}]', '{"a":1} x]', "[1]]", "]")
        ),
        *("[Called f", "[Called", "[", "[called f with args: {}]", "[[]][Call", "a [link](https://a.example) and [1]"),
        *(F, "<function_calls></function_calls>", "<function_calls>", "<function_calls> why not"),
        '<function_calls><invoke name="f">and',
        '<function_calls><invoke name="f"><parameter name="s">a',
        '<function_calls><invoke name="f"><parameter name="s">a</parameter>',
        '<function_calls><invoke name="f"><parameter name="s">a</parameter></function_calls>',
        '<function_calls><invoke name="f"><parameter name="">a</parameter></invoke></function_calls>',
        *(f"<function_calls>{F} and", f'<function_calls>{F}<invoke name="g'),
        f"<function_calls>{' ' * 40}{F}</function_calls>",
        *("<function_call", "<f", "<", "a < b <c> List[int] <function>"),
    ],
)
def test_anything_else_stays_text(plain: str) -> None:
    assert parts(plain) == [("text", plain)]
    assert after(*text(0, plain))[-1] == END


def test_thoughts_are_not_searched() -> None:
    thought: list[Event] = [Opened(0, ThinkingBlock()), Delta(0, CALL + BLOCK), Closed(0)]
    assert after(*thought) == [START, *thought, END]


@each_row(
    "written",
    [
        *(f"`code` and {CALL}", f"```\nx\n```\n{CALL}", f"[Called h with args: {{}}] {CALL}"),
        *(f"[Called f with args: {{}} no {CALL}", f"<function_calls> no {BLOCK}"),
        f'<function_calls><invoke name="f"> no {BLOCK}',
    ],
)
def test_a_call_may_follow_code_and_what_looked_like_one(written: str) -> None:
    assert parts(written)[1][0] == "f"


def test_an_incomplete_call_stays_text_when_the_reply_fails() -> None:
    half = 'ok [Called f with args: {"path":"x'
    events = after(Opened(0, TextBlock()), Delta(0, half), end=LOST)
    assert join_deltas(events) == [START, Opened(0, TextBlock()), Delta(0, half), LOST]


@each_row("begun", ["[Called f with args: {", '<function_calls><invoke name="f"><parameter name="s">'])
def test_arguments_without_end_are_given_up(begun: str) -> None:
    stage = start_stage(begun)
    assert not list(stage.feed(Delta(0, " ")))
    assert list(stage.feed(Delta(0, " " * MAX_CALL_CHARS))) != []


@each_row(("first", "begun", "rest"), [("ab", "[Cal", "m]"), ("a <b> c", "<fun", "ny>")])
def test_text_that_could_be_no_call_passes_at_once(first: str, begun: str, rest: str) -> None:
    stage = start_stage()
    assert list(stage.feed(Delta(0, first))) == [Opened(0, TextBlock()), Delta(0, first)]
    assert list(stage.feed(Delta(0, f"c {begun}"))) == [Delta(0, "c ")]
    assert list(stage.feed(Delta(0, rest))) == [Delta(0, begun + rest)]


# Beside native calls


@each_row(("written", "value"), [(CALL, "}]"), (BLOCK, "a")])
def test_a_call_that_is_also_native_is_made_once_in_either_order(written: str, value: str) -> None:
    assert [name for name, _ in parts(written, *call(1, "f", '{ "s" : ', f'"{value}" }}'))] == ["f"]
    events = after(*call(0, "f", f'{{"s":"{value}"}}'), *text(1, f"a{written}b"))
    assert count_calls(events) == 1
    assert [event.text for event in join_deltas(events) if isinstance(event, Delta)][1:] == ["ab"]


def test_other_native_calls_pass_and_keep_their_order() -> None:
    events = parts(CALL, *call(1, "f", '{"s":1}'), *call(2, "g", "{}"))
    assert events == [("f", '{"s":"}]"}'), ("f", '{"s":1}'), ("g", "{}")]
    stage = TextCalls({"f": None})
    native = [START, *call(0, "f", '{"a"', ":1}"), END]
    assert [list(stage.feed(event)) for event in native] == [[event] for event in native]


def test_the_same_call_twice_in_the_text_is_made_once() -> None:
    assert [name for name, _ in parts(f"{CALL}{CALL}")] == ["f"]
    again = '[Called f with args: {"s": "a"}] [Called f with args: {"s": 1}]'
    assert [name for name, _ in parts(f"{BLOCK}{BLOCK}{again}") if name != "text"] == ["f", "f"]


def test_a_native_call_that_is_cut_by_a_failure_stays_open() -> None:
    opened, delta, _ = call(1, "f", '{"s"')
    events = after(*text(0, CALL), opened, delta, end=LOST)
    assert [type(event).__name__ for event in events[-3:]] == ["Opened", "Delta", "Failed"]


# The laws

ODD = (
    'ok [[Called f with args: {"s":"}]\\"","é":{"😀":[]}} ]\n`[Called f with args: {}]` [Called h with args: {}]'
    "\n```\n[Called g with args: {}]\n```\n[Called g with args: {}] end [Called g with"
)
ODD_TAGS = (
    f"ok <<function_calls>\n  {F.replace('>a<', '>é😀</parameter> x</parameterr<')}\n{G}\n</function_calls> `{G}`"
    f"\n```\n{BLOCK}\n```\n<function_calls>{G} no <function_calls>{F}</func"
)


@each_row("written", [ODD, ODD_TAGS])
def test_any_recut_of_the_deltas_agrees(written: str) -> None:
    reply = [START, *text(0, written), *call(1, "g", "{}"), END]
    assert_any_recut_agrees(lambda: TextCalls(TOOLS), reply, split_delta, join_deltas)


ATOMS = ["[", "[Called f", " with args: ", "{", "}", "]", '"', "\\", "`", "```", "\n", "x", " ", "{}]", '{"a":1}]']
TAG_ATOMS = [
    *("<", "<function_calls>", '<invoke name="f">', '<invoke name="h">', '<parameter name="n">', "1", "</parameter>"),
    *("</invoke>", "</function_calls>", "[Called g with args: {}]", "`", "```", "\n", "x", "</", " " * 20),
]
OPEN = '<function_calls><invoke name="f"><parameter name="s">'
BEGUN = ["<function_calls>", f"<function_calls>{F}", OPEN, f"{OPEN}</parameter>"]
PIECES = ["<", " ", "</parameter>", "</parameter> ", BLOCK, "x</", '<parameter name="']


@settings(max_examples=200)
@given(st.lists(st.sampled_from(ATOMS), max_size=14) | st.lists(st.sampled_from(TAG_ATOMS), max_size=14))
def test_any_text_in_any_cut_is_taken_alike_and_legal(pieces: list[str]) -> None:
    whole = after(*text(0, "".join(pieces)))
    assert join_deltas(after(*text(0, *pieces))) == join_deltas(whole)
    single = [piece for event in text(0, "".join(pieces)) for piece in recut(event, 1, split_delta)]
    assert join_deltas(after(*single)) == join_deltas(whole)
    trips: list[str] = []
    run(Guard(trips.append), whole)
    assert trips == []


@each_row(
    ("begun", "piece", "count"),
    [
        *(("", piece, 500) for piece in ("x", "[", "[Called f with args: {", '[Called f with args: {"a":"b"}]')),
        *(("", piece, 500) for piece in ("{", '"', "`")),
        *((begun, piece, 300) for begun in ("", *BEGUN) for piece in PIECES),
    ],
)
def test_searching_costs_linear_time(begun: str, piece: str, count: int) -> None:
    assert_linear(lambda: start_stage(begun), Delta(0, piece), count)
