"""How the reply to a prepared request is read: as a stream, as one body, or only looked at."""

import logging

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.net.headers import Headers
from dragoman.proxy.decoding import (
    begins_document,
    begins_events,
    is_named_stream,
    is_stream,
    make_source,
    make_stages,
    peek_events,
    read_events,
)
from dragoman.proxy.prepared import Passthrough, Translated
from dragoman.translate.hub.events import CallBlock, Delta, Ended, Event, Failed, Opened, Started, Stop, UsageReported
from dragoman.translate.hub.failure import Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Issuer, Upstream
from dragoman.translate.hub.usage import UsageSource
from dragoman.translate.protocols import PROTOCOLS
from dragoman.translate.stages.estimate_usage import EstimateUsage
from dragoman.translate.stages.restore_tools import RestoreTools
from dragoman.translate.stages.thinking_tags import ThinkingTags
from dragoman.upstreams.provider import Provider, ReplyRules
from dragoman.upstreams.routing import Route
from narrowing import expect, present
from proxy.in_memory import CHAT, MESSAGES, make_call, make_provider, prepare_for, run
from replies import text_of

WHOLE = msgspec.json.encode(
    {
        "id": "c1",
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
    }
)
STREAM = (
    b'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"Hel"}}]}\n\n'
    b'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)
CUSTOM_TOOL = (
    b'{"model":"m","messages":[{"role":"user","content":"Go on."}],'
    b'"tools":[{"type":"custom","custom":{"name":"patch"}}]}'
)


def translate(provider: Provider | None = None, body: bytes = MESSAGES) -> Translated:
    """A Messages client's request to a Chat upstream."""
    return expect(Translated, run(prepare_for(make_call("messages", body), provider or make_provider())))


def prepare_passthrough() -> Passthrough:
    return expect(Passthrough, run(prepare_for(make_call("chat", CHAT), make_provider())))


@pytest.mark.parametrize(("body", "streamed"), [(WHOLE, False), (STREAM, True)])
def test_a_body_means_the_same_as_a_document_and_as_a_stream(body: bytes, streamed: bool) -> None:
    events = read_events(translate(), body, Ledger(), streamed)
    assert isinstance(events[0], Started)
    assert text_of(events, 0) == "Hello"
    assert events[-1] == Ended(Stop.END)


def test_a_stream_that_just_ends_is_truncated() -> None:
    events = read_events(translate(), STREAM[:120], Ledger(), streamed=True)
    assert isinstance(events[-1], Failed)


def test_the_source_reads_with_the_upstreams_own_framer_and_decoder() -> None:
    source = make_source(translate(), Ledger())
    events = [event for byte in STREAM for event in source.feed(bytes([byte]))] + source.finish()
    assert text_of(events, 0) == "Hello"
    assert source.frames == 3


def test_a_translated_reply_goes_through_those_of_its_provider_and_then_ours() -> None:
    provider = make_provider(replies=ReplyRules(stages=lambda request: [ThinkingTags()]))
    tools = run(prepare_for(make_call("chat", CUSTOM_TOOL), make_provider(protocols=("messages",))))
    assert [type(stage) for stage in make_stages(translate(provider))] == [ThinkingTags, EstimateUsage]
    assert [type(stage) for stage in make_stages(expect(Translated, tools))] == [RestoreTools, EstimateUsage]


def test_usage_that_was_not_reported_is_estimated_from_the_request_and_the_reply() -> None:
    prepared = translate()
    [estimate] = make_stages(prepared)
    given = [out for event in read_events(prepared, WHOLE, Ledger(), streamed=False) for out in estimate.feed(event)]
    [used] = [event for event in given if isinstance(event, UsageReported)]
    assert used.usage.source is UsageSource.ESTIMATED
    assert used.usage.input > 0
    assert used.usage.output > 0


def test_the_estimated_output_of_claude_is_corrected_as_its_input_is() -> None:
    reply = WHOLE.replace(b"Hello", b"word " * 400)
    [plain, claude] = [
        replace(translate(), route=Route("up", model)) for model in ("vendor-model", "anthropic.claude-opus-5-v1:0")
    ]
    assert estimated_output(claude, reply) == round(estimated_output(plain, reply) * 1.15)


def estimated_output(prepared: Translated, reply: bytes) -> int:
    [estimate] = make_stages(prepared)
    given = [out for event in read_events(prepared, reply, Ledger(), streamed=False) for out in estimate.feed(event)]
    [used] = [event.usage.output for event in given if isinstance(event, UsageReported)]
    return used


def test_a_glance_sees_the_usage_and_the_failure_of_what_passes() -> None:
    used = WHOLE.replace(b'"id":"c1"', b'"id":"c1","usage":{"prompt_tokens":7,"completion_tokens":2}')
    assert any(
        isinstance(event, UsageReported) and event.usage.input == 7
        for event in peek_events(prepare_passthrough(), used)
    )
    [*_, last] = peek_events(prepare_passthrough(), b'{"error":{"message":"overloaded","type":"server_error"}}')
    assert isinstance(last, Failed)


@pytest.mark.parametrize("body", [b"", b"Bad gateway", b"[1,2]"])
def test_what_is_no_reply_at_all_is_a_failure(body: bytes) -> None:
    [*_, last] = peek_events(prepare_passthrough(), body)
    assert expect(Failed, last).failure.kind is Kind.CORRUPT


def test_an_object_that_we_cannot_read_is_the_clients_to_read() -> None:
    assert peek_events(prepare_passthrough(), b'{"choices":[{"message":{"role":"assistant","content":7}}]}') == []


def test_a_bug_in_reading_costs_no_byte(caplog: pytest.LogCaptureFixture) -> None:
    def raise_error(body: bytes, issuer: Issuer, ledger: Ledger) -> list[Event]:
        raise ZeroDivisionError(body)

    prepared = prepare_passthrough()
    prepared = replace(prepared, upstream=replace(prepared.upstream, decode_outline=raise_error))
    with caplog.at_level(logging.ERROR):
        assert peek_events(prepared, WHOLE) == []
    assert "ZeroDivisionError" in caplog.text
    assert "Hello" not in caplog.text


def test_a_tool_comes_back_as_it_was_declared() -> None:
    prepared = run(prepare_for(make_call("chat", CUSTOM_TOOL), make_provider(protocols=("messages",))))
    events: list[Event] = [Opened(0, CallBlock("call_1", "patch")), Delta(0, '{"input":"*** Begin"}')]
    for stage in make_stages(expect(Translated, prepared)):
        events = [out for event in events for out in stage.feed(event)]
    [opened] = [event for event in events if isinstance(event, Opened)]
    assert opened == Opened(0, CallBlock("call_1", "patch", custom=True))


def upstream(name: str) -> Upstream:
    return present(PROTOCOLS[name].upstream)


CHAT_UPSTREAM, KIRO_UPSTREAM = upstream("chat"), upstream("kiro")


def make_headers(content_type: bytes | None) -> Headers:
    return Headers([] if content_type is None else [(b"content-type", content_type)])


@pytest.mark.parametrize(
    ("content_type", "is_one"),
    [
        (b"text/event-stream", True),
        (b"text/event-stream; charset=utf-8", True),
        (b"application/vnd.amazon.eventstream", True),
        (None, True),  # a request for a stream is answered with one
        (b"application/json", False),
        (b"Application/JSON; charset=utf-8", False),
        (b"text/html", False),
        (b"text/plain", False),
    ],
)
def test_a_document_is_known_by_its_name(content_type: bytes | None, is_one: bool) -> None:
    assert is_named_stream(make_headers(content_type)) is is_one


@pytest.mark.parametrize(
    ("begun", "document", "events"),
    [
        (b'{"id":', True, False),
        (b"\n  <html>", True, False),
        (b"data: {}", False, True),
        (b"event: message_start\n", False, True),
        (b": keep-alive\n\n", False, True),
        (b"\xef\xbb\xbfdata: {}", False, True),
        (b"\r\nid: 1", False, True),
        (b"upstream connect error", False, False),
        (b"", False, False),
    ],
)
def test_the_first_bytes_decide_between_document_and_events(begun: bytes, document: bool, events: bool) -> None:
    assert begins_document(CHAT_UPSTREAM, begun) is document
    assert begins_events(CHAT_UPSTREAM, begun) is events


def test_binary_frames_begin_with_anything() -> None:
    """A length of 0x7b bytes is no brace."""
    assert not begins_document(KIRO_UPSTREAM, b"{\0\0\0")
    assert not begins_events(KIRO_UPSTREAM, b":\0\0\0")


@pytest.mark.parametrize(
    ("content_type", "body", "streamed"),
    [
        (b"text/event-stream", b"data: {}\n\n", True),
        (b"text/event-stream", b'{"error":{}}', False),
        (b"application/json", b'{"id":1}', False),
        (b"application/json", b"data: {}\n\n", True),
        (b"text/plain", b"Bad gateway", False),
    ],
)
def test_where_name_and_bytes_disagree_the_bytes_are_believed(content_type: bytes, body: bytes, streamed: bool) -> None:
    assert is_stream(CHAT_UPSTREAM, body, is_named=is_named_stream(make_headers(content_type))) is streamed
