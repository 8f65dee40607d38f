"""Chat streams as servers really send them: bytes in, events out."""

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
    Event,
    Failed,
    Opened,
    RefusalBlock,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    Used,
)
from dragoman.hub.failure import Kind
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import Form
from dragoman.hub.ports import Issuer
from dragoman.hub.reply import Piece, Reply, collect
from dragoman.hub.usage import Usage
from dragoman.protocols.chat.decode import Decoder, whole
from dragoman.stages.guard import Guard
from laws import assert_any_cut_agrees, assert_linear, assert_total, run

FIXTURES = Path(__file__).parents[2] / "fixtures" / "chat"
STREAMS = sorted(FIXTURES.glob("*.sse"))
ISSUER = Issuer("there", "m-1")
USAGE = Usage(input=20, output=7, cache_read=8, cache_write=4, reasoning=3)


class Line:
    """The framer and the decoder, as they stand in a request's line."""

    def __init__(self) -> None:
        self._framer = SseFramer()
        self._decoder = Decoder(ISSUER, Ledger())

    def feed(self, chunk: bytes) -> list[Event]:
        return [event for frame in self._framer.feed(chunk) for event in self._decoder.feed(frame)]

    def finish(self) -> list[Event]:
        rest = [event for frame in self._framer.finish() for event in self._decoder.feed(frame)]
        return rest + list(self._decoder.finish())


def decode(stream: bytes) -> list[Event]:
    return run(Line(), [stream])


def fixture(name: str) -> list[Event]:
    return decode((FIXTURES / name).read_bytes())


def said(*chunks: object, done: bool = True) -> list[Event]:
    """Deltas of one choice as a stream; a str is a finish_reason, a dict with `choices` a whole chunk."""
    return decode(stream(*chunks, done=done))


def stream(*chunks: object, done: bool = True) -> bytes:
    wire = b""
    for chunk in chunks:
        match chunk:
            case str():
                body: object = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": chunk}]}
            case {"choices": _} | {"error": _}:
                body = chunk
            case _:
                body = {"id": "chatcmpl-1", "model": "m-1", "choices": [{"index": 0, "delta": chunk}]}
        wire += b"data: " + msgspec.json.encode(body) + b"\n\n"
    return wire + b"data: [DONE]\n\n" * done


def call(index: int | None = None, call_id: str | None = None, name: str | None = None, args: object = None) -> object:
    function = {"name": name, "arguments": args}
    return {"index": index, "id": call_id, "function": {k: v for k, v in function.items() if v is not None}}


def pieces(events: list[Event]) -> list[Piece]:
    return list(collect(events).pieces)


def calls(events: list[Event]) -> list[tuple[str, str, str]]:
    return [(p.what.id, p.what.name, p.text) for p in pieces(events) if isinstance(p.what, CallBlock)]


def stop_of(events: list[Event]) -> Stop:
    assert isinstance(events[-1], Ended), events[-1]
    return events[-1].stop


def failure_kind(events: list[Event]) -> Kind:
    assert isinstance(events[-1], Failed), events[-1]
    return events[-1].failure.kind


def test_a_text_stream_is_told_event_by_event() -> None:
    assert fixture("text.sse") == [
        Started("chatcmpl-1", "m-1"),
        Opened(0, TextBlock()),
        Delta(0, "Hello"),
        Delta(0, ", world"),
        Closed(0),
        Used(USAGE),
        Ended(Stop.END),
    ]


def test_every_kind_of_character_survives() -> None:
    assert pieces(fixture("unicode.sse")) == [Piece(TextBlock(), 'naïve 😀漢字\u2028 e\u0301 "q" \\ \n')]


def test_interleaved_arguments_reach_their_own_call() -> None:
    events = fixture("tools_interleaved.sse")
    assert calls(events) == [("call_a", "read", '{"a":1}'), ("call_b", "list", "{}")]
    assert events[-4:] == [Closed(0), Closed(1), Used(USAGE), Ended(Stop.TOOL)]


def test_repeated_ids_names_roles_and_legacy_calls_are_told_once() -> None:
    events = fixture("tools_dirty.sse")
    assert calls(events) == [("call__0_get_x", "get", '{"city":"Oslo"}')]
    assert stop_of(events) is Stop.TOOL


def test_a_call_without_arguments_has_no_delta() -> None:
    assert fixture("empty_arguments.sse")[1:] == [
        Opened(0, CallBlock("call_a", "now")),
        Closed(0),
        Ended(Stop.TOOL),
    ]


def test_text_and_calls_in_one_chunk_are_split_and_later_text_leaves_the_calls_open() -> None:
    events = fixture("mixed.sse")
    assert [type(event.what) for event in events if isinstance(event, Opened)] == [
        TextBlock,
        CallBlock,
        TextBlock,
        CallBlock,
    ]
    assert events.index(Closed(1)) > events.index(Opened(3, CallBlock("call_b", "read")))
    assert [piece.text for piece in pieces(events)] == ["I will look.", "{}", "\n", "{}"]


def test_indices_may_be_sparse_or_start_anywhere() -> None:
    events = said(
        {"tool_calls": [call(4, "a", "f", "1")]},
        {"tool_calls": [call(2, "b", "g", "2")]},
        {"tool_calls": [call(4, args="3")]},
    )
    assert calls(events) == [("a", "f", "13"), ("b", "g", "2")]


def test_without_an_index_the_id_or_a_new_name_tells_the_call() -> None:
    events = said(
        {"tool_calls": [call(None, "a", "f", "1")]},
        {"tool_calls": [call(None, "b", "f", "2")]},
        {"tool_calls": [call(None, "a", None, "3")]},
        {"tool_calls": [call(None, None, None, "4")]},
        {"tool_calls": [call(None, None, "g", "5")]},
    )
    assert calls(events) == [("a", "f", "13"), ("b", "f", "24"), ("call_chatcmpl-1_2", "g", "5")]


def test_one_index_for_all_parallel_calls_is_understood() -> None:
    events = said({"tool_calls": [call(0, "a", "f", "{}")]}, {"tool_calls": [call(0, "b", "f", "{}")]})
    assert calls(events) == [("a", "f", "{}"), ("b", "f", "{}")]


def test_two_entries_for_one_index_in_one_chunk_are_joined_in_order() -> None:
    events = said({"tool_calls": [call(0, "a", "f", '{"x"'), call(0, args=":1}")]})
    assert calls(events) == [("a", "f", '{"x":1}')]


def test_arguments_before_the_name_are_held() -> None:
    events = said({"tool_calls": [call(0, "a", None, "{")]}, {"tool_calls": [call(0, None, "f", "}")]})
    assert calls(events) == [("a", "f", "{}")]


def test_a_call_that_never_gets_a_name_is_corrupt() -> None:
    assert failure_kind(said({"tool_calls": [call(0, "a", None, "{")]}, "tool_calls")) is Kind.CORRUPT


def test_an_object_as_arguments_is_serialised() -> None:
    assert calls(said({"tool_calls": [call(0, "a", "f", {"x": [1]})]})) == [("a", "f", '{"x":[1]}')]


def test_a_legacy_function_call_is_a_call() -> None:
    events = said(
        {"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"arguments": "}"}}, "function_call"
    )
    assert calls(events) == [("call_chatcmpl-1_0", "f", "{}")]
    assert stop_of(events) is Stop.TOOL


def test_a_custom_call_carries_raw_input() -> None:
    assert pieces(fixture("custom_call.sse")) == [
        Piece(CallBlock("call_a", "apply_patch", custom=True), "*** Begin Patch\n")
    ]


@pytest.mark.parametrize(
    ("finish", "has_call", "stop"),
    [
        ("stop", True, Stop.TOOL),
        ("tool_calls", False, Stop.END),
        ("function_call", False, Stop.END),
        ("length", True, Stop.LENGTH),
        ("content_filter", False, Stop.FILTERED),
        ("max_tokens", False, Stop.LENGTH),
        ("something new", False, Stop.END),
    ],
)
def test_the_stop_agrees_with_what_was_said(finish: str, has_call: bool, stop: Stop) -> None:
    first = {"tool_calls": [call(0, "a", "f", "{}")]} if has_call else {"content": "x"}
    assert stop_of(said(first, finish)) is stop


def test_a_matched_stop_string_is_told() -> None:
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "END"}]}
    assert said({"content": "x"}, last)[-1] == Ended(Stop.STOP_SEQUENCE, sequence="END")


def test_cut_arguments_at_the_cap_are_forwarded_as_they_are() -> None:
    events = fixture("length.sse")
    assert calls(events) == [("call_a", "write", '{"text": "lon')]
    assert stop_of(events) is Stop.LENGTH


def test_the_first_empty_deltas_open_nothing() -> None:
    events = said({"role": "assistant", "content": ""}, {"content": ""}, {"content": "x"}, {"content": ""}, "stop")
    assert [event for event in events if isinstance(event, Opened | Delta)] == [Opened(0, TextBlock()), Delta(0, "x")]


def test_a_null_delta_and_an_empty_list_of_choices_say_nothing() -> None:
    chunk = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": None, "finish_reason": None}]}
    assert pieces(said({"choices": []}, chunk, {"content": "x"}, "stop")) == [Piece(TextBlock(), "x")]


def test_azures_first_chunk_does_not_begin_the_reply() -> None:
    assert fixture("azure.sse")[0] == Started("chatcmpl-1", "m-1")


def test_usage_on_every_chunk_counts_once_and_the_last_wins() -> None:
    events = fixture("usage_everywhere.sse")
    assert [event for event in events if isinstance(event, Used)] == [Used(USAGE)]


def test_usage_after_the_finish_is_waited_for() -> None:
    line = Line()
    text = (FIXTURES / "text.sse").read_bytes()
    finish = text.index(b'data: {"id": "chatcmpl-1"', text.index(b"world"))
    usage = text.index(b'"choices": []')
    before = line.feed(text[:usage])
    assert finish < usage
    assert not any(isinstance(event, Ended) for event in before)
    assert isinstance(line.feed(text[usage:])[-1], Ended)


def test_deepseeks_cache_hits_are_cached_tokens() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_cache_hit_tokens": 4}
    events = said({"content": "x"}, "stop", {"choices": [], "usage": usage})
    assert events[-2] == Used(Usage(input=5, output=1, cache_read=4))


def test_reasoning_content_comes_before_the_text_in_its_own_block() -> None:
    assert pieces(fixture("reasoning_content.sse")) == [
        Piece(ThinkingBlock(), "Let me think."),
        Piece(TextBlock(), "Yes."),
    ]
    events = fixture("reasoning_content.sse")
    assert events.index(Closed(0)) < events.index(Opened(1, TextBlock()))


def test_reasoning_and_its_details_are_told_once_and_the_signature_is_kept() -> None:
    thought, text = pieces(fixture("reasoning_details.sse"))
    assert (thought.text, text.text) == ("Let me think.", "Yes.")
    assert thought.opaque is not None
    assert (thought.opaque.issuer, thought.opaque.form, thought.opaque.model) == ("there", Form.DETAIL, "m-1")
    assert msgspec.json.decode(thought.opaque.payload) == {
        "type": "reasoning.text",
        "text": "Let me think.",
        "signature": "c2lnbmF0dXJl",
        "format": "anthropic-claude-v1",
        "index": 0,
    }


def test_details_that_follow_the_plain_thought_repeat_it() -> None:
    signed = {"type": "reasoning.text", "text": "Let me think.", "signature": "c2ln", "index": 0}
    plain = [{"reasoning_content": "Let me "}, {"reasoning_content": "think."}]
    thought, text = pieces(said(*plain, {"reasoning_details": [signed]}, {"content": "Yes."}))
    assert (thought.text, text.text) == ("Let me think.", "Yes.")
    assert thought.opaque is not None
    assert msgspec.json.decode(thought.opaque.payload) == signed


def test_details_alone_tell_the_thought() -> None:
    detail = {"type": "reasoning.summary", "summary": "Short.", "index": 0}
    sealed = {"type": "reasoning.encrypted", "data": "ZW5j", "index": 1}
    thought, text = pieces(said({"reasoning_details": [detail]}, {"reasoning_details": [sealed]}, {"content": "x"}))
    assert (thought.text, text.text) == ("Short.", "x")
    assert thought.opaque is not None
    assert msgspec.json.decode(thought.opaque.payload) == sealed


def test_two_encrypted_details_are_two_thoughts() -> None:
    sealed = [{"type": "reasoning.encrypted", "data": data, "index": n} for n, data in enumerate(("YQ==", "Yg=="))]
    first, second = pieces(said({"reasoning_details": sealed}, "stop"))
    assert [msgspec.json.decode(p.opaque.payload)["data"] for p in (first, second) if p.opaque] == ["YQ==", "Yg=="]


def test_thinking_blocks_are_told_once_with_signature_and_redaction() -> None:
    thought, redacted, text = pieces(fixture("thinking_blocks.sse"))
    assert (thought.text, redacted.text, text.text) == ("Hmm.", "", "Done.")
    assert thought.opaque is not None
    assert redacted.opaque is not None
    assert (thought.opaque.form, thought.opaque.payload) == (Form.SIGNATURE, "c2lnbmF0dXJl")
    assert (redacted.opaque.form, redacted.opaque.payload) == (Form.REDACTED, "cmVkYWN0ZWQ=")


def test_thoughts_after_text_open_a_new_block_and_lose_no_delta() -> None:
    events = said({"reasoning": "a"}, {"content": "b"}, {"reasoning": "c"}, {"content": "d"}, "stop")
    assert [piece.text for piece in pieces(events)] == ["a", "b", "c", "d"]


def test_content_as_parts_is_read() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "yes"}]
    assert pieces(said({"content": parts}, "stop")) == [Piece(ThinkingBlock(), "hm"), Piece(TextBlock(), "yes")]


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


def test_only_the_first_choice_is_translated_and_the_ledger_says_so() -> None:
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
    assert failure_kind(said({"error": error}, done=False)) is kind


def test_an_error_event_with_a_flat_body_fails() -> None:
    events = decode(b'event: error\ndata: {"message":"overloaded","type":"overloaded_error"}\n\n')
    assert failure_kind(events) is Kind.OVERLOADED


def test_openrouters_error_finish_is_a_failure() -> None:
    assert failure_kind(said({"content": "x"}, "error")) is Kind.UPSTREAM


def test_the_end_without_done_is_fine_after_the_finish() -> None:
    assert stop_of(said({"content": "x"}, "stop", done=False)) is Stop.END


def test_the_end_before_the_finish_is_truncation() -> None:
    events = fixture("truncated.sse")
    assert failure_kind(events) is Kind.TRUNCATED
    assert [event.text for event in events if isinstance(event, Delta)] == ["Par", "tial"]


def test_done_without_a_finish_ends_what_is_open() -> None:
    assert said({"tool_calls": [call(0, "a", "f", "{}")]})[-2:] == [Closed(0), Ended(Stop.TOOL)]


def test_a_stream_of_nothing_is_truncated() -> None:
    assert failure_kind(decode(b"")) is Kind.TRUNCATED
    assert failure_kind(decode(b"data: [DONE]\n\n")) is Kind.TRUNCATED


def test_what_follows_done_is_ignored() -> None:
    assert decode(stream({"content": "x"}, "stop") + stream({"content": "y"})) == said({"content": "x"}, "stop")


def test_a_chunk_cut_by_the_end_is_truncation_and_in_the_middle_corruption() -> None:
    cut = stream({"content": "x"}, done=False)[:-20]
    assert failure_kind(decode(stream({"content": "x"}, done=False) + cut)) is Kind.TRUNCATED
    assert failure_kind(decode(cut + b"\n\n" + stream({"content": "x"}, "stop"))) is Kind.CORRUPT


def test_a_cut_after_the_finish_costs_nothing() -> None:
    whole_stream = stream({"content": "x"}, "stop")
    for cut in range(1, 15):
        assert stop_of(decode(whole_stream[:-cut])) is Stop.END


@pytest.mark.parametrize("junk", [b"data: nonsense\n\n", b'data: {"choices": 3}\n\n', b"data: []\n\n"])
def test_what_is_not_chat_is_corrupt_and_silent_afterwards(junk: bytes) -> None:
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

    assert failure_kind(said(chunk("one", "a"), chunk("two", "b"), "stop")) is Kind.CORRUPT
    assert said(chunk("", ""), chunk("one", "a"), chunk("", "b"), chunk("one", "c"))[-1] == Ended(Stop.END)


def test_a_model_alias_that_changes_is_nothing() -> None:
    def chunk(model: str) -> object:
        return {"id": "x", "model": model, "choices": [{"index": 0, "delta": {"content": "a"}}]}

    assert stop_of(said(chunk("m"), chunk("m-2026"), done=True)) is Stop.END


def test_unknown_fields_and_events_are_ignored() -> None:
    extra = {"choices": [{"index": 0, "delta": {"content": "x", "sparkle": 1}}], "obfuscation": "zz", "x": {"y": []}}
    wire = b"event: sparkle\ndata: {}\n\n" + stream(extra, "stop")
    assert pieces(decode(wire)) == [Piece(TextBlock(), "x")]


def test_a_whole_reply_means_the_same_as_its_stream() -> None:
    events = whole((FIXTURES / "whole.json").read_bytes(), ISSUER, Ledger())
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
    assert failure_kind(whole(body, ISSUER, Ledger())) is kind


def test_a_whole_reply_without_a_reason_has_ended() -> None:
    body = b'{"id":"x","choices":[{"message":{"role":"assistant","content":"hi"}}]}'
    assert whole(body, ISSUER, Ledger())[-1] == Ended(Stop.END)


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_any_cut_of_a_stream_gives_the_same_events(path: Path) -> None:
    assert_any_cut_agrees(Line, path.read_bytes())


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
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
def test_any_json_gives_one_end(deltas: list[dict[str, object]]) -> None:
    events = said(*[{"choices": [{"index": 0, "delta": delta}]} for delta in deltas])
    assert sum(isinstance(event, Ended | Failed) for event in events) == 1


def test_a_long_stream_costs_linear_time() -> None:
    assert_linear(Line, stream({"content": "word "}, done=False), 500)


def test_reply_is_a_fold() -> None:
    reply = collect(fixture("text.sse"))
    assert reply == Reply("chatcmpl-1", "m-1", (Piece(TextBlock(), "Hello, world"),), USAGE, Ended(Stop.END))


def test_empty_events_keep_the_connection_and_say_nothing() -> None:
    assert decode(b"data: \n\ndata:\n\n" + stream({"content": "x"}, "stop")) == said({"content": "x"}, "stop")


def test_an_error_event_in_plain_words_fails_with_them() -> None:
    events = decode(b"event: error\ndata: it broke\n\n")
    assert isinstance(events[-1], Failed)
    assert events[-1].failure.message == "it broke"


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_the_guard_has_nothing_to_mend(path: Path) -> None:
    trips: list[str] = []
    events = decode(path.read_bytes())
    assert run(Guard(trips.append), events) == events
    assert trips == []
