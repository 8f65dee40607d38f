"""Calls written into the text: found only where they are meant, whole, once, and however they are cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.hub.events import (
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
from dragoman.hub.failure import Failure, Kind
from dragoman.stages.guard import Guard
from dragoman.stages.text_calls import MAX_CALL_CHARS, TextCalls
from laws import assert_any_recut_agrees, assert_linear, recut, run
from replies import END, START, call, join_deltas, split_delta, text
from tables import each_row

LOST = Failed(Failure(Kind.LOST, "gone"))
CALL = '[Called f with args: {"s":"}]"}]'


def after(*events: Event, end: Event = END, names: tuple[str, ...] = ("f", "g")) -> list[Event]:
    return run(TextCalls(dict.fromkeys(names)), [START, *events, end])


def parts(written: str, *more: Event) -> list[tuple[str, str]]:
    """What a text becomes: `text`, or a call's name, each with its text."""
    events = join_deltas(after(*text(0, written), *more))
    names = {
        event.block: event.what.name if isinstance(event.what, CallBlock) else "text"
        for event in events
        if isinstance(event, Opened)
    }
    return [(names[event.block], event.text) for event in events if isinstance(event, Delta)]


# What is found


def test_a_call_is_made_and_the_text_around_it_keeps_its_whitespace() -> None:
    assert parts(f"ok {CALL}") == [("text", "ok "), ("f", '{"s":"}]"}')]
    assert parts(f"{CALL}\n\nthen") == [("f", '{"s":"}]"}'), ("text", "\n\nthen")]


def test_several_calls_are_made_in_order() -> None:
    assert parts('a[Called f with args: {}] b\n[Called g with args:{"x":{"y":[1]}} ]c') == [
        ("text", "a"),
        ("f", "{}"),
        ("text", " b\n"),
        ("g", '{"x":{"y":[1]}}'),
        ("text", "c"),
    ]


def test_the_reply_ends_for_its_calls() -> None:
    assert after(*text(0, CALL))[-1] == Ended(Stop.TOOL)
    assert after(*text(0, CALL), end=Ended(Stop.LENGTH))[-1] == Ended(Stop.TOOL)
    assert after(*text(0, "no call"))[-1] == END
    cut = Ended(Stop.LENGTH, cut=(TruncatedCall("c", "g", "{"),))
    assert after(*text(0, CALL), end=cut)[-1] == cut
    assert after(*text(0, CALL), end=LOST)[-1] == LOST


def test_ids_are_the_same_each_time_and_differ_between_calls_replies_and_seeds() -> None:
    def ids(seed: str, reply: str) -> list[str]:
        events = [Started(reply, "m"), *text(0, '[Called f with args: {}][Called f with args: {"a":1}]'), END]
        events = run(TextCalls({"f": None}, seed), events)
        return [event.what.id for event in events if isinstance(event, Opened) and isinstance(event.what, CallBlock)]

    assert ids("s", "r") == ids("s", "r")
    seen = {*ids("s", "r"), *ids("s", "r2"), *ids("s2", "r")}
    assert len(seen) == 6
    assert all(id.startswith("tooluse_") and len(id) <= 64 for id in seen)


# What is no call


@each_row(
    "plain",
    [
        "[Called h with args: {}]",  # not offered
        "`[Called f with args: {}]`",
        "see ``x [Called f with args: {}]`` there",
        "```\n[Called f with args: {}]\n```",
        "~~~\n[Called f with args: {}]\n~~~\n",
        "[Called f with args: {]",
        '[Called f with args: {"a":}]',
        '[Called f with args: {"a":1}',
        '[Called f with args: {"a":1}}]',
        '[Called f with args: {"a":1} x]',
        "[Called f with args: [1]]",
        "[Called f with args: ]",
        "[Called f",
        "[Called",
        "[",
        "[called f with args: {}]",
        "[[]][Call",
        "a [link](https://a.example) and [1]",
    ],
)
def test_anything_else_stays_text(plain: str) -> None:
    assert parts(plain) == [("text", plain)]
    assert after(*text(0, plain))[-1] == END


def test_thoughts_are_not_searched() -> None:
    thought: list[Event] = [Opened(0, ThinkingBlock()), Delta(0, CALL), Closed(0)]
    assert after(*thought) == [START, *thought, END]


def test_a_call_may_follow_code_and_what_looked_like_one() -> None:
    assert parts(f"`code` and {CALL}")[1][0] == "f"
    assert parts(f"```\nx\n```\n{CALL}")[1][0] == "f"
    assert parts(f"[Called h with args: {{}}] {CALL}")[1][0] == "f"
    assert parts(f"[Called f with args: {{}} no {CALL}")[1][0] == "f"


def test_an_incomplete_call_stays_text() -> None:
    half = 'ok [Called f with args: {"path":"x'
    assert parts(half) == [("text", half)]
    events = after(Opened(0, TextBlock()), Delta(0, half), end=LOST, names=("f",))
    assert join_deltas(events) == [START, Opened(0, TextBlock()), Delta(0, half), LOST]


def test_arguments_without_end_are_given_up() -> None:
    stage = TextCalls({"f": None})
    stage.feed(Opened(0, TextBlock()))
    stage.feed(Delta(0, "[Called f with args: {"))
    assert list(stage.feed(Delta(0, " " * MAX_CALL_CHARS))) != []


def test_text_that_could_be_no_call_passes_at_once() -> None:
    stage = TextCalls({"f": None})
    stage.feed(START)
    stage.feed(Opened(0, TextBlock()))
    assert list(stage.feed(Delta(0, "ab"))) == [Opened(0, TextBlock()), Delta(0, "ab")]
    assert list(stage.feed(Delta(0, "c [Cal"))) == [Delta(0, "c ")]
    assert list(stage.feed(Delta(0, "m]"))) == [Delta(0, "[Calm]")]


# Beside native calls


def test_a_call_that_is_also_native_is_made_once_in_either_order() -> None:
    native = call(1, "f", '{ "s" : ', '"}]" }')
    assert [name for name, _ in parts(CALL, *native)] == ["f"]
    events = after(*call(0, "f", '{"s":"}]"}'), *text(1, f"a{CALL}b"))
    assert sum(isinstance(event, Opened) and isinstance(event.what, CallBlock) for event in events) == 1
    assert [event.text for event in join_deltas(events) if isinstance(event, Delta)][1:] == ["ab"]


def test_other_native_calls_pass_and_keep_their_order() -> None:
    events = parts(CALL, *call(1, "f", '{"s":1}'), *call(2, "g", "{}"))
    assert events == [("f", '{"s":"}]"}'), ("f", '{"s":1}'), ("g", "{}")]
    stage = TextCalls({"f": None})
    native = [START, *call(0, "f", '{"a"', ":1}"), END]
    assert [list(stage.feed(event)) for event in native] == [[event] for event in native]


def test_the_same_call_twice_in_the_text_is_made_once() -> None:
    assert [name for name, _ in parts(f"{CALL}{CALL}")] == ["f"]


def test_a_native_call_that_is_cut_by_a_failure_stays_open() -> None:
    opened, delta, _ = call(1, "f", '{"s"')
    events = after(*text(0, CALL), opened, delta, end=LOST)
    assert [type(event).__name__ for event in events[-3:]] == ["Opened", "Delta", "Failed"]


# The laws

ODD = (
    'ok [[Called f with args: {"s":"}]\\"","é":{"😀":[]}} ]\n`[Called f with args: {}]` [Called h with args: {}]'
    "\n```\n[Called g with args: {}]\n```\n[Called g with args: {}] end [Called g with"
)


def test_any_recut_of_the_deltas_agrees() -> None:
    reply = [START, *text(0, ODD), *call(1, "g", "{}"), END]
    assert_any_recut_agrees(lambda: TextCalls({"f": None, "g": None}), reply, split_delta, join_deltas)


ATOMS = ["[", "[Called f", " with args: ", "{", "}", "]", '"', "\\", "`", "```", "\n", "x", " ", "{}]", '{"a":1}]']


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


@pytest.mark.parametrize(
    "piece", ["x", "[", "[Called f with args: {", '[Called f with args: {"a":"b"}]', "{", '"', "`"]
)
def test_searching_costs_linear_time(piece: str) -> None:
    def start_stage() -> TextCalls:
        stage = TextCalls({"f": None})
        stage.feed(START)
        stage.feed(Opened(0, TextBlock()))
        return stage

    assert_linear(start_stage, Delta(0, piece), 500)
