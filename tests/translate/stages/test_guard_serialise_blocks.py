"""Straightening: interleaved blocks leave one after the other, whole and in order."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.hub.events import (
    Closed,
    Delta,
    Event,
    Failed,
    HostedBlock,
    Opened,
    TextBlock,
    ToolReturned,
    UsageReported,
)
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.server_tools import SearchFound
from dragoman.translate.hub.usage import Usage
from dragoman.translate.stages.guard import Guard, SerialiseBlocks
from laws import assert_any_recut_agrees, assert_linear, run
from replies import END, START, call, join_deltas, split_delta, text, text_of

LOST = Failed(Failure(Kind.LOST, "gone"))


def straighten(*events: Event) -> list[Event]:
    return run(SerialiseBlocks(), events)


def test_blocks_in_sequence_pass_at_once() -> None:
    reply = [START, *text(0, "a", "b"), *call(1, "f", "{}"), UsageReported(Usage()), END]
    stage = SerialiseBlocks()
    assert [list(stage.feed(event)) for event in reply] == [[event] for event in reply]


def test_interleaved_calls_leave_one_after_the_other() -> None:
    open_a, a1, a2, close_a = call(0, "f", '{"a":', "1}")
    open_b, b1, b2, close_b = call(1, "g", "{", "}")
    out = straighten(START, open_a, a1, open_b, b1, a2, b2, close_a, close_b, END)
    assert out == [START, open_a, a1, a2, close_a, open_b, b1, b2, close_b, END]


def test_a_tools_result_waits_with_its_block() -> None:
    open_a, a1, close_a = call(0, "f", "{}")
    search = HostedBlock("call-1", "web_search", is_ours=True)
    b: list[Event] = [Opened(1, search), ToolReturned(1, SearchFound(())), Closed(1)]
    assert straighten(START, open_a, *b, a1, close_a, END) == [START, open_a, a1, close_a, *b, END]


def test_the_next_block_passes_live_once_the_first_has_closed() -> None:
    stage = SerialiseBlocks()
    second, *_ = call(1, "g")
    for event in (START, Opened(0, TextBlock()), second, Delta(1, "{")):
        stage.feed(event)
    assert list(stage.feed(Closed(0))) == [Closed(0), second, Delta(1, "{")]
    assert list(stage.feed(Delta(1, "}"))) == [Delta(1, "}")]


def test_a_whole_block_that_waited_makes_room_for_the_one_after_it() -> None:
    a, b, c = text(0, "a"), call(1, "g", "{}"), text(2, "c")
    out = straighten(START, a[0], *b, c[0], c[1], a[1], a[2], c[2], END)
    assert out == [START, *a, *b, *c, END]


def test_a_failure_lets_whole_blocks_pass_and_one_cut_block_last() -> None:
    a, b, c, d = text(0, "a"), call(1, "f", '{"x"'), call(2, "g", "{}"), call(3, "h", "{")
    out = straighten(START, *a[:2], *b[:2], *c, *d[:2], LOST)
    assert out == [START, *a, *c, *b[:2], LOST]


def test_a_cut_call_is_never_closed_to_let_others_pass() -> None:
    a, b = call(0, "rm", ""), call(1, "g", "{}")
    assert straighten(START, a[0], *b, LOST) == [START, a[0], LOST]


def test_waiting_events_are_passed_on_when_the_input_ends() -> None:
    a, b = text(0, "a"), call(1, "g", "{}")
    assert straighten(START, *a[:2], *b) == [START, *a, *b]


def test_an_end_that_comes_too_early_loses_nothing() -> None:
    a, b, c = text(0, "a"), text(1, "b"), text(2, "c")
    out = straighten(START, *a[:2], *b[:2], *c[:2], END)
    assert out == [START, *a, *b, *c[:2], END]


REPLY = [START, *call(0, "f", '{"a":1}')[:2], *call(1, "g", '{"b":22}'), Closed(0), *text(2, "über 🙂 alles"), END]


def test_any_recut_of_the_deltas_agrees() -> None:
    assert_any_recut_agrees(SerialiseBlocks, REPLY, split_delta, join_deltas)


@st.composite
def interleavings(draw: st.DrawFn) -> list[Event]:
    queues = [text(0, "a", "b"), call(1, "f", "{", "}"), call(2, "g"), text(3, "c")]
    opened, order = 1, list[Event]()
    while any(queues):
        ready = [queue for queue in queues[:opened] if queue]
        if opened < len(queues) and (not ready or draw(st.booleans())):
            order.append(queues[opened].pop(0))
            opened += 1
        else:
            order.append(draw(st.sampled_from(ready)).pop(0))
    return order


@settings(max_examples=100)
@given(interleavings())
def test_every_interleaving_comes_out_straight_whole_and_legal(events: list[Event]) -> None:
    out = straighten(START, *events, END)
    live: int | None = None
    for event in out[1:-1]:
        if isinstance(event, Opened):
            assert live is None
            live = event.block
        assert isinstance(event, Opened | Delta | Closed)
        assert event.block == live
        if isinstance(event, Closed):
            live = None
    assert [event.block for event in out if isinstance(event, Opened)] == [
        event.block for event in events if isinstance(event, Opened)
    ]
    assert [text_of(out, block) for block in range(4)] == ["ab", "{}", "", "c"]
    trips: list[str] = []
    assert (run(Guard(trips.append), out), trips) == (out, [])


def test_waiting_costs_linear_time() -> None:
    def make() -> SerialiseBlocks:
        stage = SerialiseBlocks()
        for event in (START, text(0)[0], text(1)[0]):
            stage.feed(event)
        return stage

    assert_linear(make, Delta(1, "x"), 2_000)
