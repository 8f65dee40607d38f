"""Chat's replies, read as events: the first half of what upstreams send."""

import msgspec
import pytest

from dragoman.hub.events import (
    CallBlock,
    Closed,
    Delta,
    Ended,
    Opened,
    Piece,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    UsageReported,
)
from dragoman.hub.failure import Kind
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import Form
from dragoman.hub.ports import Issuer
from dragoman.hub.usage import Usage
from dragoman.protocols.chat.decode_whole import decode_whole
from protocols.chat.chat_decoding import (
    FIXTURES,
    USAGE,
    Line,
    call,
    calls,
    decode_chunks,
    failure_kind,
    fixture,
    pieces,
    stop_of,
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


def test_every_kind_of_character_survives() -> None:
    assert pieces(fixture("unicode.sse")) == [Piece(TextBlock(), 'naïve 😀漢字\u2028 e\u0301 "q" \\ \n')]


def test_interleaved_arguments_reach_their_own_call() -> None:
    events = fixture("tools_interleaved.sse")
    assert calls(events) == [("call_a", "read", '{"a":1}'), ("call_b", "list", "{}")]
    assert events[-4:] == [Closed(0), Closed(1), UsageReported(USAGE), Ended(Stop.TOOL)]


def test_repeated_ids_names_roles_and_legacy_calls_are_sent_once() -> None:
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
    events = decode_chunks(
        {"tool_calls": [call(4, "a", "f", "1")]},
        {"tool_calls": [call(2, "b", "g", "2")]},
        {"tool_calls": [call(4, args="3")]},
    )
    assert calls(events) == [("a", "f", "13"), ("b", "g", "2")]


def test_without_an_index_the_id_or_a_new_name_identifies_the_call() -> None:
    events = decode_chunks(
        {"tool_calls": [call(None, "a", "f", "1")]},
        {"tool_calls": [call(None, "b", "f", "2")]},
        {"tool_calls": [call(None, "a", None, "3")]},
        {"tool_calls": [call(None, None, None, "4")]},
        {"tool_calls": [call(None, None, "g", "5")]},
    )
    assert calls(events) == [("a", "f", "13"), ("b", "f", "24"), ("call_chatcmpl-1_2", "g", "5")]


def test_one_index_for_all_parallel_calls_is_understood() -> None:
    events = decode_chunks({"tool_calls": [call(0, "a", "f", "{}")]}, {"tool_calls": [call(0, "b", "f", "{}")]})
    assert calls(events) == [("a", "f", "{}"), ("b", "f", "{}")]


def test_two_entries_for_one_index_in_one_chunk_are_joined_in_order() -> None:
    events = decode_chunks({"tool_calls": [call(0, "a", "f", '{"x"'), call(0, args=":1}")]})
    assert calls(events) == [("a", "f", '{"x":1}')]


def test_arguments_before_the_name_are_held() -> None:
    events = decode_chunks({"tool_calls": [call(0, "a", None, "{")]}, {"tool_calls": [call(0, None, "f", "}")]})
    assert calls(events) == [("a", "f", "{}")]


def test_a_call_that_never_gets_a_name_is_corrupt() -> None:
    assert failure_kind(decode_chunks({"tool_calls": [call(0, "a", None, "{")]}, "tool_calls")) is Kind.CORRUPT


def test_an_object_as_arguments_is_serialised() -> None:
    assert calls(decode_chunks({"tool_calls": [call(0, "a", "f", {"x": [1]})]})) == [("a", "f", '{"x":[1]}')]


def test_a_legacy_function_call_is_a_call() -> None:
    events = decode_chunks(
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
def test_the_stop_agrees_with_what_was_sent(finish: str, has_call: bool, stop: Stop) -> None:
    first = {"tool_calls": [call(0, "a", "f", "{}")]} if has_call else {"content": "x"}
    assert stop_of(decode_chunks(first, finish)) is stop


def test_a_matched_stop_string_is_recorded() -> None:
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "END"}]}
    assert decode_chunks({"content": "x"}, last)[-1] == Ended(Stop.STOP_SEQUENCE, sequence="END")


def test_cut_arguments_at_the_cap_are_forwarded_as_they_are() -> None:
    events = fixture("length.sse")
    assert calls(events) == [("call_a", "write", '{"text": "lon')]
    assert stop_of(events) is Stop.LENGTH


def test_the_first_empty_deltas_open_nothing() -> None:
    events = decode_chunks(
        {"role": "assistant", "content": ""}, {"content": ""}, {"content": "x"}, {"content": ""}, "stop"
    )
    assert [event for event in events if isinstance(event, Opened | Delta)] == [Opened(0, TextBlock()), Delta(0, "x")]


def test_a_null_delta_and_an_empty_list_of_choices_have_no_effect() -> None:
    chunk = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": None, "finish_reason": None}]}
    assert pieces(decode_chunks({"choices": []}, chunk, {"content": "x"}, "stop")) == [Piece(TextBlock(), "x")]


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


def test_counts_of_a_server_without_integers_are_counts() -> None:
    usage = {"prompt_tokens": 5.0, "completion_tokens": 1.0, "prompt_tokens_details": {"cached_tokens": 4.0}}
    events = decode_chunks({"content": "x"}, "stop", {"choices": [], "usage": usage})
    assert events[-2] == UsageReported(Usage(input=5, output=1, cache_read=4))


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": None, "completion_tokens": None, "total_tokens": 0}])
def test_usage_without_counts_is_no_usage(usage: JsonObject) -> None:
    events = decode_chunks({"content": "x"}, "stop", {"choices": [], "usage": usage})
    assert not any(isinstance(event, UsageReported) for event in events)
    assert stop_of(events) is Stop.END


def test_inessential_fields_may_have_any_type() -> None:
    odd: JsonObject = {"id": 5, "model": None, "service_tier": [], "usage": "many"}
    choice = {"index": 0, "delta": {"content": "x", "annotations": {}}, "logprobs": 7}
    assert pieces(decode_chunks({**odd, "choices": [choice]}, "stop")) == [Piece(TextBlock(), "x")]


def test_deepseeks_cache_hits_are_cached_tokens() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_cache_hit_tokens": 4}
    events = decode_chunks({"content": "x"}, "stop", {"choices": [], "usage": usage})
    assert events[-2] == UsageReported(Usage(input=5, output=1, cache_read=4))


def test_reasoning_content_comes_before_the_text_in_its_own_block() -> None:
    assert pieces(fixture("reasoning_content.sse")) == [
        Piece(ThinkingBlock(), "Let me think."),
        Piece(TextBlock(), "Yes."),
    ]
    events = fixture("reasoning_content.sse")
    assert events.index(Closed(0)) < events.index(Opened(1, TextBlock()))


def test_reasoning_and_its_details_are_sent_once_and_the_signature_is_kept() -> None:
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


def test_details_that_follow_the_plain_reasoning_repeat_it() -> None:
    signed = {"type": "reasoning.text", "text": "Let me think.", "signature": "c2ln", "index": 0}
    plain = [{"reasoning_content": "Let me "}, {"reasoning_content": "think."}]
    thought, text = pieces(decode_chunks(*plain, {"reasoning_details": [signed]}, {"content": "Yes."}))
    assert (thought.text, text.text) == ("Let me think.", "Yes.")
    assert thought.opaque is not None
    assert msgspec.json.decode(thought.opaque.payload) == signed


def test_details_alone_give_the_reasoning() -> None:
    detail = {"type": "reasoning.summary", "summary": "Short.", "index": 0}
    sealed = {"type": "reasoning.encrypted", "data": "ZW5j", "index": 1}
    thought, text = pieces(
        decode_chunks({"reasoning_details": [detail]}, {"reasoning_details": [sealed]}, {"content": "x"})
    )
    assert (thought.text, text.text) == ("Short.", "x")
    assert thought.opaque is not None
    assert msgspec.json.decode(thought.opaque.payload) == sealed


def test_two_encrypted_details_are_two_reasoning_blocks() -> None:
    sealed = [{"type": "reasoning.encrypted", "data": data, "index": n} for n, data in enumerate(("YQ==", "Yg=="))]
    first, second = pieces(decode_chunks({"reasoning_details": sealed}, "stop"))
    assert [msgspec.json.decode(p.opaque.payload)["data"] for p in (first, second) if p.opaque] == ["YQ==", "Yg=="]


def test_thinking_blocks_are_sent_once_with_signature_and_redaction() -> None:
    thought, redacted, text = pieces(fixture("thinking_blocks.sse"))
    assert (thought.text, redacted.text, text.text) == ("Hmm.", "", "Done.")
    assert thought.opaque is not None
    assert redacted.opaque is not None
    assert (thought.opaque.form, thought.opaque.payload) == (Form.SIGNATURE, "c2lnbmF0dXJl")
    assert (redacted.opaque.form, redacted.opaque.payload) == (Form.REDACTED, "cmVkYWN0ZWQ=")


def test_calls_of_a_whole_message_are_distinguished_by_their_place() -> None:
    def entry(name: str) -> object:
        return {"id": "same", "type": "function", "function": {"name": name, "arguments": "{}"}}

    message = {"role": "assistant", "content": None, "tool_calls": [entry("f"), entry("g"), entry("f")]}
    body = msgspec.json.encode({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    decoded = decode_whole(body, Issuer("up", "m"), Ledger())
    assert calls(decoded) == [("same", "f", "{}"), ("same_1", "g", "{}"), ("same_2", "f", "{}")]
