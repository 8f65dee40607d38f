"""Decode the bytes of Messages upstreams and compare the events."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings

from dragoman.translate.framing.sse import Broken, Frame
from dragoman.translate.hub.events import (
    CallBlock,
    CitationAdded,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    HostedBlock,
    OpaqueAdded,
    Opened,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    UsageReported,
)
from dragoman.translate.hub.failure import Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.ports import Stage
from dragoman.translate.hub.usage import Usage
from dragoman.translate.stages.guard import Guard
from laws import assert_any_cut_agrees, assert_linear, assert_total, random_cuts, run
from replies import join_deltas, text_of
from tables import each_row
from translate.protocols.messages.messages_dialogue import ISSUER, STREAMS, UPSTREAM, ByteDecoder, decode, fixture

SIGNATURE = Opaque("anthropic", OpaqueForm.SIGNATURE, "c2lnbmF0dXJl", "claude-test")


def run_guard(events: list[Event]) -> list[Event]:
    trips: list[str] = []
    out = run(Guard(trips.append), events)
    assert trips == []
    return out


def failure_of(events: Sequence[Event]) -> Kind:
    failed = events[-1]
    assert isinstance(failed, Failed)
    return failed.failure.kind


def test_text_is_sent_as_it_comes() -> None:
    assert decode(fixture("text.sse")) == [
        Started("msg_01fake", "claude-test", Usage(input=12, output=1)),
        Opened(0, TextBlock()),
        Delta(0, "Hel"),
        Delta(0, "lo, "),
        Delta(0, "world."),
        Closed(0),
        UsageReported(Usage(input=12, output=7)),
        Ended(Stop.END),
    ]


def test_calls_keep_their_order_and_their_argument_pieces() -> None:
    events = decode(fixture("tools.sse"))
    assert [event for event in events if isinstance(event, Opened)] == [
        Opened(0, TextBlock()),
        Opened(1, CallBlock("toolu_a", "weather")),
        Opened(2, CallBlock("toolu_b", "clock")),
    ]
    assert text_of(events, 1) == '{"city": "Zürich"}'
    assert text_of(events, 2) == '{"zone":"UTC"}'
    assert events[-1] == Ended(Stop.TOOL)


def test_a_call_without_arguments_has_no_delta() -> None:
    events = decode(fixture("empty_arguments.sse"))
    assert events[1:3] == [Opened(0, CallBlock("toolu_a", "now")), Closed(0)]


AT_START = fixture("input_at_start.sse")
DELTA = b'{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{}"}}\n\n'
STOP = b"event: content_block_stop"


@each_row(
    ("stream", "text"),
    [
        (AT_START, '{"a":1,"b":[2]}'),
        (AT_START.replace(STOP, b"event: content_block_delta\ndata: " + DELTA + STOP), "{}"),  # deltas win
        (AT_START.replace(b'"a":1', rb'"a":"\ud83d"'), r'{"a":"\ufffd","b":[2]}'),  # half a surrogate pair
        (fixture("text.sse").replace(b'"lo, "', rb'"lo\ud83d, "'), "Hello\ufffd, world."),
        (fixture("nameless.sse"), "No names."),  # events without names are read by their type
    ],
)
def test_the_text_of_a_block_is_sent_once(stream: bytes, text: str) -> None:
    assert text_of(decode(stream), 0) == text


@each_row(
    ("name", "deltas", "opaque"),
    [
        ("thinking.sse", [Delta(0, "First, think.")], SIGNATURE),
        ("omitted_thinking.sse", [], Opaque("anthropic", OpaqueForm.SIGNATURE, "b25seQ==", "claude-test")),
        ("redacted.sse", [], Opaque("anthropic", OpaqueForm.REDACTED, "cmVkYWN0ZWQ=", "claude-test")),
    ],
)
def test_thinking_is_sealed_with_its_signature_before_it_closes(name: str, deltas: list[Event], opaque: Opaque) -> None:
    block = [Opened(0, ThinkingBlock()), *deltas, OpaqueAdded(0, opaque), Closed(0)]
    assert join_deltas(decode(fixture(name)))[1 : len(block) + 1] == block


def test_a_signature_in_two_pieces_is_joined() -> None:
    sealed = [event for event in decode(fixture("split_signature.sse")) if isinstance(event, OpaqueAdded)]
    assert sealed == [OpaqueAdded(0, SIGNATURE)]


def test_inessential_fields_may_have_any_type() -> None:
    odd = {"type": "message", "id": None, "model": 5, "usage": {"input_tokens": 2.5}, "stop_details": "no"}
    body = {**odd, "content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn"}
    events = UPSTREAM.decode_whole(msgspec.json.encode(body), ISSUER, Ledger())
    assert (text_of(events, 0), events[-1]) == ("x", Ended(Stop.END))
    start = b"event: message_start\ndata: " + msgspec.json.encode({"type": "message_start", "message": odd}) + b"\n\n"
    assert isinstance(decode(start + REST)[-1], Ended)


TEXT = fixture("text.sse")
START, REST = TEXT[: TEXT.index(b"event: content_block_start")], TEXT[TEXT.index(b"event: content_block_start") :]
BAD_JSON = TEXT.replace(b'{"type":"text_delta","text":"lo, "}', b'{"type":"text_delta","text":')


@each_row(
    ("stream", "kind"),
    [
        (fixture("error.sse"), Kind.OVERLOADED),
        (b'data: {"error":{"message":"no","type":"rate_limit_error"}}\n\n', Kind.RATE_LIMITED),
        (fixture("truncated.sse"), Kind.TRUNCATED),
        (fixture("truncated_after_delta.sse"), Kind.TRUNCATED),
        (BAD_JSON, Kind.CORRUPT),
        (START + START.replace(b"msg_01fake", b"msg_02fake") + REST, Kind.CORRUPT),  # two messages are never merged
    ],
)
def test_a_stream_that_fails_has_its_kind_and_nothing_follows(stream: bytes, kind: Kind) -> None:
    events = decode(stream)
    assert failure_of(events) is kind
    assert [type(event) for event in events].count(Failed) == 1


def test_a_start_that_comes_twice_is_one_start() -> None:
    assert decode(START + START + REST) == decode(TEXT)


def test_a_broken_stream_is_a_failure() -> None:
    assert failure_of(UPSTREAM.decoder(ISSUER, Ledger()).feed(Broken("too large"))) is Kind.CORRUPT


def count_passes(*types: str) -> Usage:
    """What is counted where a reply of 10 and 5 took these passes, each of them 100, 20 and 3 from the cache."""
    one = {"input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 0}
    counts = {"input_tokens": 10, "output_tokens": 5, "iterations": [{"type": type_, **one} for type_ in types]}
    body = {"type": "message", "content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn", "usage": counts}
    (used,) = (
        event
        for event in UPSTREAM.decode_whole(msgspec.json.encode(body), ISSUER, Ledger())
        if isinstance(event, UsageReported)
    )
    return used.usage


def test_compactions_are_counted_beside_the_reply_that_they_made_room_for() -> None:
    assert count_passes("compaction", "message", "advisor_message") == Usage(113, 25, 3)
    assert count_passes("message", "advisor_message") == Usage(10, 5)
    assert count_passes("compaction", "fallback_message") == Usage(10, 5)


def test_cached_input_is_part_of_the_whole_and_the_last_count_wins() -> None:
    events = decode(fixture("cached.sse"))
    counts = Usage(140, 5, 100, 30, 20, 2, service_tier="default")
    assert [event for event in events if isinstance(event, UsageReported)] == [UsageReported(counts)]
    assert isinstance(events[0], Started)
    assert events[0].usage == Usage(140, 1, 100, 30, 20, service_tier="default")


@each_row(
    ("stream", "ended"),
    [
        (fixture("max_tokens.sse"), Ended(Stop.LENGTH)),
        (fixture("cut_arguments.sse"), Ended(Stop.LENGTH)),
        (fixture("stop_sequence.sse"), Ended(Stop.STOP_SEQUENCE, "three")),
        (fixture("context_full.sse"), Ended(Stop.CONTEXT_FULL)),
        (fixture("pause.sse"), Ended(Stop.PAUSE)),
        (fixture("refusal.sse"), Ended(Stop.FILTERED, None, "cyber", "not allowed")),
        (fixture("text.sse").replace(b'"end_turn"', b'"tool_use"'), Ended(Stop.END)),  # there is no call
        (fixture("tools.sse").replace(b'"stop_reason":"tool_use"', b'"stop_reason":"end_turn"'), Ended(Stop.TOOL)),
    ],
)
def test_every_stop_reason_has_its_meaning(stream: bytes, ended: Ended) -> None:
    assert decode(stream)[-1] == ended


def test_an_unknown_stop_reason_is_a_natural_end_with_a_loss() -> None:
    ledger = Ledger()
    events = decode(fixture("text.sse").replace(b'"end_turn"', b'"tired"'), ledger)
    assert events[-1] == Ended(Stop.END)
    assert [loss.path for loss in ledger] == ["/stop_reason"]


def test_blocks_that_have_no_effect_leave_no_trace() -> None:
    events = decode(fixture("empty_blocks.sse"))
    assert events[1:3] == [Opened(0, CallBlock("toolu_a", "go")), Closed(0)]
    assert events[-1] == Ended(Stop.TOOL)


def test_unknown_blocks_events_and_gaps_are_passed_over() -> None:
    ledger = Ledger()
    events = decode(fixture("gaps.sse"), ledger)
    assert [event.block for event in events if isinstance(event, Opened)] == [0, 1]
    assert (text_of(events, 0), text_of(events, 1)) == ("Hi.", "Ho.")
    assert events[-1] == Ended(Stop.END)
    assert [loss.path for loss in ledger] == ["/content/0", "/content/7"]


def test_a_search_is_one_block_with_its_hits_and_citations_cover_their_block() -> None:
    events = decode(fixture("web_search.sse"))
    start_decoder = events[1]
    assert isinstance(start_decoder, Opened)
    hosted = start_decoder.what
    assert isinstance(hosted, HostedBlock)
    assert (hosted.id, hosted.kind, hosted.input) == ("srvtoolu_1", "web_search", {"query": "fact"})
    assert [(hit.url, hit.title) for hit in hosted.results or ()] == [("https://example.com/a", "A")]
    cited = [event.citation for event in events if isinstance(event, CitationAdded)]
    assert [(c.url, c.quoted, c.start, c.end) for c in cited] == [("https://example.com/a", "a fact", 0, 9)]
    used = [event.usage for event in events if isinstance(event, UsageReported)]
    assert [usage.web_searches for usage in used] == [1]


def test_an_unfinished_search_is_still_sent() -> None:
    stream = fixture("web_search.sse")
    head, _, _ = stream.partition(b'event: content_block_start\ndata: {"type":"content_block_start","index":1')
    tail = b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"pause_turn"}}\n\n'
    events = decode(head + tail + b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    start_decoder = [event.what for event in events if isinstance(event, Opened)]
    assert isinstance(start_decoder[0], HostedBlock)
    assert start_decoder[0].results is None
    assert events[-1] == Ended(Stop.PAUSE)


def test_usage_is_known_even_when_the_end_is_missing() -> None:
    assert UsageReported(Usage(input=12, output=7)) in decode(fixture("truncated_after_delta.sse"))


def test_nothing_follows_the_end() -> None:
    stream = fixture("text.sse")
    assert decode(stream + stream + fixture("error.sse")) == decode(stream)


def test_a_nesting_bomb_in_a_block_is_no_crash() -> None:
    bomb = b'{"type":"mcp_tool_use","id":"x","name":"y","input":' + b"[" * 5000 + b"]" * 5000 + b"}"
    data = b'data: {"type":"content_block_start","index":0,"content_block":' + bomb + b"}\n\n"
    stream = data + b'data: {"type":"message_stop"}\n\n'
    assert isinstance(decode(stream)[-1], Ended | Failed)


@each_row("name", STREAMS)
def test_any_cut_of_the_bytes_gives_the_same_events(name: str) -> None:
    assert_any_cut_agrees(ByteDecoder, fixture(f"{name}.sse"), join_deltas)


@each_row("name", STREAMS)
def test_line_endings_do_not_matter(name: str) -> None:
    stream = fixture(f"{name}.sse")
    assert decode(stream.replace(b"\n", b"\r\n")) == decode(stream)


@given(random_cuts(fixture("unicode.sse")))
@settings(max_examples=60)
def test_characters_survive_any_cuts(pieces: list[bytes]) -> None:
    assert text_of(run(ByteDecoder(), pieces), 0) == 'naïve 日本語 👩‍👩‍👧 \u2028"\\\n'


@each_row("name", STREAMS)
def test_the_guard_finds_nothing_to_fix(name: str) -> None:
    events = decode(fixture(f"{name}.sse"))
    assert run_guard(events) == events


def test_any_junk_is_taken_without_an_exception() -> None:
    junk = b'data: {"type":"content_block_start","content_block":[]}\n\ndata: {"type":5}\n\ndata: 7\n\n: x\n\ndata: {'
    assert_total(ByteDecoder, junk)


@given(random_cuts(fixture("web_search.sse")))
@settings(max_examples=40)
def test_a_stream_with_pieces_missing_is_no_crash(pieces: list[bytes]) -> None:
    run(ByteDecoder(), pieces[::2])


def test_many_deltas_cost_linear_time() -> None:
    delta = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"word "}}'
    start = b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}'

    def start_decoder() -> Stage[object, Event]:
        decoder = UPSTREAM.decoder(ISSUER, Ledger())
        list(decoder.feed(Frame("", start)))
        return decoder

    assert_linear(start_decoder, Frame("", delta), 2000)


def test_a_whole_reply_equals_its_stream() -> None:
    events = UPSTREAM.decode_whole(fixture("whole.json"), ISSUER, Ledger())
    kinds = [event.what.__class__.__name__ for event in events if isinstance(event, Opened)]
    assert kinds == ["ThinkingBlock", "ThinkingBlock", "TextBlock", "HostedBlock", "CallBlock", "CallBlock"]
    assert text_of(events, 4) == '{"city":"Zürich"}'
    assert text_of(events, 5) == ""
    assert OpaqueAdded(0, SIGNATURE) in events
    assert events[-2:] == [UsageReported(Usage(140, 9, 100, 30, reasoning=4, web_searches=1)), Ended(Stop.TOOL)]
    assert run_guard(events) == events


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"type":"error","error":{"type":"rate_limit_error","message":"slow"}}', Kind.RATE_LIMITED),
        (b'{"error":"boom"}', Kind.UPSTREAM),
        (b"<html><body>Bad gateway</body></html>", Kind.CORRUPT),
        (b"", Kind.CORRUPT),
        (b"{}", Kind.CORRUPT),
        (b"[" * 100_000, Kind.CORRUPT),
    ],
)
def test_a_whole_body_that_is_no_message_is_a_failure(body: bytes, kind: Kind) -> None:
    assert failure_of(UPSTREAM.decode_whole(body, ISSUER, Ledger())) is kind
