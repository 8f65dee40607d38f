"""Events in, the stream or the body that a Responses client reads out."""

import msgspec
from msgspec.structs import replace

from dragoman.translate.framing.sse import Frame, SseFramer
from dragoman.translate.hub.events import (
    Block,
    CallBlock,
    CitationAdded,
    Closed,
    Delta,
    Ended,
    Event,
    HostedBlock,
    OpaqueAdded,
    Opened,
    Started,
    Stop,
    ThinkingBlock,
    UsageReported,
)
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.opaque import Opaque, OpaqueForm, decode_envelope
from dragoman.translate.hub.request import Citation, ReplyExtras, Request
from dragoman.translate.hub.usage import Usage
from narrowing import expect_all
from tables import each_row
from translate.protocols.responses.responses_kit import (
    CLIENT,
    HELLO,
    STARTED,
    encode_events,
    losses,
    make_context,
    parse_body,
    payloads,
    terminal,
    types,
)

OPEN_RESPONSES_REQUIRED = (
    *("id", "object", "created_at", "status", "model", "output", "tools", "tool_choice", "truncation"),
    *("parallel_tool_calls", "text", "top_p", "temperature", "presence_penalty", "frequency_penalty"),
    *("top_logprobs", "store", "background", "service_tier", "metadata"),
)
OPEN_RESPONSES_PRESENT = (
    *("completed_at", "incomplete_details", "previous_response_id", "instructions", "error", "reasoning", "usage"),
    *("max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key"),
)


def write(what: Block, *added: Event, ledger: Ledger | None = None) -> bytes:
    """Encode a reply of one block."""
    return encode_events([STARTED, Opened(0, what), *added, Closed(0), Ended(Stop.END)], ledger=ledger)


def test_a_text_is_encoded_in_the_full_grammar() -> None:
    assert types(encode_events(HELLO)) == [
        *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
        *("response.output_text.delta", "response.output_text.delta", "response.output_text.done"),
        *("response.content_part.done", "response.output_item.done", "response.completed"),
    ]


def test_event_names_repeat_the_type_and_numbers_count_from_zero() -> None:
    frames = expect_all(Frame, SseFramer().feed(encode_events(HELLO)))
    decoded = [(frame.event, msgspec.json.decode(frame.data)) for frame in frames[:-1]]
    assert all(name == payload["type"] for name, payload in decoded)
    assert [payload["sequence_number"] for _, payload in decoded] == list(range(len(decoded)))


def test_the_trailing_done_can_be_switched_off() -> None:
    assert encode_events(HELLO).endswith(b"data: [DONE]\n\n")
    assert b"[DONE]" not in encode_events(HELLO, make_context(responses_done=False))


def test_each_item_of_the_encoder_is_one_whole_event() -> None:
    machine = CLIENT.encoder(make_context(), Ledger())
    for event in HELLO:
        for item in machine.feed(event):
            assert item.endswith(b"\n\n")
            assert item.count(b"\n\n") == 1


def test_the_response_has_every_field_that_open_responses_requires() -> None:
    for payload in payloads(encode_events(HELLO)):
        if isinstance(response := payload.get("response"), dict):
            assert all(response[key] is not None for key in OPEN_RESPONSES_REQUIRED)
            assert all(key in response for key in OPEN_RESPONSES_PRESENT)


def test_the_response_repeats_what_the_client_requested() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
    body = {
        "model": "gpt-x",
        "input": "hi",
        "instructions": "Be brief.",
        "tools": [tool],
        "tool_choice": "required",
        "temperature": 0.2,
        "text": {"verbosity": "low"},
        "metadata": {"a": "b"},
        "max_output_tokens": 99,
    }
    response = terminal(encode_events(HELLO, make_context(parse_body(body))))
    assert response["tools"] == [{"description": None, **tool}]
    assert response["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    for key in ("instructions", "tool_choice", "temperature", "metadata", "max_output_tokens", "model"):
        assert response[key] == body[key]


@each_row(
    ("usage", "read", "written", "output", "reasoning"),
    [
        (None, 0, 0, 0, 0),  # never null
        (Usage(input=100, output=20, cache_read=60, cache_write=10, reasoning=5, web_searches=2), 60, 10, 20, 5),
    ],
)
def test_the_terminal_response_repeats_every_item_and_counts_all_tokens(
    usage: Usage | None, read: int, written: int, output: int, reasoning: int
) -> None:
    reported = [UsageReported(usage)] if usage else []
    response = terminal(encode_events([*HELLO[:-1], *reported, HELLO[-1]]))
    assert response["status"] == "completed"
    assert [item["content"][0]["text"] for item in response["output"]] == ["Hello"]
    given = usage.input if usage else 0
    assert response["usage"] == {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": given + output,
    }
    assert usage is None or response["tool_usage"]["web_search"] == {"num_requests": 2}


def test_the_response_id_is_minted_once_and_an_own_one_is_kept() -> None:
    ids = {payload["response"]["id"] for payload in payloads(encode_events(HELLO)) if "response" in payload}
    assert ids == {"resp_0001"}
    assert terminal(encode_events([Started("resp_up", "m"), *HELLO[1:]]))["id"] == "resp_up"


def test_interleaved_calls_stream_side_by_side() -> None:
    opened = (Opened(0, CallBlock("toolu_1", "f")), Opened(1, CallBlock("toolu_2", "g", namespace="ns")))
    pieces = [(0, '{"a":'), (1, "{"), (0, "1}"), (1, "}")]
    deltas = (Delta(block, piece) for block, piece in pieces)
    stream = encode_events([STARTED, *opened, *deltas, Closed(0), Closed(1), Ended(Stop.TOOL)])
    sent = [payload for payload in payloads(stream) if payload["type"] == "response.function_call_arguments.delta"]
    assert [(delta["output_index"], delta["delta"]) for delta in sent] == pieces
    output = terminal(stream)["output"]
    assert [(item["call_id"], item["arguments"], item.get("namespace")) for item in output] == [
        ("toolu_1", '{"a":1}', None),
        ("toolu_2", "{}", "ns"),
    ]


def test_empty_arguments_go_out_as_an_empty_object_and_a_missing_id_as_one_that_stays() -> None:
    stream = write(CallBlock("", "f"))
    decoded = [payload for payload in payloads(stream) if "arguments" in str(payload["type"])]
    assert [payload.get("delta", payload.get("arguments")) for payload in decoded] == ["{}", "{}"]
    assert terminal(stream)["output"][0]["arguments"] == "{}"
    ids = {payload["item"]["call_id"] for payload in payloads(stream) if "item" in payload}
    assert len(ids) == 1
    assert ids != {""}


def test_a_custom_call_streams_its_input_as_it_is() -> None:
    stream = write(CallBlock("c", "apply_patch", custom=True), Delta(0, "*** x"))
    assert "response.custom_tool_call_input.delta" in types(stream)
    item = terminal(stream)["output"][0]
    assert (item["type"], item["input"], item["call_id"]) == ("custom_tool_call", "*** x", "c")


def test_a_signature_returns_with_the_signed_text() -> None:
    opaque = Opaque("anthropic", OpaqueForm.SIGNATURE, "c2ln", "claude-x")
    stream = write(ThinkingBlock(), Delta(0, "hm"), Delta(0, "m"), OpaqueAdded(0, opaque))
    item = terminal(stream)["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": "hmm"}]
    assert decode_envelope(item["encrypted_content"]) == replace(opaque, text="hmm")


def test_redacted_thinking_is_a_reasoning_item_with_an_empty_summary() -> None:
    opaque = Opaque("anthropic", OpaqueForm.REDACTED, "ZGF0YQ", "claude-x")
    stream = write(ThinkingBlock(), OpaqueAdded(0, opaque))
    item = terminal(stream)["output"][0]
    assert item["summary"] == []
    assert decode_envelope(item["encrypted_content"]) == opaque
    assert not any("summary" in str(type_) for type_ in types(stream))


def test_its_own_vendors_encrypted_reasoning_is_sent_without_an_envelope() -> None:
    stream = write(ThinkingBlock(), OpaqueAdded(0, Opaque("openai", OpaqueForm.ENCRYPTED, "gAAAA-x", "gpt-5.5")))
    assert terminal(stream)["output"][0]["encrypted_content"] == "gAAAA-x"


def test_opaque_reasoning_is_sent_though_it_was_not_to_be_included() -> None:
    ledger = Ledger()
    request = Request(protocol="responses", model="m", turns=(), extras=ReplyExtras(encrypted_reasoning=False))
    opaque = Opaque("anthropic", OpaqueForm.SIGNATURE, "c2ln", text="hm")
    events: list[Event] = [STARTED, Opened(0, ThinkingBlock()), Delta(0, "hm"), OpaqueAdded(0, opaque), Closed(0)]
    stream = encode_events([*events, Ended(Stop.END)], make_context(request), ledger)
    assert decode_envelope(terminal(stream)["output"][0]["encrypted_content"]) == opaque
    assert losses(ledger) == []


def test_raw_reasoning_is_content_and_not_summary() -> None:
    stream = write(ThinkingBlock(raw=True), Delta(0, "hm"))
    item = terminal(stream)["output"][0]
    assert (item["summary"], item["content"]) == ([], [{"type": "reasoning_text", "text": "hm"}])
    assert "response.reasoning_text.delta" in types(stream)


def test_a_web_search_passes_through_its_steps() -> None:
    search = HostedBlock("srvtoolu_1", "web_search", {"query": "tides"}, (Citation(url="https://t.example"),))
    ledger = Ledger()
    request = Request(protocol="responses", model="gpt-x", turns=(), extras=ReplyExtras(search_sources=True))
    stream = encode_events([STARTED, Opened(0, search), Closed(0), *HELLO[1:]], make_context(request), ledger)
    assert types(stream)[2:7] == [
        "response.output_item.added",
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        "response.web_search_call.completed",
        "response.output_item.done",
    ]
    item = terminal(stream)["output"][0]
    assert item["action"] == {
        "type": "search",
        "query": "tides",
        "queries": ["tides"],
        "sources": [{"type": "url", "url": "https://t.example"}],
    }
    assert losses(ledger) == [("/content/0", LossKind.APPROXIMATED)]


def test_hosted_activity_without_a_like_is_dropped_and_recorded() -> None:
    ledger = Ledger()
    assert terminal(write(HostedBlock("x", "memory"), ledger=ledger))["output"] == []
    assert losses(ledger) == [("/content/0", LossKind.DROPPED)]


def test_a_citation_of_the_whole_block_has_the_bounds_of_the_block() -> None:
    events = [*HELLO[:3], CitationAdded(0, Citation(url="https://a.example", title="A")), *HELLO[3:]]
    stream = encode_events(events)
    added = next(p for p in payloads(stream) if p["type"] == "response.output_text.annotation.added")
    annotation = {"type": "url_citation", "url": "https://a.example", "title": "A", "start_index": 0, "end_index": 5}
    assert (added["annotation_index"], added["annotation"]) == (0, annotation)
    assert terminal(stream)["output"][0]["content"][0]["annotations"] == [annotation]


def test_a_citation_without_an_address_is_dropped_and_recorded() -> None:
    ledger = Ledger()
    encode_events([*HELLO[:3], CitationAdded(0, Citation(quoted="words")), *HELLO[3:]], ledger=ledger)
    assert losses(ledger) == [("/content/0/citations", LossKind.DROPPED)]


def test_logprobs_are_sent_with_the_delta_and_at_the_end() -> None:
    logprobs = msgspec.Raw(b'[{"token":"Hel","logprob":-0.5,"bytes":[72],"top_logprobs":[]}]')
    stream = encode_events([*HELLO[:2], Delta(0, "Hel", logprobs), *HELLO[3:]])
    delta = next(payload for payload in payloads(stream) if payload["type"] == "response.output_text.delta")
    assert delta["logprobs"][0]["token"] == "Hel"
    part = terminal(stream)["output"][0]["content"][0]
    assert (part["text"], part["logprobs"][0]["token"]) == ("Hello", "Hel")
