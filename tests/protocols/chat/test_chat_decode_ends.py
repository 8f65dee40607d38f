"""Chat's replies, read as events: ends, errors and laws."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.framing.sse import Broken, SseFramer
from dragoman.hub.events import (
    CallBlock,
    Closed,
    Delta,
    Ended,
    Failed,
    Piece,
    RefusalBlock,
    Reply,
    Stop,
    TextBlock,
    ThinkingBlock,
    collect,
)
from dragoman.hub.failure import Kind
from dragoman.hub.loss import Ledger
from dragoman.protocols.chat.decode import Decoder
from dragoman.protocols.chat.decode_whole import decode_whole
from dragoman.stages.guard import Guard
from laws import assert_any_cut_agrees, assert_linear, assert_total, run
from protocols.chat.chat_decoding import (
    FIXTURES,
    ISSUER,
    STREAMS,
    USAGE,
    Line,
    call,
    decode,
    decode_chunks,
    failure_kind,
    fixture,
    pieces,
    stop_of,
    stream,
)
from tables import each_row
from wire_json import JsonObject


def test_reasoning_after_text_opens_a_new_block_and_loses_no_delta() -> None:
    events = decode_chunks({"reasoning": "a"}, {"content": "b"}, {"reasoning": "c"}, {"content": "d"}, "stop")
    assert [piece.text for piece in pieces(events)] == ["a", "b", "c", "d"]


def test_content_as_parts_is_read() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "yes"}]
    assert pieces(decode_chunks({"content": parts}, "stop")) == [
        Piece(ThinkingBlock(), "hm"),
        Piece(TextBlock(), "yes"),
    ]


def test_a_refusal_is_a_block_of_its_own() -> None:
    assert pieces(fixture("refusal.sse")) == [Piece(RefusalBlock(), "I cannot help.")]


def test_a_filter_midway_keeps_the_text_that_was_sent() -> None:
    events = fixture("filtered.sse")
    assert pieces(events) == [Piece(TextBlock(), "It is")]
    assert stop_of(events) is Stop.FILTERED


def test_log_probabilities_ride_on_their_delta() -> None:
    (piece,) = pieces(fixture("logprobs.sse"))
    assert piece.logprobs is not None
    assert [token["token"] for token in msgspec.json.decode(piece.logprobs)] == ["Hi", "!"]


def test_only_the_first_choice_is_translated_and_recorded() -> None:
    ledger = Ledger()
    decoder = Decoder(ISSUER, ledger)
    two = {"choices": [{"index": 1, "delta": {"content": "b"}}, {"index": 0, "delta": {"content": "a"}}]}
    wire = stream(two, "stop")
    events = [event for frame in SseFramer().feed(wire) for event in decoder.feed(frame)]
    assert pieces(events) == [Piece(TextBlock(), "a")]
    assert [loss.path for loss in ledger] == ["/choices/1"]


def test_an_error_chunk_fails_with_the_key_masked() -> None:
    events = fixture("error.sse")
    assert isinstance(events[-1], Failed)
    assert events[-1].failure.kind is Kind.UPSTREAM
    assert events[-1].failure.message == "The server had an error, key [hidden]"
    assert not any(isinstance(event, Closed) for event in events)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "slow down", "code": "rate_limit_exceeded"}, Kind.RATE_LIMITED),
        ({"message": "busy", "code": 529}, Kind.OVERLOADED),
        ({"message": "no money", "type": "insufficient_quota"}, Kind.QUOTA),
        ("it broke", Kind.UPSTREAM),
    ],
)
def test_an_error_inside_a_200_stream_has_its_own_kind(error: object, kind: Kind) -> None:
    assert failure_kind(decode_chunks({"error": error}, done=False)) is kind


def test_an_error_event_with_a_flat_body_fails() -> None:
    events = decode(b'event: error\ndata: {"message":"overloaded","type":"overloaded_error"}\n\n')
    assert failure_kind(events) is Kind.OVERLOADED


def test_openrouters_error_finish_is_a_failure() -> None:
    assert failure_kind(decode_chunks({"content": "x"}, "error")) is Kind.UPSTREAM


def test_the_end_without_done_is_fine_after_the_finish() -> None:
    assert stop_of(decode_chunks({"content": "x"}, "stop", done=False)) is Stop.END


def test_the_end_before_the_finish_is_truncation() -> None:
    events = fixture("truncated.sse")
    assert failure_kind(events) is Kind.TRUNCATED
    assert [event.text for event in events if isinstance(event, Delta)] == ["Par", "tial"]


def test_done_without_a_finish_ends_what_is_open() -> None:
    assert decode_chunks({"tool_calls": [call(0, "a", "f", "{}")]})[-2:] == [Closed(0), Ended(Stop.TOOL)]


def test_a_stream_of_nothing_is_truncated() -> None:
    assert failure_kind(decode(b"")) is Kind.TRUNCATED
    assert failure_kind(decode(b"data: [DONE]\n\n")) is Kind.TRUNCATED


def test_what_follows_done_is_ignored() -> None:
    assert decode(stream({"content": "x"}, "stop") + stream({"content": "y"})) == decode_chunks(
        {"content": "x"}, "stop"
    )


def test_a_chunk_cut_by_the_end_is_truncation_and_in_the_middle_corruption() -> None:
    cut = stream({"content": "x"}, done=False)[:-20]
    assert failure_kind(decode(stream({"content": "x"}, done=False) + cut)) is Kind.TRUNCATED
    assert failure_kind(decode(cut + b"\n\n" + stream({"content": "x"}, "stop"))) is Kind.CORRUPT


def test_a_cut_after_the_finish_costs_nothing() -> None:
    whole_stream = stream({"content": "x"}, "stop")
    for cut in range(1, 15):
        assert stop_of(decode(whole_stream[:-cut])) is Stop.END


@pytest.mark.parametrize("junk", [b"data: nonsense\n\n", b'data: {"choices": 3}\n\n', b"data: []\n\n"])
def test_input_that_is_not_chat_is_corrupt_and_nothing_follows(junk: bytes) -> None:
    assert failure_kind(decode(stream({"content": "x"}, done=False) + junk + stream("stop"))) is Kind.CORRUPT


def test_a_broken_frame_is_corrupt() -> None:
    decoder = Decoder(ISSUER, Ledger())
    assert failure_kind(list(decoder.feed(Broken("too large")))) is Kind.CORRUPT
    assert list(decoder.finish()) == []


def test_half_a_surrogate_pair_costs_one_character() -> None:
    wire = b'data: {"choices":[{"index":0,"delta":{"content":"a\\ud83d"}}]}\n\n' + stream("stop")
    assert pieces(decode(wire)) == [Piece(TextBlock(), "a\ufffd")]


def test_an_id_that_changes_after_content_is_corrupt() -> None:
    def chunk(reply: str, text: str) -> object:
        return {"id": reply, "choices": [{"index": 0, "delta": {"content": text}}]}

    assert failure_kind(decode_chunks(chunk("one", "a"), chunk("two", "b"), "stop")) is Kind.CORRUPT
    assert decode_chunks(chunk("", ""), chunk("one", "a"), chunk("", "b"), chunk("one", "c"))[-1] == Ended(Stop.END)


def test_a_model_alias_that_changes_is_nothing() -> None:
    def chunk(model: str) -> object:
        return {"id": "x", "model": model, "choices": [{"index": 0, "delta": {"content": "a"}}]}

    assert stop_of(decode_chunks(chunk("m"), chunk("m-2026"), done=True)) is Stop.END
    assert stop_of(decode_chunks(chunk("vendor/m"), chunk("m"), chunk(""), done=True)) is Stop.END


def test_another_model_in_mid_stream_is_corrupt() -> None:
    def chunk(model: str, text: str = "a") -> object:
        return {"id": "x", "model": model, "choices": [{"index": 0, "delta": {"content": text}}]}

    assert failure_kind(decode_chunks(chunk("big"), chunk("small"), "stop")) is Kind.CORRUPT
    assert stop_of(decode_chunks(chunk("router", ""), chunk("small"), chunk("small"), done=True)) is Stop.END


def test_unknown_fields_and_events_are_ignored() -> None:
    extra = {"choices": [{"index": 0, "delta": {"content": "x", "sparkle": 1}}], "obfuscation": "zz", "x": {"y": []}}
    wire = b"event: sparkle\ndata: {}\n\n" + stream(extra, "stop")
    assert pieces(decode(wire)) == [Piece(TextBlock(), "x")]


def test_a_whole_reply_means_the_same_as_its_stream() -> None:
    events = decode_whole((FIXTURES / "whole.json").read_bytes(), ISSUER, Ledger())
    reply = collect(events)
    assert [(type(piece.what), piece.text) for piece in reply.pieces] == [
        (ThinkingBlock, "Let me think."),
        (TextBlock, "See here."),
        (CallBlock, '{"p":1}'),
        (CallBlock, '{"p":2}'),
    ]
    (citation,) = reply.pieces[1].citations
    assert (citation.url, citation.title, citation.start, citation.end) == ("https://a.example/", "A", 4, 8)
    assert reply.usage == msgspec.structs.replace(USAGE, service_tier="default")
    assert reply.end == Ended(Stop.TOOL)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<html><body>Bad gateway</body></html>", Kind.CORRUPT),
        (b"", Kind.CORRUPT),
        (b"[]", Kind.CORRUPT),
        (b'{"id":"x","choices":[]}', Kind.CORRUPT),
        (b'{"error":{"message":"no","code":"context_length_exceeded"}}', Kind.CONTEXT_TOO_LONG),
        (b'{"object":"error","message":"too many requests","code":429}', Kind.RATE_LIMITED),
    ],
)
def test_a_body_that_is_no_reply_fails(body: bytes, kind: Kind) -> None:
    assert failure_kind(decode_whole(body, ISSUER, Ledger())) is kind


def test_a_whole_reply_without_a_reason_has_ended() -> None:
    body = b'{"id":"x","choices":[{"message":{"role":"assistant","content":"hi"}}]}'
    assert decode_whole(body, ISSUER, Ledger())[-1] == Ended(Stop.END)


@each_row("path", STREAMS)
def test_any_cut_of_a_stream_gives_the_same_events(path: Path) -> None:
    assert_any_cut_agrees(Line, path.read_bytes())


@each_row("path", STREAMS)
def test_a_stream_may_end_anywhere_and_ends_once(path: Path) -> None:
    data = path.read_bytes()
    for end in range(0, len(data), 3):
        events = decode(data[:end])
        assert sum(isinstance(event, Ended | Failed) for event in events) == 1
        assert isinstance(events[-1], Ended | Failed)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_terminate(junk: bytes) -> None:
    assert_total(Line, b"data: " + junk + b"\n\n" + junk)


_LEAF = st.one_of(st.none(), st.booleans(), st.integers(-1, 3), st.text(max_size=3))


_KEYS = st.sampled_from(
    ["choices", "delta", "message", "content", "tool_calls", "function", "arguments", "index", "id", "name", "type",
     "reasoning_details", "thinking_blocks", "usage", "error", "finish_reason", "logprobs", "annotations", "text"]
)  # fmt: skip


_JSON = st.recursive(_LEAF, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_KEYS, inner, max_size=4))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(_KEYS, _JSON, max_size=4), max_size=4))
def test_any_json_gives_one_end(deltas: list[JsonObject]) -> None:
    events = decode_chunks(*[{"choices": [{"index": 0, "delta": delta}]} for delta in deltas])
    assert sum(isinstance(event, Ended | Failed) for event in events) == 1


def test_a_long_stream_costs_linear_time() -> None:
    assert_linear(Line, stream({"content": "word "}, done=False), 500)


def test_reply_is_a_fold() -> None:
    reply = collect(fixture("text.sse"))
    assert reply == Reply("chatcmpl-1", "m-1", (Piece(TextBlock(), "Hello, world"),), USAGE, Ended(Stop.END))


def test_empty_events_keep_the_connection_and_have_no_effect() -> None:
    assert decode(b"data: \n\ndata:\n\n" + stream({"content": "x"}, "stop")) == decode_chunks({"content": "x"}, "stop")


def test_an_error_event_in_plain_text_fails_with_that_text() -> None:
    events = decode(b"event: error\ndata: it broke\n\n")
    assert isinstance(events[-1], Failed)
    assert events[-1].failure.message == "it broke"


@each_row("path", STREAMS)
def test_the_guard_has_nothing_to_fix(path: Path) -> None:
    trips: list[str] = []
    events = decode(path.read_bytes())
    assert run(Guard(trips.append), events) == events
    assert trips == []
