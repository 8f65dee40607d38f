"""Decode the messages of a Kiro reply, streamed or whole, into hub events."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from dragoman.translate.framing import eventstream, jsonscan
from dragoman.translate.framing.eventstream import EventStreamFramer, EventStreamMessage, HeaderValue
from dragoman.translate.framing.jsonread import read_json
from dragoman.translate.framing.jsonscan import ObjectScanner
from dragoman.translate.framing.sse import Broken
from dragoman.translate.hub.events import Ended, Event, Failed, Started, Stop, UsageReported
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Issuer, Progress
from dragoman.translate.hub.usage import Usage, UsageSource, clamp_usage, mark_clamped
from dragoman.translate.protocols.kiro.decode_blocks import Blocks, Calls, cite_links, cite_quotation, cite_references
from dragoman.translate.protocols.kiro.errors import ReportedFault, build_failure, read_fault
from dragoman.translate.protocols.kiro.wire import (
    STOPS,
    CitationEvent,
    CodeReferences,
    ContextUsage,
    Metadata,
    Metering,
    ReasoningEvent,
    ReplyIds,
    TextEvent,
    TokenUsage,
    ToolUse,
    WebLinks,
    read_options,
)

_PRELUDE_BYTES = 12  # the length of a frame's prelude, which always holds a byte that text does not
_CONTROL_BYTE = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_UNFRAMED: dict[str, str] = {}
_CUT = (eventstream.CUT, jsonscan.CUT)
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
_FULL_PERCENT = 100.0  # of the context window
_MAX_PERCENT = 1e6
_text_event = msgspec.json.Decoder(TextEvent)
_reasoning_event = msgspec.json.Decoder(ReasoningEvent)
_tool_use = msgspec.json.Decoder(ToolUse)
_reply_ids = msgspec.json.Decoder(ReplyIds)
_metadata = msgspec.json.Decoder(Metadata)
_context_usage = msgspec.json.Decoder(ContextUsage)
_metering = msgspec.json.Decoder(Metering)
_references = msgspec.json.Decoder(CodeReferences)
_links = msgspec.json.Decoder(WebLinks)
_citation_event = msgspec.json.Decoder(CitationEvent)
_keys = msgspec.json.Decoder(dict[str, Raw])
_Event = TypeVar(
    "_Event",
    TextEvent, ReasoningEvent, ToolUse, ReplyIds, Metadata, ContextUsage, Metering, CodeReferences, WebLinks,
    CitationEvent,
)  # fmt: skip

# The reply fails if one of these cannot be read.
_CONTENT_EVENTS = ("assistantResponseEvent", "toolUseEvent", "reasoningContentEvent")
_ERROR_EVENTS = ("invalidStateEvent", "error")

# Bare objects have no event name: the first key that fits decides.
_BY_KEY = {
    "followupPrompt": "followupPromptEvent",
    "toolUseId": "toolUseEvent",
    "input": "toolUseEvent",
    "stop": "toolUseEvent",
    "content": "assistantResponseEvent",
    "redactedContent": "reasoningContentEvent",
    "signature": "reasoningContentEvent",
    "reasoningText": "reasoningContentEvent",
    "text": "reasoningContentEvent",
    "tokenUsage": "metadataEvent",
    "stopReason": "metadataEvent",
    "contextUsagePercentage": "contextUsageEvent",
    "usage": "meteringEvent",
    "references": "codeReferenceEvent",
    "supplementaryWebLinks": "supplementaryWebLinksEvent",
    "citationLink": "citationEvent",
    "utteranceId": "messageMetadataEvent",
    "__type": "error",
    "message": "error",
    "EventStreamMessage": "error",
    "errorMessage": "error",
}


class KiroFramer(Struct, eq=False):
    """Read AWS event-stream frames, or bare JSON objects if the first bytes are text."""

    _first_bytes: bytes = b""  # kept until the format is known
    _frames: EventStreamFramer | None = None
    _scan: ObjectScanner | None = None

    def feed(self, chunk: bytes) -> list[EventStreamMessage | Broken]:
        if self._frames is not None:
            return self._frames.feed(chunk)
        if self._scan is not None:
            return _wrap_objects(self._scan.feed(chunk))
        first_bytes = self._first_bytes + chunk
        if _CONTROL_BYTE.search(first_bytes, 0, _PRELUDE_BYTES):
            self._frames = EventStreamFramer()
        elif len(first_bytes) >= _PRELUDE_BYTES:
            self._scan = ObjectScanner()
        else:
            self._first_bytes = first_bytes
            return []
        return self.feed(first_bytes)

    def finish(self) -> list[EventStreamMessage | Broken]:
        if self._frames is not None:
            return self._frames.finish()
        if self._scan is not None:
            return _wrap_objects(self._scan.finish())
        scan = ObjectScanner()
        return _wrap_objects(scan.feed(self._first_bytes) + scan.finish())


def _wrap_objects(found: list[bytes | Broken]) -> list[EventStreamMessage | Broken]:
    return [item if isinstance(item, Broken) else EventStreamMessage(_UNFRAMED, item) for item in found]


class Decoder:
    """Decode one reply. Kiro has no terminal event: the reply ends with its stream."""

    __slots__ = (
        "_blocks", "_calls", "_credits", "_headers", "_id", "_is_over", "_issuer", "_ledger", "_model", "_name",
        "_percentage", "_readers", "_started", "_stop_reason", "_tail", "_tokens",
    )  # fmt: skip
    progress = Progress.READING

    def __init__(self, issuer: Issuer, ledger: Ledger) -> None:
        self._issuer = issuer
        self._ledger = ledger
        self._blocks = Blocks(issuer, ledger)
        self._calls = Calls(ledger)
        self._headers: Mapping[str, HeaderValue] | None = None  # of the last message
        self._name: HeaderValue | None = None  # of its event
        self._id = ""
        self._model = issuer.model
        self._started = False
        self._tail = False  # every complete reply ends with a metadata, context usage or metering event
        self._is_over = False
        self._stop_reason: str | None = None
        self._tokens: TokenUsage | None = None
        self._percentage: float | None = None
        self._credits: float | None = None
        self._readers: dict[HeaderValue, Callable[[bytes], Sequence[Event]]] = {
            "assistantResponseEvent": self._read_text,
            "toolUseEvent": self._read_tool_use,
            "reasoningContentEvent": self._read_reasoning,
            "messageMetadataEvent": self._read_ids,
            "metadataEvent": self._read_metadata,
            "contextUsageEvent": self._read_context_usage,
            "meteringEvent": self._read_metering,
            "codeReferenceEvent": self._read_references,
            "supplementaryWebLinksEvent": self._read_links,
            "citationEvent": self._read_citation,
        }

    def feed(self, item: object) -> Sequence[Event]:
        if self._is_over:
            return ()
        if type(item) is not EventStreamMessage:
            return self._read_broken(item)
        headers, payload = item.headers, item.payload
        if headers is not self._headers:  # messages with equal headers nearly always share them
            kind = headers.get(":message-type")
            if kind == "exception" or kind == "error":
                return self._read_exception(headers, payload)
            self._headers, self._name = headers, headers.get(":event-type")
        name = self._name or _guess_event_name(payload)
        reader = self._readers.get(name)
        if reader is None:
            return self._read_fault_event(payload) if name in _ERROR_EVENTS else ()
        earlier = self._take_empty_call() if self._calls.empty is not None and name != "toolUseEvent" else ()
        try:
            events = reader(payload)
        except _UNREADABLE:
            if name in _CONTENT_EVENTS:
                events = self._fail(Failure(Kind.CORRUPT, f"the upstream sent a {name} that cannot be read"))
            else:
                events = ()
        return [*earlier, *events] if earlier else events

    def finish(self) -> Sequence[Event]:
        if self._is_over:
            return ()
        calls, cut = self._calls.end()
        if not (self._started or self._tail or cut):
            return self._fail(Failure(Kind.TRUNCATED, "the upstream's stream ended without any content"))
        self._is_over = True
        events: list[Event] = list(self._start_events())
        for call in calls:
            events += self._blocks.call(call)
        events += self._blocks.end()
        usage = self._build_usage()
        if usage is not None:
            events.append(UsageReported(clamp_usage(usage, self._ledger)))
        stop = Stop.LENGTH if cut else self._choose_stop()
        return [*events, Ended(stop, cut=cut)]

    # Events

    def _read_text(self, payload: bytes) -> Sequence[Event]:
        try:
            event = _text_event.decode(payload)  # succeeds nearly always
        except msgspec.DecodeError:
            event = read_json(_text_event, payload)
        if event.wrapped is not None:
            event = event.wrapped
        text = event.content
        if not text:
            return ()
        if self._started:
            return self._blocks.text(text)
        self._model = event.model_id or self._model
        return [*self._start_events(), *self._blocks.text(text)]

    def _read_reasoning(self, payload: bytes) -> Sequence[Event]:
        event = _decode_event(_reasoning_event, payload)
        events: list[Event] = []
        if event.redacted_content:
            events += self._blocks.add_redacted(event.redacted_content)
        text = event.text or event.reasoning_text
        if text:
            events += self._blocks.reasoning(text)
        if event.signature:
            events += self._blocks.signature(event.signature)
        return [*self._start_events(), *events] if events or event.signature else ()

    def _read_tool_use(self, payload: bytes) -> Sequence[Event]:
        event = _decode_event(_tool_use, payload)
        events = list(self._start_events())
        for call in self._calls.add(event):
            events += self._blocks.call(call)
        return events

    def _take_empty_call(self) -> Sequence[Event]:
        return [event for call in self._calls.take_empty() for event in self._blocks.call(call)]

    def _read_ids(self, payload: bytes) -> Sequence[Event]:
        event = _decode_event(_reply_ids, payload)
        self._id = event.utterance_id or event.conversation_id or self._id
        return ()

    def _read_references(self, payload: bytes) -> Sequence[Event]:
        return self._blocks.cite(cite_references(_decode_event(_references, payload)))

    def _read_links(self, payload: bytes) -> Sequence[Event]:
        return self._blocks.cite(cite_links(_decode_event(_links, payload)))

    def _read_citation(self, payload: bytes) -> Sequence[Event]:
        return self._blocks.cite(cite_quotation(_decode_event(_citation_event, payload)))

    def _read_metadata(self, payload: bytes) -> Sequence[Event]:
        self._tail = True
        event = _decode_event(_metadata, payload)
        self._tokens = event.token_usage or self._tokens
        self._stop_reason = event.stop_reason or self._stop_reason
        return ()

    def _read_context_usage(self, payload: bytes) -> Sequence[Event]:
        self._tail = True
        event = _decode_event(_context_usage, payload)
        if event.context_usage_percentage is not None:
            self._percentage = min(max(event.context_usage_percentage, 0.0), _MAX_PERCENT)
        return ()

    def _read_metering(self, payload: bytes) -> Sequence[Event]:
        self._tail = True
        event = _decode_event(_metering, payload)
        if event.usage is not None and event.unit in (None, "credit", "credits"):
            self._credits = (self._credits or 0.0) + event.usage
        return ()

    # Beginning and end

    def _start_events(self) -> Iterable[Event]:
        if self._started:
            return ()
        self._started = True
        return (Started(self._id, self._model),)

    def _choose_stop(self) -> Stop:
        """Return the stop reason; complete calls decide, because Kiro often sends END_TURN after them."""
        if self._calls.made:
            return Stop.TOOL
        if self._stop_reason is None:
            expects_tail = read_options(self._issuer.options).missing_tail_is_truncation
            stop = Stop.END if self._tail or not expects_tail else Stop.LENGTH
        elif self._stop_reason in STOPS:
            stop = STOPS[self._stop_reason]
        else:
            self._ledger.record_approximated("/stopReason", f"{self._stop_reason!r:.80} is read as a natural end")
            stop = Stop.END
        full = self._percentage is not None and self._percentage >= _FULL_PERCENT
        return Stop.CONTEXT_FULL if full and stop in (Stop.END, Stop.LENGTH) else stop

    def _build_usage(self) -> Usage | None:
        tokens, credits = self._tokens, self._credits
        share = self._percentage if self._issuer.window else None
        if tokens is not None and (share is None or tokens.has_input):
            read, written = int(tokens.cache_read_input_tokens or 0), int(tokens.cache_write_input_tokens or 0)
            fresh = int(tokens.uncached_input_tokens or 0)
            prompt_tokens = max(fresh, 0) + max(read, 0) + max(written, 0)
            usage = Usage(prompt_tokens, int(tokens.output_tokens or 0), read, written, credits=credits)
            return mark_clamped(usage, self._ledger) if fresh < 0 else usage
        if share is not None:
            context = round(share / 100 * (self._issuer.window or 0))
            if tokens is None or tokens.output_tokens is None:
                return Usage(context=context, credits=credits, source=UsageSource.DERIVED)
            output = int(tokens.output_tokens)
            return Usage(max(0, context - output), output, credits=credits, source=UsageSource.DERIVED)
        return None if credits is None else Usage(credits=credits, source=UsageSource.ESTIMATED)

    # Failures

    def _read_exception(self, headers: Mapping[str, HeaderValue], payload: bytes) -> Sequence[Event]:
        fault = read_fault(payload)
        named = headers.get(":exception-type") or headers.get(":error-code") or fault.type or ""
        message = fault.text or str(headers.get(":error-message") or "")
        return self._fail(build_failure(ReportedFault(message, fault.reason, str(named))))

    def _read_broken(self, item: object) -> Sequence[Event]:
        why = item.why if isinstance(item, Broken) else "not a message"
        kind = Kind.TRUNCATED if why in _CUT else Kind.CORRUPT
        return self._fail(Failure(kind, f"the upstream's stream cannot be read: {why}"))

    def _read_fault_event(self, payload: bytes) -> Sequence[Event]:
        fault = read_fault(payload)
        reported = ReportedFault(fault.text, fault.reason, fault.type or "InternalServerException")
        return self._fail(build_failure(reported))

    def _fail(self, failure: Failure) -> Sequence[Event]:
        self._is_over = True
        return (Failed(failure),)


def _decode_event(decoder: msgspec.json.Decoder[_Event], payload: bytes) -> _Event:
    try:
        event = decoder.decode(payload)  # succeeds nearly always
    except msgspec.DecodeError:
        event = read_json(decoder, payload)
    return event.wrapped or event


def _guess_event_name(payload: bytes) -> str:
    """Return the event name of a bare object: its only key, or guessed from its keys."""
    try:
        keys = read_json(_keys, payload)
    except _UNREADABLE:
        return ""
    if len(keys) == 1 and (only := next(iter(keys))).endswith("Event"):
        return only
    return next((name for key, name in _BY_KEY.items() if key in keys), "")


def decode_whole(body: bytes, issuer: Issuer, ledger: Ledger) -> list[Event]:
    """Return the events of a whole reply, framed or not."""
    framer, decoder = KiroFramer(), Decoder(issuer, ledger)
    events = [event for message in framer.feed(body) for event in decoder.feed(message)]
    events += [event for message in framer.finish() for event in decoder.feed(message)]
    return [*events, *decoder.finish()]
