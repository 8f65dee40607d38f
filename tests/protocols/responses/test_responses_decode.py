"""Upstream streams and whole replies in, events out."""

import msgspec
import pytest

from dragoman.framing.sse import Broken, Frame
from dragoman.hub.events import (
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
    RefusalBlock,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    UsageReported,
    collect,
)
from dragoman.hub.failure import Kind
from dragoman.hub.loss import Ledger, LossKind
from dragoman.hub.opaque import Form, Opaque
from dragoman.hub.usage import Usage
from narrowing import expect_all
from protocols.responses.responses_kit import ISSUER, UPSTREAM, event_bytes, events_of, fixture, join_deltas
from wire_json import JsonObject

STARTED = Started("resp_0f1e2d3c", "gpt-5.5-2026-03-05")
USED = UsageReported(Usage(input=120, output=42, cache_read=64, cache_write=16, reasoning=17, service_tier="default"))
CREATED = event_bytes("response.created", response={"id": "resp_1", "model": "m", "status": "in_progress"})


def decode_fixture(name: str) -> list[Event]:
    return join_deltas(events_of(fixture(name)))


def failure_of(stream: bytes) -> Failed:
    last = events_of(stream)[-1]
    assert isinstance(last, Failed)
    return last


def texts(events: list[Event]) -> list[tuple[object, str]]:
    return [(piece.what, piece.text) for piece in collect(events).pieces]


def test_a_text_reply_is_one_block_with_usage_and_an_end() -> None:
    assert decode_fixture("text.sse") == [
        STARTED,
        Opened(0, TextBlock()),
        Delta(0, "Hello, world."),
        Closed(0),
        USED,
        Ended(Stop.END),
    ]


def test_each_delta_is_passed_on_as_it_comes() -> None:
    deltas = [event.text for event in events_of(fixture("text.sse")) if isinstance(event, Delta)]
    assert deltas == ["Hello", ", ", "world", "."]


def test_unicode_quotes_and_line_separators_survive() -> None:
    assert texts(decode_fixture("unicode.sse")) == [(TextBlock(), 'Grüße aus 東京 👩‍👩‍👧\u2028 "quoted" \\ back\n')]


def test_carriage_returns_do_not_matter() -> None:
    assert texts(decode_fixture("crlf.sse")) == [(TextBlock(), "ab")]


def test_interleaved_parallel_calls_keep_their_own_arguments() -> None:
    events = decode_fixture("tools_interleaved.sse")
    assert texts(events) == [
        (TextBlock(), "Let me look."),
        (CallBlock("call_a", "weather"), '{"city":"Paris"}'),
        (CallBlock("call_b", "weather"), '{"city":"Oslo"}'),
    ]
    assert [event.block for event in events if isinstance(event, Delta)] == [0, 1, 2, 1, 2]
    assert events[-1] == Ended(Stop.TOOL)


def test_a_call_without_arguments_is_a_call_all_the_same() -> None:
    assert decode_fixture("empty_arguments.sse") == [
        STARTED,
        Opened(0, CallBlock("call_e", "list_files")),
        Closed(0),
        USED,
        Ended(Stop.TOOL),
    ]


@pytest.mark.parametrize("name", ["arguments_in_done.sse", "shared_index.sse"])
def test_arguments_that_come_only_with_done_or_share_an_index_arrive_once(name: str) -> None:
    pieces = [text for what, text in texts(decode_fixture(name)) if isinstance(what, CallBlock)]
    assert pieces == ['{"city":"Rome"}']


@pytest.mark.parametrize("name", ["item_done_only.sse", "completed_only.sse"])
def test_items_that_were_never_streamed_are_sent_exactly_once(name: str) -> None:
    events = decode_fixture(name)
    assert texts(events) == [
        (ThinkingBlock(), "**Plan**\n\nThen act."),
        (TextBlock(), "Done."),
        (CallBlock("call_d", "weather"), '{"city":"Rome"}'),
    ]
    assert OpaqueAdded(0, Opaque("openai", Form.ENCRYPTED, "gAAAA-opaque-1", "gpt-5.5")) in events
    assert events[-1] == Ended(Stop.TOOL)


def test_a_terminal_snapshot_with_gaps_in_output_index_repeats_nothing() -> None:
    message = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "once"}]}
    stream = (
        CREATED
        + event_bytes("response.output_text.delta", output_index=2, content_index=0, delta="once")
        + event_bytes("response.output_item.done", output_index=2, item=message)
        + event_bytes("response.completed", response={"id": "resp_1", "status": "completed", "output": [message]})
    )
    assert texts(events_of(stream)) == [(TextBlock(), "once")]


def test_inessential_fields_may_have_any_type() -> None:
    message = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "once"}]}
    odd: JsonObject = {
        "id": 5,
        "model": None,
        "service_tier": [],
        "usage": {"input_tokens": 2.5},
        "status": "completed",
    }
    stream = event_bytes("response.created", response=odd) + event_bytes(
        "response.completed", response={**odd, "output": [message]}
    )
    assert texts(events_of(stream)) == [(TextBlock(), "once")]


def test_a_terminal_snapshot_of_items_that_shared_an_output_index_repeats_nothing() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"}
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "once"}]}
    stream = (
        CREATED
        + event_bytes("response.output_item.done", output_index=0, item=call)
        + event_bytes("response.reasoning_summary_text.delta", output_index=0, summary_index=0, delta="once")
        + event_bytes("response.output_item.done", output_index=0, item=thought)
        + event_bytes("response.completed", response={"id": "resp_1", "status": "completed", "output": [call, thought]})
    )
    assert texts(events_of(stream)) == [(CallBlock("c", "weather"), "{}"), (ThinkingBlock(), "once")]


def test_summary_parts_run_on_in_one_thinking_block_and_are_sealed_by_the_finished_item() -> None:
    assert decode_fixture("reasoning.sse")[1:5] == [
        Opened(0, ThinkingBlock()),
        Delta(0, "**Plan**\n\nThen act."),
        OpaqueAdded(0, Opaque("openai", Form.ENCRYPTED, "gAAAA-opaque-1", "gpt-5.5")),
        Closed(0),
    ]


@pytest.mark.parametrize("name", ["reasoning_raw.sse", "reasoning_raw_open.sse"])
def test_raw_reasoning_is_read_in_both_spellings(name: str) -> None:
    assert texts(decode_fixture(name)) == [(ThinkingBlock(raw=True), "raw thoughts"), (TextBlock(), "ok")]


def test_reasoning_that_shows_nothing_is_still_carried() -> None:
    assert decode_fixture("opaque_only.sse")[1:4] == [
        Opened(0, ThinkingBlock()),
        OpaqueAdded(0, Opaque("openai", Form.ENCRYPTED, "gAAAA-only", "gpt-5.5")),
        Closed(0),
    ]


def test_a_custom_tool_call_keeps_its_free_text() -> None:
    assert texts(decode_fixture("custom_call.sse")) == [
        (CallBlock("call_c", "apply_patch", custom=True), "*** Begin Patch\n*** End Patch\n")
    ]


def test_a_call_has_its_namespace() -> None:
    assert texts(decode_fixture("namespaced_call.sse")) == [
        (CallBlock("call_n", "wait_agent", namespace="collaboration"), "{}")
    ]


def test_a_web_search_is_sent_whole_and_its_citation_has_bounds() -> None:
    events = decode_fixture("web_search.sse")
    search = next(event.what for event in events if isinstance(event, Opened))
    assert isinstance(search, HostedBlock)
    assert (search.kind, search.input) == ("web_search", {"query": "tide tables"})
    assert search.results
    assert [found.url for found in search.results] == ["https://tides.example/1"]
    cited = [event.citation for event in events if isinstance(event, CitationAdded)]
    assert [(citation.url, citation.title, citation.start, citation.end) for citation in cited] == [
        ("https://tides.example/1", "Tides", 0, 8)
    ]
    used = next(event.usage for event in events if isinstance(event, UsageReported))
    assert used.web_searches == 1


def test_a_refusal_is_a_block_of_its_own() -> None:
    assert texts(decode_fixture("refusal.sse")) == [(RefusalBlock(), "I cannot help with that.")]


def test_logprobs_ride_on_their_delta() -> None:
    delta = next(event for event in decode_fixture("logprobs.sse") if isinstance(event, Delta))
    assert delta.logprobs is not None
    assert msgspec.json.decode(delta.logprobs)[0]["token"] == "Hi"


@pytest.mark.parametrize(("name", "stop"), [("length.sse", Stop.LENGTH), ("filtered.sse", Stop.FILTERED)])
def test_an_incomplete_reply_ends_with_its_reason(name: str, stop: Stop) -> None:
    assert decode_fixture(name)[-2:] == [USED, Ended(stop)]


def test_item_ids_that_change_in_every_event_do_not_matter() -> None:
    assert texts(decode_fixture("rotating_ids.sse")) == [(TextBlock(), "rotated")]


def test_an_end_without_the_terminal_event_is_a_truncation() -> None:
    assert failure_of(fixture("truncated.sse")).failure.kind is Kind.TRUNCATED


def test_an_event_cut_in_half_by_the_end_is_a_truncation_too() -> None:
    assert failure_of(fixture("text.sse")[:-40]).failure.kind is Kind.TRUNCATED


def test_done_before_the_terminal_event_does_not_make_an_end() -> None:
    assert failure_of(CREATED + b"data: [DONE]\n\n").failure.kind is Kind.TRUNCATED


def test_a_rate_limit_inside_a_stream_is_one_and_reports_how_long() -> None:
    failure = failure_of(fixture("error_nested.sse")).failure
    assert (failure.kind, failure.code, failure.retry_after) == (Kind.RATE_LIMITED, "rate_limit_exceeded", 1.5)


def test_a_flat_error_event_that_nothing_follows_is_sent_at_the_end() -> None:
    failure = failure_of(fixture("error_flat.sse")).failure
    assert (failure.kind, failure.message) == (Kind.UPSTREAM, "The server had an error")


def test_quota_reported_inside_a_successful_answer_is_quota() -> None:
    assert failure_of(fixture("quota_in_stream.sse")).failure.kind is Kind.QUOTA


def test_a_status_beside_the_error_is_read() -> None:
    error = event_bytes("error", status_code=429, error={"type": "something_new", "message": "no more today"})
    assert failure_of(CREATED + error).failure.kind is Kind.RATE_LIMITED


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("context_length_exceeded", Kind.CONTEXT_TOO_LONG),
        ("server_is_overloaded", Kind.OVERLOADED),
        ("slow_down", Kind.OVERLOADED),
        ("usage_limit_reached", Kind.QUOTA),
        ("server_error", Kind.UPSTREAM),
        ("invalid_prompt", Kind.BAD_REQUEST),
        ("bio_policy", Kind.REFUSED),
    ],
)
def test_a_failed_response_is_read_by_its_code(code: str, kind: Kind) -> None:
    failed = event_bytes("response.failed", response={"id": "resp_1", "error": {"code": code, "message": "no"}})
    assert failure_of(CREATED + failed).failure.kind is kind


def test_an_error_body_in_a_stream_fails_at_once() -> None:
    stream = b'data: {"error":{"message":"slow down","type":"rate_limit_error","code":null}}\n\n'
    assert [type(event) for event in events_of(stream)] == [Failed]
    assert failure_of(stream).failure.kind is Kind.RATE_LIMITED


def test_bytes_that_are_no_json_are_corruption() -> None:
    assert failure_of(CREATED + b"data: {nonsense}\n\n").failure.kind is Kind.CORRUPT


def test_a_known_event_of_a_wrong_shape_is_corruption() -> None:
    wrong = event_bytes("response.output_text.delta", output_index=0, content_index=0, delta=5)
    assert failure_of(CREATED + wrong).failure.kind is Kind.CORRUPT


def test_unknown_events_are_ignored_whatever_they_carry() -> None:
    odd = event_bytes("codex.rate_limits", delta={"limit_reached": True}, response=[1], text=7)
    stream = fixture("text.sse").replace(CREATED, b"") + odd
    first, rest = stream.split(b"\n\n", 1)
    assert join_deltas(events_of(first + b"\n\n" + odd + rest)) == decode_fixture("text.sse")


def test_nothing_after_the_end_is_read() -> None:
    more = event_bytes("response.output_text.delta", output_index=5, content_index=0, delta="late")
    assert join_deltas(events_of(fixture("text.sse") + more + b"data: nonsense\n\n")) == decode_fixture("text.sse")


def test_a_broken_framing_is_corruption() -> None:
    decoder = UPSTREAM.decoder(ISSUER, Ledger())
    failed = expect_all(Failed, decoder.feed(Broken("too large")))
    assert [event.failure.kind for event in failed] == [Kind.CORRUPT]
    assert list(decoder.finish()) == []


def test_half_a_surrogate_pair_costs_one_character_and_not_the_reply() -> None:
    stream = fixture("text.sse").replace(b'"delta":"world"', b'"delta":"w\\ud83dd"')
    assert texts(join_deltas(events_of(stream))) == [(TextBlock(), "Hello, w\ufffdd.")]


def test_event_names_may_be_missing() -> None:
    unnamed = b"\n".join(line for line in fixture("text.sse").split(b"\n") if not line.startswith(b"event:"))
    assert join_deltas(events_of(unnamed)) == decode_fixture("text.sse")


def test_a_stream_that_never_sends_created_is_begun_all_the_same() -> None:
    stream = event_bytes("response.output_text.delta", output_index=0, content_index=0, delta="hi")
    events = events_of(stream + event_bytes("response.completed", response={"status": "completed"}))
    assert events[0] == Started("", "")
    assert texts(events) == [(TextBlock(), "hi")]


def test_arguments_sent_as_an_object_become_their_json() -> None:
    call = {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": {"a": 1}}
    stream = CREATED + event_bytes("response.completed", response={"status": "completed", "output": [call]})
    assert texts(events_of(stream)) == [(CallBlock("c", "f"), '{"a":1}')]


def test_an_unknown_item_is_left_out_and_in_the_ledger() -> None:
    ledger = Ledger()
    item = {"type": "hologram", "id": "h"}
    events = events_of(CREATED + event_bytes("response.output_item.done", output_index=0, item=item), ledger)
    assert not any(isinstance(event, Opened) for event in events)
    assert [(loss.path, loss.how) for loss in ledger] == [("/output/0", LossKind.DROPPED)]


def test_a_message_without_content_is_no_block() -> None:
    item = {"type": "message", "id": "m", "role": "assistant"}
    stream = CREATED + event_bytes("response.output_item.added", output_index=0, item=item)
    stream += event_bytes("response.completed", response={"status": "completed", "output": [item]})
    assert texts(events_of(stream)) == []


def test_a_whole_reply_gives_the_same_events() -> None:
    events = UPSTREAM.decode_whole(fixture("whole.json"), ISSUER, Ledger())
    assert events[0] == STARTED
    assert [type(what) for what, _ in texts(events)] == [ThinkingBlock, TextBlock, CallBlock, CallBlock, HostedBlock]
    assert events[-1] == Ended(Stop.TOOL)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"error":{"message":"quota","code":"insufficient_quota"}}', Kind.QUOTA),
        (b"<html><h1>502 Bad Gateway</h1></html>", Kind.CORRUPT),
        (b'{"object":"list"}', Kind.CORRUPT),
        (b"", Kind.CORRUPT),
        (b'{"id":"r","status":"in_progress","output":[]}', Kind.UPSTREAM),
        (b'{"id":"r","status":"failed","error":{"code":"server_is_overloaded","message":"x"}}', Kind.OVERLOADED),
        (b"[" * 100_000, Kind.CORRUPT),
    ],
)
def test_a_whole_body_that_is_no_finished_reply_is_a_failure(body: bytes, kind: Kind) -> None:
    last = UPSTREAM.decode_whole(body, ISSUER, Ledger())[-1]
    assert isinstance(last, Failed)
    assert last.failure.kind is kind


def test_frames_of_other_kinds_are_refused_without_raising() -> None:
    decoder = UPSTREAM.decoder(ISSUER, Ledger())
    assert list(decoder.feed(Frame("", b""))) == []
    assert list(decoder.feed(Frame("x", b"[1,2]"))) != []


def make_cited_message(*deltas: JsonObject) -> list[Event]:
    """A message of which an annotation comes first, and the finished item last."""
    source = {"type": "url_citation", "url": "https://example.com", "title": "E", "start_index": 0, "end_index": 2}
    place = {"output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "Hi", "annotations": [source]}
    early = {"type": "response.output_text.annotation.added", **place, "annotation_index": 0, "annotation": source}
    done = {"type": "response.output_item.done", "output_index": 0, "item": {"type": "message", "content": [part]}}
    over = {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": []}}
    events = (early, *({**delta, **place} for delta in deltas), done, over)
    return events_of(b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events))


def test_a_citation_that_comes_before_its_text_is_sent_with_it() -> None:
    events = make_cited_message({"type": "response.output_text.delta", "delta": "Hi"})
    assert [event.citation.url for event in events if isinstance(event, CitationAdded)] == ["https://example.com"]
    assert texts(events) == [(TextBlock(), "Hi")]


def test_a_refusal_cites_nothing() -> None:
    events = make_cited_message({"type": "response.refusal.delta", "delta": "No."})
    assert not any(isinstance(event, CitationAdded) for event in events)
    assert isinstance(events[-1], Ended)
