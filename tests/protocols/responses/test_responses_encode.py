"""Events in, the stream or the body that a Responses client reads out."""

import msgspec
import pytest
from responses_kit import CLIENT, asked, encoded, parsed, payloads

from dragoman.framing.sse import SseFramer
from dragoman.hub.events import (
    CallBlock,
    Cited,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    HostedBlock,
    Opened,
    RefusalBlock,
    Sealed,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    Used,
)
from dragoman.hub.failure import Failure, Kind, Refused
from dragoman.hub.loss import How, Ledger
from dragoman.hub.opaque import Form, Opaque, unseal
from dragoman.hub.request import Citation, Request
from dragoman.hub.usage import Usage

STARTED = Started("msg_upstream", "claude-x")
HELLO: list[Event] = [STARTED, Opened(0, TextBlock()), Delta(0, "Hel"), Delta(0, "lo"), Closed(0), Ended(Stop.END)]
OPEN_RESPONSES_REQUIRED = (
    *("id", "object", "created_at", "status", "model", "output", "tools", "tool_choice", "truncation"),
    *("parallel_tool_calls", "text", "top_p", "temperature", "presence_penalty", "frequency_penalty"),
    *("top_logprobs", "store", "background", "service_tier", "metadata"),
)
OPEN_RESPONSES_PRESENT = (
    *("completed_at", "incomplete_details", "previous_response_id", "instructions", "error", "reasoning", "usage"),
    *("max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key"),
)


def types(stream: bytes) -> list[object]:
    return [payload["type"] for payload in payloads(stream)]


def terminal(stream: bytes) -> dict[str, object]:
    response = payloads(stream)[-1]["response"]
    assert isinstance(response, dict)
    return response


def losses(ledger: Ledger) -> list[tuple[str, How]]:
    return [(loss.path, loss.how) for loss in ledger]


def test_a_text_is_told_in_the_full_grammar():
    assert types(encoded(HELLO)) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


def test_event_names_repeat_the_type_and_numbers_count_from_zero():
    frames = SseFramer().feed(encoded(HELLO))
    told = [(frame.event, msgspec.json.decode(frame.data)) for frame in frames[:-1]]  # type: ignore[union-attr]
    assert all(name == payload["type"] for name, payload in told)
    assert [payload["sequence_number"] for _, payload in told] == list(range(len(told)))


def test_the_trailing_done_can_be_switched_off():
    assert encoded(HELLO).endswith(b"data: [DONE]\n\n")
    assert b"[DONE]" not in encoded(HELLO, asked(responses_done=False))


def test_each_item_of_the_encoder_is_one_whole_event():
    machine = CLIENT.encoder(asked(), Ledger())
    for event in HELLO:
        for item in machine.feed(event):
            assert item.endswith(b"\n\n")
            assert item.count(b"\n\n") == 1


def test_the_response_has_every_field_that_open_responses_requires():
    for payload in payloads(encoded(HELLO)):
        if isinstance(response := payload.get("response"), dict):
            assert all(response[key] is not None for key in OPEN_RESPONSES_REQUIRED)
            assert all(key in response for key in OPEN_RESPONSES_PRESENT)


def test_the_response_repeats_what_the_client_asked_for():
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
    response = terminal(encoded(HELLO, asked(parsed(body))))
    assert response["tools"] == [{"description": None, **tool}]
    assert response["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    for key in ("instructions", "tool_choice", "temperature", "metadata", "max_output_tokens", "model"):
        assert response[key] == body[key]


def test_the_terminal_response_repeats_every_item_and_never_has_null_usage():
    response = terminal(encoded(HELLO))
    assert response["status"] == "completed"
    assert [item["content"][0]["text"] for item in response["output"]] == ["Hello"]  # type: ignore[attr-defined]
    assert response["usage"] == {
        "input_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 0,
    }


def test_usage_counts_cached_and_reasoning_tokens():
    usage = Usage(input=100, output=20, cache_read=60, cache_write=10, reasoning=5, web_searches=2)
    response = terminal(encoded([*HELLO[:-1], Used(usage), HELLO[-1]]))
    assert response["usage"] == {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 120,
    }
    assert response["tool_usage"]["web_search"] == {"num_requests": 2}  # type: ignore[index]


def test_the_response_id_is_minted_once_and_an_own_one_is_kept():
    ids = {payload["response"]["id"] for payload in payloads(encoded(HELLO)) if "response" in payload}  # type: ignore[index]
    assert ids == {"resp_0001"}
    assert terminal(encoded([Started("resp_up", "m"), *HELLO[1:]]))["id"] == "resp_up"


def test_interleaved_calls_stream_side_by_side():
    events: list[Event] = [
        STARTED,
        Opened(0, CallBlock("toolu_1", "f")),
        Opened(1, CallBlock("toolu_2", "g", namespace="ns")),
        Delta(0, '{"a":'),
        Delta(1, "{"),
        Delta(0, "1}"),
        Delta(1, "}"),
        Closed(0),
        Closed(1),
        Ended(Stop.TOOL),
    ]
    stream = encoded(events)
    deltas = [payload for payload in payloads(stream) if payload["type"] == "response.function_call_arguments.delta"]
    assert [(delta["output_index"], delta["delta"]) for delta in deltas] == [
        (0, '{"a":'),
        (1, "{"),
        (0, "1}"),
        (1, "}"),
    ]
    output = terminal(stream)["output"]
    assert [(item["call_id"], item["arguments"], item.get("namespace")) for item in output] == [  # type: ignore[attr-defined]
        ("toolu_1", '{"a":1}', None),
        ("toolu_2", "{}", "ns"),
    ]


def test_empty_arguments_go_out_as_an_empty_object_in_deltas_and_items_alike():
    stream = encoded([STARTED, Opened(0, CallBlock("c", "f")), Closed(0), Ended(Stop.TOOL)])
    told = [payload for payload in payloads(stream) if "arguments" in str(payload["type"])]
    assert [payload.get("delta", payload.get("arguments")) for payload in told] == ["{}", "{}"]
    assert terminal(stream)["output"][0]["arguments"] == "{}"  # type: ignore[index]


def test_a_call_without_an_id_gets_one_and_keeps_it():
    stream = encoded([STARTED, Opened(0, CallBlock("", "f")), Closed(0), Ended(Stop.TOOL)])
    ids = {payload["item"]["call_id"] for payload in payloads(stream) if "item" in payload}  # type: ignore[index]
    assert len(ids) == 1
    assert ids != {""}


def test_a_custom_call_streams_its_input_as_it_is():
    stream = encoded(
        [STARTED, Opened(0, CallBlock("c", "apply_patch", custom=True)), Delta(0, "*** x"), Closed(0), Ended(Stop.TOOL)]
    )
    assert "response.custom_tool_call_input.delta" in types(stream)
    item = terminal(stream)["output"][0]  # type: ignore[index]
    assert (item["type"], item["input"], item["call_id"]) == ("custom_tool_call", "*** x", "c")


def test_a_signature_returns_with_the_words_it_vouches_for():
    opaque = Opaque("anthropic", Form.SIGNATURE, "c2ln", "claude-x")
    stream = encoded(
        [
            STARTED,
            Opened(0, ThinkingBlock()),
            Delta(0, "hm"),
            Delta(0, "m"),
            Sealed(0, opaque),
            Closed(0),
            Ended(Stop.END),
        ]
    )
    item = terminal(stream)["output"][0]  # type: ignore[index]
    assert item["summary"] == [{"type": "summary_text", "text": "hmm"}]
    back = unseal(item["encrypted_content"])
    assert back == Opaque("anthropic", Form.SIGNATURE, "c2ln", "claude-x", "hmm")


def test_redacted_thinking_is_a_reasoning_item_with_an_empty_summary():
    opaque = Opaque("anthropic", Form.REDACTED, "ZGF0YQ", "claude-x")
    stream = encoded([STARTED, Opened(0, ThinkingBlock()), Sealed(0, opaque), Closed(0), Ended(Stop.END)])
    item = terminal(stream)["output"][0]  # type: ignore[index]
    assert item["summary"] == []
    assert unseal(item["encrypted_content"]) == opaque
    assert not any("summary" in str(type_) for type_ in types(stream))


def test_its_own_vendors_encrypted_reasoning_goes_out_bare():
    opaque = Opaque("openai", Form.ENCRYPTED, "gAAAA-x", "gpt-5.5")
    stream = encoded([STARTED, Opened(0, ThinkingBlock()), Sealed(0, opaque), Closed(0), Ended(Stop.END)])
    assert terminal(stream)["output"][0]["encrypted_content"] == "gAAAA-x"  # type: ignore[index]


def test_opaque_reasoning_that_was_not_asked_for_is_dropped_and_told():
    ledger = Ledger()
    request = Request(protocol="responses", model="m", turns=(), encrypted_reasoning=False)
    opaque = Opaque("anthropic", Form.SIGNATURE, "c2ln")
    events: list[Event] = [STARTED, Opened(0, ThinkingBlock()), Delta(0, "hm"), Sealed(0, opaque), Closed(0)]
    stream = encoded([*events, Ended(Stop.END)], asked(request), ledger)
    assert "encrypted_content" not in terminal(stream)["output"][0]  # type: ignore[index]
    assert losses(ledger) == [("/content/0", How.DROPPED)]


def test_raw_thoughts_are_content_and_not_summary():
    stream = encoded([STARTED, Opened(0, ThinkingBlock(raw=True)), Delta(0, "hm"), Closed(0), Ended(Stop.END)])
    item = terminal(stream)["output"][0]  # type: ignore[index]
    assert (item["summary"], item["content"]) == ([], [{"type": "reasoning_text", "text": "hm"}])
    assert "response.reasoning_text.delta" in types(stream)


def test_a_web_search_passes_through_its_steps():
    search = HostedBlock("srvtoolu_1", "web_search", {"query": "tides"}, (Citation(url="https://t.example"),))
    ledger = Ledger()
    stream = encoded([STARTED, Opened(0, search), Closed(0), *HELLO[1:]], ledger=ledger)
    assert types(stream)[2:7] == [
        "response.output_item.added",
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        "response.web_search_call.completed",
        "response.output_item.done",
    ]
    item = terminal(stream)["output"][0]  # type: ignore[index]
    assert item["action"] == {
        "type": "search",
        "query": "tides",
        "queries": ["tides"],
        "sources": [{"type": "url", "url": "https://t.example"}],
    }
    assert losses(ledger) == [("/content/0", How.APPROXIMATED)]


def test_hosted_activity_without_a_like_is_dropped_and_told():
    ledger = Ledger()
    stream = encoded([STARTED, Opened(0, HostedBlock("x", "memory")), Closed(0), Ended(Stop.END)], ledger=ledger)
    assert terminal(stream)["output"] == []
    assert losses(ledger) == [("/content/0", How.DROPPED)]


def test_a_citation_of_the_whole_block_has_the_bounds_of_the_block():
    events = [*HELLO[:3], Cited(0, Citation(url="https://a.example", title="A")), *HELLO[3:]]
    stream = encoded(events)
    added = next(p for p in payloads(stream) if p["type"] == "response.output_text.annotation.added")
    annotation = {
        "type": "url_citation",
        "url": "https://a.example",
        "title": "A",
        "start_index": 0,
        "end_index": 5,
    }
    assert (added["annotation_index"], added["annotation"]) == (0, annotation)
    assert terminal(stream)["output"][0]["content"][0]["annotations"] == [annotation]  # type: ignore[index]


def test_a_citation_without_an_address_is_dropped_and_told():
    ledger = Ledger()
    encoded([*HELLO[:3], Cited(0, Citation(quoted="words")), *HELLO[3:]], ledger=ledger)
    assert losses(ledger) == [("/content/0/citations", How.DROPPED)]


def test_logprobs_are_told_with_the_delta_and_at_the_end():
    logprobs = msgspec.Raw(b'[{"token":"Hel","logprob":-0.5,"bytes":[72],"top_logprobs":[]}]')
    stream = encoded([*HELLO[:2], Delta(0, "Hel", logprobs), *HELLO[3:]])
    delta = next(payload for payload in payloads(stream) if payload["type"] == "response.output_text.delta")
    assert delta["logprobs"][0]["token"] == "Hel"  # type: ignore[index]
    part = terminal(stream)["output"][0]["content"][0]  # type: ignore[index]
    assert (part["text"], part["logprobs"][0]["token"]) == ("Hello", "Hel")


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        (Stop.LENGTH, "max_output_tokens"),
        (Stop.CONTEXT_FULL, "max_output_tokens"),
        (Stop.FILTERED, "content_filter"),
    ],
)
def test_a_reply_that_was_cut_is_incomplete_and_so_is_its_last_item(stop: Stop, reason: str):
    call: list[Event] = [Opened(1, CallBlock("c", "f")), Delta(1, '{"a'), Closed(1)]
    stream = encoded([*HELLO[:-1], *call, Ended(stop)])
    response = terminal(stream)
    assert types(stream)[-1] == "response.incomplete"
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]  # type: ignore[attr-defined]
    done = [payload["item"] for payload in payloads(stream) if payload["type"] == "response.output_item.done"]
    assert done == response["output"]


@pytest.mark.parametrize("stop", [Stop.END, Stop.STOP_SEQUENCE, Stop.TOOL, Stop.PAUSE])
def test_every_other_end_is_completed(stop: Stop):
    assert terminal(encoded([*HELLO[:-1], Ended(stop, sequence="###")]))["status"] == "completed"


def test_a_pause_is_told_as_a_loss():
    ledger = Ledger()
    encoded([*HELLO[:-1], Ended(Stop.PAUSE)], ledger=ledger)
    assert losses(ledger) == [("/stop_reason", How.APPROXIMATED)]


def test_a_refusal_of_which_only_the_reason_is_told_becomes_a_refusal_text():
    ledger = Ledger()
    stream = encoded([STARTED, Ended(Stop.FILTERED, category="cyber", explanation="Not this.")], ledger=ledger)
    response = terminal(stream)
    assert response["output"][0]["content"] == [{"type": "refusal", "refusal": "Not this."}]  # type: ignore[index]
    assert losses(ledger) == [("/stop_details/category", How.DROPPED)]


def test_a_refusal_streams_as_refusal():
    stream = encoded([STARTED, Opened(0, RefusalBlock()), Delta(0, "No."), Closed(0), Ended(Stop.END)])
    assert types(stream)[4:6] == ["response.refusal.delta", "response.refusal.done"]


def test_a_failure_is_an_error_event_and_then_a_failed_response():
    failure = Failure(Kind.RATE_LIMITED, "Too many requests.", retry_after=12.0)
    stream = encoded([*HELLO[:3], Failed(failure)])
    error, failed = payloads(stream)[-2:]
    assert error["error"] == {
        "type": "rate_limit_error",
        "code": "rate_limit_exceeded",
        "message": "Too many requests. Please try again in 12s.",
        "param": None,
    }
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {  # type: ignore[index]
        "code": "rate_limit_exceeded",
        "message": "Too many requests. Please try again in 12s.",
    }
    assert "response.output_item.done" not in types(stream)
    assert stream.endswith(b"data: [DONE]\n\n")


def test_items_finished_before_a_failure_are_announced_and_kept():
    stream = encoded([*HELLO[:-1], Failed(Failure(Kind.LOST, "gone"))])
    assert types(stream)[-3:] == ["response.output_item.done", "error", "response.failed"]
    assert len(terminal(stream)["output"]) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (Kind.CONTEXT_TOO_LONG, "context_length_exceeded"),
        (Kind.QUOTA, "insufficient_quota"),
        (Kind.RATE_LIMITED, "rate_limit_exceeded"),
        (Kind.OVERLOADED, "server_is_overloaded"),
        (Kind.TRUNCATED, "server_error"),
        (Kind.BUG, "server_error"),
        (Kind.CREDENTIAL, "server_error"),
    ],
)
def test_a_failed_response_has_the_code_that_codex_knows(kind: Kind, code: str):
    stream = encoded([STARTED, Failed(Failure(kind, "x", code="overloaded_error_of_another_vendor"))])
    assert terminal(stream)["error"]["code"] == code  # type: ignore[index]


def test_a_failure_before_the_start_is_still_a_legal_stream():
    assert types(encoded([Failed(Failure(Kind.LOST, "gone"))])) == [
        "response.created",
        "response.in_progress",
        "error",
        "response.failed",
    ]


def test_empty_deltas_are_not_sent():
    assert encoded([*HELLO[:3], Delta(0, ""), *HELLO[3:]]) == encoded(HELLO)


def test_a_whole_body_is_the_response_with_which_the_stream_ends():
    assert msgspec.json.decode(CLIENT.whole(HELLO, asked(), Ledger())) == terminal(encoded(HELLO))


def test_a_whole_body_of_a_failed_reply_is_refused():
    with pytest.raises(Refused) as refused:
        CLIENT.whole([STARTED, Failed(Failure(Kind.OVERLOADED, "busy"))], asked(), Ledger())
    assert refused.value.failure.kind is Kind.OVERLOADED


def test_a_broken_passthrough_is_repaired_with_its_own_id_and_the_next_numbers():
    stream = CLIENT.repair(Failure(Kind.TRUNCATED, "cut"), Started("resp_9", "gpt-x"), 7)
    error, failed = payloads(stream)
    assert (error["type"], error["sequence_number"]) == ("error", 7)
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", 8)
    assert (failed["response"]["id"], failed["response"]["status"]) == ("resp_9", "failed")  # type: ignore[index]


def test_keep_alives_are_comments():
    assert CLIENT.keep_alive.startswith(b":")
    assert CLIENT.keep_alive.endswith(b"\n\n")
