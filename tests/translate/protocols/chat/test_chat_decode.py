"""Chat's replies, read as events."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.framing.sse import Broken, SseFramer
from dragoman.translate.hub.events import (
    CallBlock,
    Closed,
    Delta,
    Ended,
    Failed,
    Opened,
    Piece,
    RefusalBlock,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    UsageReported,
    collect,
)
from dragoman.translate.hub.failure import Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import OpaqueForm
from dragoman.translate.hub.ports import Issuer
from dragoman.translate.hub.usage import Usage
from dragoman.translate.protocols.chat.decode import Decoder
from dragoman.translate.protocols.chat.decode_whole import decode_whole
from dragoman.translate.stages.guard import Guard
from laws import assert_any_cut_agrees, assert_linear, assert_total, run
from tables import each_row
from translate.protocols.chat.chat_decoding import (
    FIXTURES,
    ISSUER,
    STREAMS,
    USAGE,
    Line,
    call,
    calls,
    decode,
    decode_chunks,
    failure_kind,
    fixture,
    pieces,
    stop_of,
    stream,
)
from wire_json import JsonObject


def test_a_text_stream_is_decoded_event_by_event() -> None:
    assert fixture("text.sse") == [
        Started("chatcmpl-1", "m-1"),
        Opened(0, TextBlock()),
        Delta(0, "Hello"),
        Delta(0, ", world"),
        Closed(0),
        UsageReported(USAGE),
        Ended(Stop.END),
    ]


@each_row(
    ("name", "expected", "stop"),
    [
        ("unicode.sse", Piece(TextBlock(), 'naïve 😀漢字\u2028 e\u0301 "q" \\ \n'), Stop.END),
        ("custom_call.sse", Piece(CallBlock("call_a", "apply_patch", custom=True), "*** Begin Patch\n"), Stop.TOOL),
        ("refusal.sse", Piece(RefusalBlock(), "I cannot help."), Stop.END),
        ("filtered.sse", Piece(TextBlock(), "It is"), Stop.FILTERED),
        ("length.sse", Piece(CallBlock("call_a", "write"), '{"text": "lon'), Stop.LENGTH),
    ],
)
def test_a_reply_of_one_block_is_read_whole(name: str, expected: Piece, stop: Stop) -> None:
    events = fixture(name)
    assert pieces(events) == [expected]
    assert stop_of(events) is stop


PARTS = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "yes"}]


@each_row(
    ("deltas", "expected"),
    [
        ([{"reasoning": "a"}, {"content": "b"}, {"reasoning": "c"}, {"content": "d"}], "TaXbTcXd"),
        ([{"content": PARTS}], "ThmXyes"),
        ([{"role": "assistant", "content": ""}, {"content": ""}, {"content": "x"}, {"content": ""}], "Xx"),
        ([{"choices": []}, {"choices": [{"index": 0, "delta": None, "finish_reason": None}]}, {"content": "x"}], "Xx"),
    ],
)
def test_text_and_reasoning_are_blocks_in_their_order(deltas: list[object], expected: str) -> None:
    """T stands before a block of reasoning, X before one of text."""
    letters = {ThinkingBlock(): "T", TextBlock(): "X"}
    assert "".join(letters[piece.what] + piece.text for piece in pieces(decode_chunks(*deltas, "stop"))) == expected


def test_interleaved_arguments_reach_their_own_call() -> None:
    events = fixture("tools_interleaved.sse")
    assert calls(events) == [("call_a", "read", '{"a":1}'), ("call_b", "list", "{}")]
    assert events[-4:] == [Closed(0), Closed(1), UsageReported(USAGE), Ended(Stop.TOOL)]


def test_repeated_ids_names_roles_and_legacy_calls_are_sent_once() -> None:
    events = fixture("tools_dirty.sse")
    assert calls(events) == [("call__0_get_x", "get", '{"city":"Oslo"}')]
    assert stop_of(events) is Stop.TOOL


def test_a_call_without_arguments_has_no_delta() -> None:
    assert fixture("empty_arguments.sse")[1:] == [Opened(0, CallBlock("call_a", "now")), Closed(0), Ended(Stop.TOOL)]


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


@each_row(
    ("chunks", "expected"),
    [  # each chunk is the list of its entries
        (
            [[call(4, "a", "f", "1")], [call(2, "b", "g", "2")], [call(4, args="3")]],
            [("a", "f", "13"), ("b", "g", "2")],
        ),
        (  # without an index, the id or a new name identifies the call
            [
                [call(None, "a", "f", "1")],
                [call(None, "b", "f", "2")],
                [call(None, "a", None, "3")],
                [call(None, None, None, "4")],
                [call(None, None, "g", "5")],
            ],
            [("a", "f", "13"), ("b", "f", "24"), ("call_chatcmpl-1_2", "g", "5")],
        ),
        ([[call(0, "a", "f", "{}")], [call(0, "b", "f", "{}")]], [("a", "f", "{}"), ("b", "f", "{}")]),
        ([[call(0, "a", "f", '{"x"'), call(0, args=":1}")]], [("a", "f", '{"x":1}')]),
        ([[call(0, "a", None, "{")], [call(0, None, "f", "}")]], [("a", "f", "{}")]),  # held until the name comes
        ([[call(0, "a", "f", {"x": [1]})]], [("a", "f", '{"x":[1]}')]),
    ],
)
def test_pieces_of_calls_find_their_call(chunks: list[list[object]], expected: list[tuple[str, str, str]]) -> None:
    assert calls(decode_chunks(*({"tool_calls": entries} for entries in chunks))) == expected


def chunk(text: str = "a", **head: object) -> JsonObject:
    return {**head, "choices": [{"index": 0, "delta": {"content": text}}]}


X = stream({"content": "x"}, done=False)
RATE_LIMIT = {"message": "slow down", "code": "rate_limit_exceeded"}


@each_row(
    ("wire", "kind"),
    [
        (stream({"error": RATE_LIMIT}, done=False), Kind.RATE_LIMITED),
        (stream({"error": {"message": "busy", "code": 529}}, done=False), Kind.OVERLOADED),
        (stream({"error": {"message": "no money", "type": "insufficient_quota"}}, done=False), Kind.QUOTA),
        (stream({"error": "it broke"}, done=False), Kind.UPSTREAM),
        (b'event: error\ndata: {"message":"overloaded","type":"overloaded_error"}\n\n', Kind.OVERLOADED),
        (X + stream("error"), Kind.UPSTREAM),  # OpenRouter's
        (b"", Kind.TRUNCATED),
        (b"data: [DONE]\n\n", Kind.TRUNCATED),
        (X + X[:-20], Kind.TRUNCATED),
        (X[:-20] + b"\n\n" + X + stream("stop"), Kind.CORRUPT),
        (X + b"data: nonsense\n\n" + stream("stop"), Kind.CORRUPT),
        (X + b'data: {"choices": 3}\n\n' + stream("stop"), Kind.CORRUPT),
        (X + b"data: []\n\n" + stream("stop"), Kind.CORRUPT),
        (stream({"tool_calls": [call(0, "a", None, "{")]}, "tool_calls"), Kind.CORRUPT),  # it never gets a name
        (stream(chunk(id="one"), chunk(id="two"), "stop"), Kind.CORRUPT),
        (stream(chunk(id="x", model="big"), chunk(id="x", model="small"), "stop"), Kind.CORRUPT),
    ],
)
def test_a_stream_that_fails_has_its_kind(wire: bytes, kind: Kind) -> None:
    assert failure_kind(decode(wire)) is kind


ODD_CHOICE = {"index": 0, "delta": {"content": "x", "annotations": {}, "sparkle": 1}, "logprobs": 7}
ODD_HEAD: JsonObject = {"id": 5, "model": None, "service_tier": [], "usage": "many", "obfuscation": "zz"}


@each_row(
    ("wire", "text"),
    [
        (X + stream("stop", done=False), "x"),
        (X + stream("stop") + stream({"content": "y"}), "x"),  # what follows is ignored
        (b"data: \n\ndata:\n\n" + X + stream("stop"), "x"),  # empty events keep the connection
        (b"event: sparkle\ndata: {}\n\n" + stream({**ODD_HEAD, "choices": [ODD_CHOICE]}, "stop"), "x"),
        (b'data: {"choices":[{"index":0,"delta":{"content":"a\\ud83d"}}]}\n\n' + stream("stop"), "a\ufffd"),
        (stream(chunk("", id=""), chunk(id="one"), chunk("b", id=""), chunk("c", id="one")), "abc"),
        (stream(chunk(id="x", model="m"), chunk(id="x", model="m-2026")), "aa"),
        (stream(chunk(id="x", model="v/m"), chunk(id="x", model="m"), chunk(id="x", model="")), "aaa"),
        (stream(chunk("", id="x", model="router"), chunk(id="x", model="small"), chunk(id="x", model="small")), "aa"),
    ],
)
def test_what_is_odd_and_harmless_changes_no_text(wire: bytes, text: str) -> None:
    events = decode(wire)
    assert pieces(events) == [Piece(TextBlock(), text)]
    assert stop_of(events) is Stop.END


def test_a_legacy_function_call_is_a_call() -> None:
    events = decode_chunks(
        {"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"arguments": "}"}}, "function_call"
    )
    assert calls(events) == [("call_chatcmpl-1_0", "f", "{}")]
    assert stop_of(events) is Stop.TOOL


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
def test_the_stop_agrees_with_what_was_sent(finish: str, has_call: bool, stop: Stop) -> None:
    first = {"tool_calls": [call(0, "a", "f", "{}")]} if has_call else {"content": "x"}
    assert stop_of(decode_chunks(first, finish)) is stop


def test_a_matched_stop_string_is_recorded() -> None:
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "END"}]}
    assert decode_chunks({"content": "x"}, last)[-1] == Ended(Stop.STOP_SEQUENCE, sequence="END")


def test_the_first_empty_deltas_open_nothing() -> None:
    events = decode_chunks({"role": "assistant", "content": ""}, {"content": "x"}, {"content": ""}, "stop")
    assert [event for event in events if isinstance(event, Opened | Delta)] == [Opened(0, TextBlock()), Delta(0, "x")]


def test_azures_first_chunk_does_not_begin_the_reply() -> None:
    assert fixture("azure.sse")[0] == Started("chatcmpl-1", "m-1")


def test_usage_on_every_chunk_counts_once_and_the_last_wins() -> None:
    events = fixture("usage_everywhere.sse")
    assert [event for event in events if isinstance(event, UsageReported)] == [UsageReported(USAGE)]


def test_usage_after_the_finish_is_waited_for() -> None:
    line = Line()
    text = (FIXTURES / "text.sse").read_bytes()
    finish = text.index(b'data: {"id": "chatcmpl-1"', text.index(b"world"))
    usage = text.index(b'"choices": []')
    before = line.feed(text[:usage])
    assert finish < usage
    assert not any(isinstance(event, Ended) for event in before)
    assert isinstance(line.feed(text[usage:])[-1], Ended)


@each_row(
    ("usage", "counted"),
    [
        (  # a server without integers
            {"prompt_tokens": 5.0, "completion_tokens": 1.0, "prompt_tokens_details": {"cached_tokens": 4.0}},
            Usage(input=5, output=1, cache_read=4),
        ),
        (  # DeepSeek's
            {"prompt_tokens": 5, "completion_tokens": 1, "prompt_cache_hit_tokens": 4},
            Usage(input=5, output=1, cache_read=4),
        ),
        ({}, None),
        ({"prompt_tokens": None, "completion_tokens": None, "total_tokens": 0}, None),
    ],
)
def test_usage_is_read_where_it_has_counts(usage: JsonObject, counted: Usage | None) -> None:
    events = decode_chunks({"content": "x"}, "stop", {"choices": [], "usage": usage})
    assert [event.usage for event in events if isinstance(event, UsageReported)] == ([counted] if counted else [])
    assert stop_of(events) is Stop.END


def test_reasoning_content_comes_before_the_text_in_its_own_block() -> None:
    events = fixture("reasoning_content.sse")
    assert pieces(events) == [Piece(ThinkingBlock(), "Let me think."), Piece(TextBlock(), "Yes.")]
    assert events.index(Closed(0)) < events.index(Opened(1, TextBlock()))


def test_reasoning_and_its_details_are_sent_once_and_the_signature_is_kept() -> None:
    signed = {"type": "reasoning.text", "text": "Let me think.", "signature": "c2lnbmF0dXJl", "index": 0}
    short = {"type": "reasoning.summary", "summary": "Short.", "index": 0}
    sealed = {"type": "reasoning.encrypted", "data": "ZW5j", "index": 1}
    twice = [{"reasoning_content": "Let me "}, {"reasoning_content": "think."}, {"reasoning_details": [signed]}]
    alone = [{"reasoning_details": [short]}, {"reasoning_details": [sealed]}]
    for events, text, payload in (
        (fixture("reasoning_details.sse"), "Let me think.", {**signed, "format": "anthropic-claude-v1"}),
        (decode_chunks(*twice, {"content": "Yes."}), "Let me think.", signed),
        (decode_chunks(*alone, {"content": "Yes."}), "Short.", sealed),
    ):
        thought, answer = pieces(events)
        assert (thought.text, answer.text) == (text, "Yes.")
        assert thought.opaque is not None
        assert (thought.opaque.issuer, thought.opaque.form, thought.opaque.model) == ("there", OpaqueForm.DETAIL, "m-1")
        assert msgspec.json.decode(thought.opaque.payload) == payload


def test_two_encrypted_details_are_two_reasoning_blocks() -> None:
    sealed = [{"type": "reasoning.encrypted", "data": data, "index": n} for n, data in enumerate(("YQ==", "Yg=="))]
    first, second = pieces(decode_chunks({"reasoning_details": sealed}, "stop"))
    assert [msgspec.json.decode(p.opaque.payload)["data"] for p in (first, second) if p.opaque] == ["YQ==", "Yg=="]


def test_thinking_blocks_are_sent_once_with_signature_and_redaction() -> None:
    thought, redacted, text = pieces(fixture("thinking_blocks.sse"))
    assert (thought.text, redacted.text, text.text) == ("Hmm.", "", "Done.")
    assert thought.opaque is not None
    assert redacted.opaque is not None
    assert (thought.opaque.form, thought.opaque.payload) == (OpaqueForm.SIGNATURE, "c2lnbmF0dXJl")
    assert (redacted.opaque.form, redacted.opaque.payload) == (OpaqueForm.REDACTED, "cmVkYWN0ZWQ=")


def test_calls_of_a_whole_message_are_distinguished_by_their_place() -> None:
    def entry(name: str) -> object:
        return {"id": "same", "type": "function", "function": {"name": name, "arguments": "{}"}}

    message = {"role": "assistant", "content": None, "tool_calls": [entry("f"), entry("g"), entry("f")]}
    body = msgspec.json.encode({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    decoded = decode_whole(body, Issuer("up", "m"), Ledger())
    assert calls(decoded) == [("same", "f", "{}"), ("same_1", "g", "{}"), ("same_2", "f", "{}")]


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


def test_the_end_before_the_finish_is_truncation() -> None:
    events = fixture("truncated.sse")
    assert failure_kind(events) is Kind.TRUNCATED
    assert [event.text for event in events if isinstance(event, Delta)] == ["Par", "tial"]


def test_done_without_a_finish_ends_what_is_open() -> None:
    assert decode_chunks({"tool_calls": [call(0, "a", "f", "{}")]})[-2:] == [Closed(0), Ended(Stop.TOOL)]


def test_a_cut_after_the_finish_costs_nothing() -> None:
    whole_stream = stream({"content": "x"}, "stop")
    for cut in range(1, 15):
        assert stop_of(decode(whole_stream[:-cut])) is Stop.END


def test_a_broken_frame_is_corrupt() -> None:
    decoder = Decoder(ISSUER, Ledger())
    assert failure_kind(list(decoder.feed(Broken("too large")))) is Kind.CORRUPT
    assert list(decoder.finish()) == []


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


def test_a_stream_that_is_done_without_a_reason_was_cut_where_the_server_always_gives_one() -> None:
    always = frozenset({"cut_then_done"})
    for quirks, chunks, kind in ((always, (), Kind.TRUNCATED), (always, ("stop",), None), (frozenset(), (), None)):
        decoder = Decoder(Issuer("local", "llama", quirks=quirks), Ledger())
        frames = SseFramer().feed(stream({"content": "The sun"}, *chunks))
        end = [event for frame in frames for event in decoder.feed(frame)][-1]
        assert (end.failure.kind if isinstance(end, Failed) else None) is kind
        assert isinstance(end, Failed) or end == Ended(Stop.END)


def test_a_call_sent_twice_and_named_in_every_piece_is_one_call() -> None:
    def piece(arguments: str) -> JsonObject:
        entry = {"index": 0, "id": "call_0", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return {"role": None, "content": None, "function_call": entry["function"], "tool_calls": [entry]}

    nothing = {"content": None, "function_call": None, "tool_calls": None}
    last = {"id": "chatcmpl-1", "choices": [{"index": 0, "finish_reason": "tool_calls", "delta": nothing}]}
    assert decode_chunks({"role": "assistant", **nothing}, piece("{"), piece("}"), piece(""), last) == [
        Started("chatcmpl-1", "m-1"),
        Opened(0, CallBlock("call_0", "f")),
        Delta(0, "{"),
        Delta(0, "}"),
        Closed(0),
        Ended(Stop.TOOL),
    ]
