"""Upstream streams and whole replies in, events out."""

import msgspec
import pytest

from dragoman.translate.framing.sse import Broken, Frame
from dragoman.translate.hub.events import (
    Block,
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
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.usage import Usage
from narrowing import expect_all
from tables import each_row
from translate.protocols.responses.responses_kit import ISSUER, UPSTREAM, event_bytes, events_of, fixture, join_deltas
from wire_json import JsonObject

STARTED = Started("resp_0f1e2d3c", "gpt-5.5-2026-03-05")
USED = UsageReported(Usage(input=120, output=42, cache_read=64, cache_write=16, reasoning=17, service_tier="default"))
CREATED = event_bytes("response.created", response={"id": "resp_1", "model": "m", "status": "in_progress"})


def decode_fixture(name: str) -> list[Event]:
    return join_deltas(events_of(fixture(name)))


def failure_of(stream: bytes) -> Failure:
    last = events_of(stream)[-1]
    assert isinstance(last, Failed)
    return last.failure


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


RAW_THOUGHT = [(ThinkingBlock(raw=True), "raw thoughts"), (TextBlock(), "ok")]


@each_row(
    ("name", "expected"),
    [
        ("unicode.sse", [(TextBlock(), 'Grüße aus 東京 👩‍👩‍👧\u2028 "quoted" \\ back\n')]),
        ("crlf.sse", [(TextBlock(), "ab")]),
        ("reasoning_raw.sse", RAW_THOUGHT),
        ("reasoning_raw_open.sse", RAW_THOUGHT),
        (
            "custom_call.sse",
            [(CallBlock("call_c", "apply_patch", custom=True), "*** Begin Patch\n*** End Patch\n")],
        ),
        ("namespaced_call.sse", [(CallBlock("call_n", "wait_agent", namespace="collaboration"), "{}")]),
        ("refusal.sse", [(RefusalBlock(), "I cannot help with that.")]),
        ("rotating_ids.sse", [(TextBlock(), "rotated")]),  # item ids that change in every event
    ],
)
def test_blocks_of_every_kind_keep_their_text(name: str, expected: list[tuple[Block, str]]) -> None:
    assert texts(decode_fixture(name)) == expected


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
    assert OpaqueAdded(0, Opaque("openai", OpaqueForm.ENCRYPTED, "gAAAA-opaque-1", "gpt-5.5")) in events
    assert events[-1] == Ended(Stop.TOOL)


def add_item(index: int, item: JsonObject, what: str = "done") -> bytes:
    return event_bytes(f"response.output_item.{what}", output_index=index, item=item)


def add_text(text: object, index: int = 0) -> bytes:
    return event_bytes("response.output_text.delta", output_index=index, content_index=0, delta=text)


def complete(*output: JsonObject, **fields: object) -> bytes:
    return event_bytes("response.completed", response={"status": "completed", "output": output, **fields})


ONCE = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "once"}]}
BARE = {"type": "message", "id": "m", "role": "assistant"}
CALLED = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"}
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "once"}]}
THINKING = event_bytes("response.reasoning_summary_text.delta", output_index=0, summary_index=0, delta="once")
ODD_FIELDS: JsonObject = {"id": 5, "model": None, "service_tier": [], "usage": {"input_tokens": 2.5}}


@each_row(
    ("rule", "stream", "expected"),
    [
        (
            "a snapshot with gaps in output_index repeats nothing",
            CREATED + add_text("once", 2) + add_item(2, ONCE) + complete(ONCE),
            [(TextBlock(), "once")],
        ),
        (
            "inessential fields may have any type",
            event_bytes("response.created", response=ODD_FIELDS) + complete(ONCE, **ODD_FIELDS),
            [(TextBlock(), "once")],
        ),
        (
            "a snapshot of items that shared an output_index repeats nothing",
            CREATED + add_item(0, CALLED) + THINKING + add_item(0, THOUGHT) + complete(CALLED, THOUGHT),
            [(CallBlock("c", "weather"), "{}"), (ThinkingBlock(), "once")],
        ),
        (
            "arguments sent as an object become their JSON",
            CREATED + complete({**CALLED, "arguments": {"a": 1}}),
            [(CallBlock("c", "weather"), '{"a":1}')],
        ),
        ("a message without content is no block", CREATED + add_item(0, BARE, "added") + complete(BARE), []),
    ],
)
def test_odd_streams_are_read_once(rule: str, stream: bytes, expected: list[tuple[Block, str]]) -> None:
    assert texts(events_of(stream)) == expected, rule


def test_summary_parts_run_on_in_one_thinking_block_and_are_sealed_by_the_finished_item() -> None:
    assert decode_fixture("reasoning.sse")[1:5] == [
        Opened(0, ThinkingBlock()),
        Delta(0, "**Plan**\n\nThen act."),
        OpaqueAdded(0, Opaque("openai", OpaqueForm.ENCRYPTED, "gAAAA-opaque-1", "gpt-5.5")),
        Closed(0),
    ]


def test_reasoning_that_shows_nothing_is_still_carried() -> None:
    assert decode_fixture("opaque_only.sse")[1:4] == [
        Opened(0, ThinkingBlock()),
        OpaqueAdded(0, Opaque("openai", OpaqueForm.ENCRYPTED, "gAAAA-only", "gpt-5.5")),
        Closed(0),
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


def test_logprobs_ride_on_their_delta() -> None:
    delta = next(event for event in decode_fixture("logprobs.sse") if isinstance(event, Delta))
    assert delta.logprobs is not None
    assert msgspec.json.decode(delta.logprobs)[0]["token"] == "Hi"


@pytest.mark.parametrize(("name", "stop"), [("length.sse", Stop.LENGTH), ("filtered.sse", Stop.FILTERED)])
def test_an_incomplete_reply_ends_with_its_reason(name: str, stop: Stop) -> None:
    assert decode_fixture(name)[-2:] == [USED, Ended(stop)]


def fail_with(code: str) -> bytes:
    return event_bytes("response.failed", response={"id": "resp_1", "error": {"code": code, "message": "no"}})


@each_row(
    ("stream", "kind"),
    [
        (fixture("truncated.sse"), Kind.TRUNCATED),
        (fixture("text.sse")[:-40], Kind.TRUNCATED),  # an event is cut in half
        (CREATED + b"data: [DONE]\n\n", Kind.TRUNCATED),
        (fixture("quota_in_stream.sse"), Kind.QUOTA),
        (CREATED + event_bytes("error", status_code=429, error={"type": "new", "message": "no"}), Kind.RATE_LIMITED),
        (CREATED + fail_with("context_length_exceeded"), Kind.CONTEXT_TOO_LONG),
        (CREATED + fail_with("server_is_overloaded"), Kind.OVERLOADED),
        (CREATED + fail_with("slow_down"), Kind.OVERLOADED),
        (CREATED + fail_with("usage_limit_reached"), Kind.QUOTA),
        (CREATED + fail_with("server_error"), Kind.UPSTREAM),
        (CREATED + fail_with("invalid_prompt"), Kind.BAD_REQUEST),
        (CREATED + fail_with("bio_policy"), Kind.REFUSED),
        (CREATED + b"data: {nonsense}\n\n", Kind.CORRUPT),
        (CREATED + add_text(5), Kind.CORRUPT),
    ],
)
def test_a_stream_that_ends_badly_has_its_kind_of_failure(stream: bytes, kind: Kind) -> None:
    assert failure_of(stream).kind is kind


def test_an_error_inside_a_stream_is_read_in_every_form() -> None:
    nested = failure_of(fixture("error_nested.sse"))
    assert (nested.kind, nested.code, nested.retry_after) == (Kind.RATE_LIMITED, "rate_limit_exceeded", 1.5)
    flat = failure_of(fixture("error_flat.sse"))
    assert (flat.kind, flat.message) == (Kind.UPSTREAM, "The server had an error")
    stream = b'data: {"error":{"message":"slow down","type":"rate_limit_error","code":null}}\n\n'
    assert [type(event) for event in events_of(stream)] == [Failed]
    assert failure_of(stream).kind is Kind.RATE_LIMITED


def test_unknown_events_are_ignored_whatever_they_carry() -> None:
    odd = event_bytes("codex.rate_limits", delta={"limit_reached": True}, response=[1], text=7)
    stream = fixture("text.sse").replace(CREATED, b"") + odd
    first, rest = stream.split(b"\n\n", 1)
    assert join_deltas(events_of(first + b"\n\n" + odd + rest)) == decode_fixture("text.sse")


def test_nothing_after_the_end_is_read() -> None:
    late = fixture("text.sse") + add_text("late", 5) + b"data: nonsense\n\n"
    assert join_deltas(events_of(late)) == decode_fixture("text.sse")


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
    events = events_of(add_text("hi") + complete())
    assert events[0] == Started("", "")
    assert texts(events) == [(TextBlock(), "hi")]


def test_an_unknown_item_is_left_out_and_in_the_ledger() -> None:
    ledger = Ledger()
    item = {"type": "hologram", "id": "h"}
    events = events_of(CREATED + event_bytes("response.output_item.done", output_index=0, item=item), ledger)
    assert not any(isinstance(event, Opened) for event in events)
    assert [(loss.path, loss.how) for loss in ledger] == [("/output/0", LossKind.DROPPED)]


def test_a_whole_reply_gives_the_same_events() -> None:
    events = UPSTREAM.decode_whole(fixture("whole.json"), ISSUER, Ledger())
    assert events[0] == STARTED
    assert [type(what) for what, _ in texts(events)] == [ThinkingBlock, TextBlock, CallBlock, CallBlock, HostedBlock]
    assert events[-1] == Ended(Stop.TOOL)


@each_row(
    ("body", "kind"),
    [
        (b'{"error":{"message":"quota","code":"insufficient_quota"}}', Kind.QUOTA),
        *((body, Kind.CORRUPT) for body in (b"<html><h1>502</h1></html>", b'{"object":"list"}', b"", b"[" * 100_000)),
        (b'{"id":"r","status":"in_progress","output":[]}', Kind.UPSTREAM),
        (b'{"id":"r","status":"failed","error":{"code":"server_is_overloaded","message":"x"}}', Kind.OVERLOADED),
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


def make_cited_message(type_: str, delta: str) -> list[Event]:
    """A message of which an annotation comes first, and the finished item last."""
    source = {"type": "url_citation", "url": "https://example.com", "title": "E", "start_index": 0, "end_index": 2}
    place = {"output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "Hi", "annotations": [source]}
    stream = event_bytes("response.output_text.annotation.added", **place, annotation_index=0, annotation=source)
    stream += event_bytes(type_, **place, delta=delta)
    return events_of(stream + add_item(0, {"type": "message", "content": [part]}) + complete(id="resp_1"))


def test_a_citation_that_comes_before_its_text_is_sent_with_it() -> None:
    events = make_cited_message("response.output_text.delta", "Hi")
    assert [event.citation.url for event in events if isinstance(event, CitationAdded)] == ["https://example.com"]
    assert texts(events) == [(TextBlock(), "Hi")]


def test_a_refusal_cites_nothing() -> None:
    events = make_cited_message("response.refusal.delta", "No.")
    assert not any(isinstance(event, CitationAdded) for event in events)
    assert isinstance(events[-1], Ended)
