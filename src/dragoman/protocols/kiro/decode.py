"""Decode the messages of a Kiro reply, streamed or whole, into hub events."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Raw

from dragoman.framing import eventstream, jsonscan
from dragoman.framing.eventstream import EventStreamFramer, HeaderValue, Message
from dragoman.framing.jsonread import read_json
from dragoman.framing.jsonscan import ObjectScanner
from dragoman.framing.sse import Broken
from dragoman.hub.events import Ended, Event, Failed, Started, Stop, UsageReported
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import Issuer, Progress
from dragoman.hub.usage import Source, Usage, clamp_usage, mark_clamped
from dragoman.protocols.kiro.decode_blocks import Blocks, Calls, cite_links, cite_quotation, cite_references
from dragoman.protocols.kiro.errors import failure_of, read_fault
from dragoman.protocols.kiro.wire import (
    STOPS,
    CodeReferences,
    ContextUsage,
    Metadata,
    Metering,
    Quotation,
    ReplyIds,
    Thoughts,
    TokenUsage,
    ToolUse,
    WebLinks,
    Words,
    options_of,
)

_DECIDING = 12  # the length of a frame's prelude, in which there is always a byte that no text has
_NO_TEXT = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_UNFRAMED: dict[str, str] = {}
_CUT = (eventstream.CUT, jsonscan.CUT)
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
_FULL = 100.0  # per cent of the context
_MOST_PER_CENT = 1e6
_words = msgspec.json.Decoder(Words)
_thoughts = msgspec.json.Decoder(Thoughts)
_tool_use = msgspec.json.Decoder(ToolUse)
_reply_ids = msgspec.json.Decoder(ReplyIds)
_metadata = msgspec.json.Decoder(Metadata)
_context_usage = msgspec.json.Decoder(ContextUsage)
_metering = msgspec.json.Decoder(Metering)
_references = msgspec.json.Decoder(CodeReferences)
_links = msgspec.json.Decoder(WebLinks)
_quotation = msgspec.json.Decoder(Quotation)
_keys = msgspec.json.Decoder(dict[str, Raw])
_Event = TypeVar(
    "_Event",
    Words, Thoughts, ToolUse, ReplyIds, Metadata, ContextUsage, Metering, CodeReferences, WebLinks, Quotation,
)  # fmt: skip
_SUBSTANCE = ("assistantResponseEvent", "toolUseEvent", "reasoningContentEvent")  # what must not be lost unnoticed
_TAIL = ("metadataEvent", "contextUsageEvent", "meteringEvent")  # at least one of them ends every whole reply
_FAULTS = ("invalidStateEvent", "error")

# Objects found in a text have no event name: what they hold tells it, the first that fits.
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
    "Message": "error",
    "errorMessage": "error",
}


class KiroFramer:
    """Frames, unless the first bytes are text."""

    __slots__ = ("_frames", "_opening", "_scan")

    def __init__(self) -> None:
        self._opening = b""  # what has come, until it shows which it is
        self._frames: EventStreamFramer | None = None
        self._scan: ObjectScanner | None = None

    def feed(self, chunk: bytes) -> list[Message | Broken]:
        if self._frames is not None:
            return self._frames.feed(chunk)
        if self._scan is not None:
            return _unframed(self._scan.feed(chunk))
        opening = self._opening + chunk
        if _NO_TEXT.search(opening, 0, _DECIDING):
            self._frames = EventStreamFramer()
        elif len(opening) >= _DECIDING:
            self._scan = ObjectScanner()
        else:
            self._opening = opening
            return []
        return self.feed(opening)

    def finish(self) -> list[Message | Broken]:
        if self._frames is not None:
            return self._frames.finish()
        if self._scan is not None:
            return _unframed(self._scan.finish())
        scan = ObjectScanner()
        return _unframed(scan.feed(self._opening) + scan.finish())


def _unframed(found: list[bytes | Broken]) -> list[Message | Broken]:
    return [item if isinstance(item, Broken) else Message(_UNFRAMED, item) for item in found]


class Decoder:
    """Reads a reply. Kiro has no terminal event: the end of the stream is the end of the reply."""

    __slots__ = (
        "_blocks", "_calls", "_credits", "_id", "_issuer", "_ledger", "_model", "_over", "_percentage", "_started",
        "_steps", "_stop_reason", "_tail", "_tokens",
    )  # fmt: skip
    progress = Progress.READING

    def __init__(self, issuer: Issuer, ledger: Ledger) -> None:
        self._issuer = issuer
        self._ledger = ledger
        self._blocks = Blocks(issuer, ledger)
        self._calls = Calls(ledger)
        self._id = ""
        self._model = issuer.model
        self._started = False
        self._tail = False
        self._over = False
        self._stop_reason: str | None = None
        self._tokens: TokenUsage | None = None
        self._percentage: float | None = None
        self._credits: float | None = None
        self._steps: dict[str, Callable[[bytes], Sequence[Event]]] = {
            "assistantResponseEvent": self._say,
            "toolUseEvent": self._use,
            "reasoningContentEvent": self._think,
            "messageMetadataEvent": self._identify,
            "metadataEvent": self._account,
            "contextUsageEvent": self._fill,
            "meteringEvent": self._meter,
            "codeReferenceEvent": self._refer,
            "supplementaryWebLinksEvent": self._link,
            "citationEvent": self._quote,
        }

    def feed(self, item: object) -> Sequence[Event]:
        if self._over:
            return ()
        if not isinstance(item, Message):
            return self._unreadable(item)
        headers = item.headers
        kind = headers.get(":message-type")
        if kind == "exception" or kind == "error":
            return self._except(headers, item.payload)
        name = headers.get(":event-type")
        return self._take(str(name) if name else _name_of(item.payload), item.payload)

    def finish(self) -> Sequence[Event]:
        if self._over:
            return ()
        calls, cut = self._calls.end()
        if not (self._started or self._tail or cut):
            return self._fail(Failure(Kind.TRUNCATED, "the upstream's stream ended before it said anything"))
        self._over = True
        events: list[Event] = list(self._begin())
        for call in calls:
            events += self._blocks.call(call)
        events += self._blocks.end()
        usage = self._usage()
        if usage is not None:
            events.append(UsageReported(clamp_usage(usage, self._ledger)))
        stop = Stop.LENGTH if cut else self._stop()
        return [*events, Ended(stop, cut=cut)]

    def _take(self, name: str, payload: bytes) -> Sequence[Event]:
        step = self._steps.get(name)
        if step is None:
            return self._fault(payload) if name in _FAULTS else ()
        if name in _TAIL:
            self._tail = True
        waited = self._made() if self._calls.empty is not None and name != "toolUseEvent" else ()
        try:
            told = step(payload)
        except _UNREADABLE:
            if name in _SUBSTANCE:
                told = self._fail(Failure(Kind.CORRUPT, f"the upstream sent a {name} that cannot be read"))
            else:
                told = ()
        return [*waited, *told] if waited else told

    # Steps

    def _say(self, payload: bytes) -> Sequence[Event]:
        event = _read(_words, payload)
        text = event.content
        if not text:
            return ()
        if self._started:
            return self._blocks.text(text)
        self._model = event.model_id or self._model
        return [*self._begin(), *self._blocks.text(text)]

    def _think(self, payload: bytes) -> Sequence[Event]:
        event = _read(_thoughts, payload)
        told: list[Event] = []
        if event.redacted_content:
            told += self._blocks.redacted(event.redacted_content)
        text = event.text or event.reasoning_text
        if text:
            told += self._blocks.thought(text)
        if event.signature:
            told += self._blocks.signature(event.signature)
        return [*self._begin(), *told] if told or event.signature else ()

    def _use(self, payload: bytes) -> Sequence[Event]:
        event = _read(_tool_use, payload)
        told = list(self._begin())
        for call in self._calls.add(event):
            told += self._blocks.call(call)
        return told

    def _made(self) -> Sequence[Event]:
        return [event for call in self._calls.settle() for event in self._blocks.call(call)]

    def _identify(self, payload: bytes) -> Sequence[Event]:
        event = _read(_reply_ids, payload)
        self._id = event.utterance_id or event.conversation_id or self._id
        return ()

    def _refer(self, payload: bytes) -> Sequence[Event]:
        return self._blocks.cite(cite_references(_read(_references, payload)))

    def _link(self, payload: bytes) -> Sequence[Event]:
        return self._blocks.cite(cite_links(_read(_links, payload)))

    def _quote(self, payload: bytes) -> Sequence[Event]:
        return self._blocks.cite(cite_quotation(_read(_quotation, payload)))

    def _account(self, payload: bytes) -> Sequence[Event]:
        event = _read(_metadata, payload)
        self._tokens = event.token_usage or self._tokens
        self._stop_reason = event.stop_reason or self._stop_reason
        return ()

    def _fill(self, payload: bytes) -> Sequence[Event]:
        event = _read(_context_usage, payload)
        if event.context_usage_percentage is not None:
            self._percentage = min(max(event.context_usage_percentage, 0.0), _MOST_PER_CENT)
        return ()

    def _meter(self, payload: bytes) -> Sequence[Event]:
        event = _read(_metering, payload)
        if event.usage is not None and event.unit in (None, "credit", "credits"):
            self._credits = (self._credits or 0.0) + event.usage
        return ()

    # Beginning and end

    def _begin(self) -> Iterable[Event]:
        if self._started:
            return ()
        self._started = True
        return (Started(self._id, self._model),)

    def _stop(self) -> Stop:
        """Whole calls win: Kiro says END_TURN after a third of its tool calls."""
        if self._calls.made:
            return Stop.TOOL
        if self._stop_reason is None:
            stop = Stop.END if self._tail or not self._wants_tail() else Stop.LENGTH
        elif self._stop_reason in STOPS:
            stop = STOPS[self._stop_reason]
        else:
            self._ledger.note_approximated("/stopReason", f"{self._stop_reason!r:.80} is told as a natural end")
            stop = Stop.END
        full = self._percentage is not None and self._percentage >= _FULL
        return Stop.CONTEXT_FULL if full and stop in (Stop.END, Stop.LENGTH) else stop

    def _wants_tail(self) -> bool:
        return options_of(self._issuer.options).missing_tail_is_truncation

    def _usage(self) -> Usage | None:
        tokens, credits = self._tokens, self._credits
        if tokens is not None:
            read, written = int(tokens.cache_read_input_tokens or 0), int(tokens.cache_write_input_tokens or 0)
            fresh = int(tokens.uncached_input_tokens or 0)
            asked = max(fresh, 0) + max(read, 0) + max(written, 0)
            usage = Usage(asked, int(tokens.output_tokens or 0), read, written, credits=credits)
            return mark_clamped(usage, self._ledger) if fresh < 0 else usage
        if self._percentage is not None and self._issuer.window:
            context = round(self._percentage / 100 * self._issuer.window)
            return Usage(context=context, credits=credits, source=Source.DERIVED)
        return None if credits is None else Usage(credits=credits, source=Source.ESTIMATED)

    # Failures

    def _unreadable(self, item: object) -> Sequence[Event]:
        why = item.why if isinstance(item, Broken) else "not a message"
        kind = Kind.TRUNCATED if why in _CUT else Kind.CORRUPT
        return self._fail(Failure(kind, f"the upstream's stream cannot be read: {why}"))

    def _except(self, headers: Mapping[str, HeaderValue], payload: bytes) -> Sequence[Event]:
        fault = read_fault(payload)
        named = headers.get(":exception-type") or headers.get(":error-code") or fault.type or ""
        message = fault.told or str(headers.get(":error-message") or "")
        return self._fail(failure_of(message, fault.reason, str(named)))

    def _fault(self, payload: bytes) -> Sequence[Event]:
        fault = read_fault(payload)
        return self._fail(failure_of(fault.told, fault.reason, fault.type or "InternalServerException"))

    def _fail(self, failure: Failure) -> Sequence[Event]:
        self._over = True
        return (Failed(failure),)


def _read(decoder: msgspec.json.Decoder[_Event], payload: bytes) -> _Event:
    event = read_json(decoder, payload)
    return event.wrapped or event


def _name_of(payload: bytes) -> str:
    """The event that an object without a name is: wrapped in its own, or known by what it holds."""
    try:
        keys = read_json(_keys, payload)
    except _UNREADABLE:
        return ""
    if len(keys) == 1 and (only := next(iter(keys))).endswith("Event"):
        return only
    return next((name for key, name in _BY_KEY.items() if key in keys), "")


def whole(body: bytes, issuer: Issuer, ledger: Ledger) -> list[Event]:
    """The events of a reply that was read to its end, framed or not."""
    framer, decoder = KiroFramer(), Decoder(issuer, ledger)
    events = [event for message in framer.feed(body) for event in decoder.feed(message)]
    events += [event for message in framer.finish() for event in decoder.feed(message)]
    return [*events, *decoder.finish()]
