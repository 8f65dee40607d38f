"""The general laws over the Responses machines: cuts, totality, round trip, equal modes, speed that does not decay."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.framing.sse import Frame, SseFramer
from dragoman.translate.hub.events import (
    Block,
    CallBlock,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    OpaqueAdded,
    Opened,
    Piece,
    RefusalBlock,
    Reply,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    UsageReported,
    collect,
    explode,
)
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.usage import Usage
from laws import assert_any_cut_agrees, assert_any_recut_agrees, assert_linear, assert_total, random_cuts, run
from narrowing import expect
from translate.protocols.responses.responses_kit import (
    CLIENT,
    STREAMS,
    Reader,
    encode_events,
    event_bytes,
    events_of,
    fixture,
    join_deltas,
    make_context,
    payloads,
)


def split(event: Event, point: int) -> tuple[Event, Event] | None:
    if not isinstance(event, Delta) or not 0 < point < len(event.text) or event.logprobs is not None:
        return None
    return Delta(event.block, event.text[:point]), Delta(event.block, event.text[point:])


def fold_events(frames: list[bytes]) -> list[Event]:
    return join_deltas(events_of(b"".join(frames)))


@pytest.mark.parametrize("name", ["unicode", "tools_interleaved", "reasoning", "error_nested", "truncated"])
def test_any_cut_of_an_upstream_stream_gives_the_same_events(name: str) -> None:
    assert_any_cut_agrees(Reader, fixture(f"{name}.sse"), join_deltas)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_cuts_of_every_fixture_give_the_same_events(data: st.DataObject) -> None:
    stream = fixture(data.draw(st.sampled_from(STREAMS)) + ".sse")
    assert join_deltas(run(Reader(), data.draw(random_cuts(stream)))) == join_deltas(run(Reader(), [stream]))


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=200))
def test_junk_ends_in_one_failure(junk: bytes) -> None:
    assert_total(Reader, junk)
    assert isinstance(run(Reader(), [junk])[-1], Failed)


@settings(max_examples=80, deadline=None)
@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)))
def test_known_events_with_any_values_never_raise(value: object) -> None:
    for type_ in ("response.output_item.done", "response.completed", "response.output_text.delta", "error"):
        stream = event_bytes(type_, item=value, response=value, delta=value, error=value, output_index=value)
        assert isinstance(run(Reader(), [stream])[-1], Failed)


@pytest.mark.parametrize("name", ["unicode", "tools_interleaved", "reasoning", "custom_call"])
def test_any_recut_of_the_deltas_is_encoded_alike(name: str) -> None:
    events = events_of(fixture(f"{name}.sse"))
    assert_any_recut_agrees(lambda: CLIENT.encoder(make_context(), Ledger()), events, split, fold_events)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
NAMES = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    what: Block = draw(
        st.one_of(
            st.just(TextBlock()),
            st.just(RefusalBlock()),
            st.builds(ThinkingBlock, raw=st.booleans()),
            st.builds(CallBlock, id=st.uuids().map(str), name=NAMES, custom=st.booleans(), namespace=st.none() | NAMES),
        )
    )
    opaque = Opaque("openai", OpaqueForm.ENCRYPTED, draw(NAMES), "gpt-5.5")
    sealed = isinstance(what, ThinkingBlock) and draw(st.booleans())
    return Piece(what, draw(TEXTS), opaque if sealed else None)


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    decoded = tuple(draw(st.lists(pieces(), max_size=5)))
    called = any(isinstance(piece.what, CallBlock) for piece in decoded)
    stop = draw(st.sampled_from([Stop.TOOL if called else Stop.END, Stop.LENGTH, Stop.FILTERED]))
    numbers = st.integers(0, 10**6)
    usage = draw(
        st.builds(
            Usage,
            input=numbers,
            output=numbers,
            cache_read=numbers,
            cache_write=numbers,
            reasoning=numbers,
            web_searches=st.integers(0, 3),
            service_tier=st.sampled_from(["default", "flex"]),
        )
    )
    return Reply("resp_x", "gpt-x", decoded, usage, Ended(stop))


@settings(max_examples=100, deadline=None)
@given(replies())
def test_what_is_encoded_decodes_to_the_same_reply(reply: Reply) -> None:
    assert collect(events_of(encode_events(explode(reply)))) == reply


@settings(max_examples=60, deadline=None)
@given(replies())
def test_the_stream_and_the_whole_body_mean_the_same(reply: Reply) -> None:
    events = list(explode(reply))
    assert (
        msgspec.json.decode(CLIENT.encode_whole(events, make_context(), Ledger()))
        == payloads(encode_events(events))[-1]["response"]
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(pieces(), min_size=2, max_size=4), st.data())
def test_interleaved_blocks_come_back_whole(decoded: list[Piece], data: st.DataObject) -> None:
    runs: list[list[Event]] = [
        [Opened(i, piece.what), *(Delta(i, letter) for letter in piece.text)] for i, piece in enumerate(decoded)
    ]
    events: list[Event] = [Started("resp_x", "gpt-x")]
    for opening in runs:
        events.append(opening.pop(0))
    while waiting := [left for left in runs if left]:
        events.append(data.draw(st.sampled_from(waiting)).pop(0))
    for i, piece in enumerate(decoded):
        events += [OpaqueAdded(i, piece.opaque)] if piece.opaque else []
        events.append(Closed(i))
    back = collect(events_of(encode_events([*events, UsageReported(Usage()), Ended(Stop.LENGTH)])))
    assert sorted(map(repr, back.pieces)) == sorted(map(repr, decoded))


def test_every_item_added_is_done_before_the_terminal_event() -> None:
    for name in STREAMS:
        events = events_of(fixture(f"{name}.sse"))
        if not isinstance(events[-1], Ended):
            continue
        decoded = payloads(encode_events(events))
        added = [payload["output_index"] for payload in decoded if payload["type"] == "response.output_item.added"]
        done = [payload["output_index"] for payload in decoded if payload["type"] == "response.output_item.done"]
        assert sorted(added) == sorted(done) == list(range(len(added)))


def test_a_long_stream_costs_as_much_per_event_at_its_end_as_at_its_beginning() -> None:
    delta = event_bytes("response.output_text.delta", output_index=0, content_index=0, delta="word ", logprobs=[])
    assert_linear(Reader, delta, 2000)

    class Writer:
        def __init__(self) -> None:
            self._encoder = CLIENT.encoder(make_context(), Ledger())
            self._encoder.feed(Started("", ""))
            self._encoder.feed(Opened(0, TextBlock()))

        def feed(self, event: Event, /) -> Sequence[bytes]:
            return self._encoder.feed(event)

        def finish(self) -> tuple[()]:
            return ()

    assert_linear(Writer, Delta(0, "word "), 2000)


def test_frames_survive_our_own_framer() -> None:
    frames = run(SseFramer(), [encode_events(events_of(fixture("unicode.sse")))])
    assert expect(Frame, frames[-1]).data == b"[DONE]"
