"""Encode hub events as a Messages stream or as a whole message."""

from collections.abc import Iterable, Sequence

import msgspec

from dragoman.framing.sse import encode_event
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
)
from dragoman.hub.failure import RequestError
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import Opaque, encode_envelope
from dragoman.hub.ports import ReplyContext
from dragoman.hub.reply import collect
from dragoman.hub.request import Citation
from dragoman.hub.usage import Usage
from dragoman.protocols.messages.encode_blocks import (
    hosted_blocks,
    text_block,
    write_blocks,
    write_call_id,
    write_citation,
)
from dragoman.protocols.messages.errors import error_frame
from dragoman.protocols.messages.wire import STOP_REASONS, TIERS_IN_REPLIES, Wire

_encode = msgspec.json.encode
_END_OF_DELTA = b"}}\n\n"

# Where the words of a delta stand, by the kind of the block.
_TEXT = b'{"type":"text_delta","text":'
_THINKING = b'{"type":"thinking_delta","thinking":'
_ARGUMENTS = b'{"type":"input_json_delta","partial_json":'


class Encoder:
    """Writes a stream. Blocks come one after the other; each is written from its first words on."""

    __slots__ = ("_asked", "_calls", "_index", "_ledger", "_opaque", "_open", "_prefix", "_refused", "_start", "_usage")

    def __init__(self, asked: ReplyContext, ledger: Ledger) -> None:
        self._asked = asked
        self._ledger = ledger
        self._index = 0
        self._start: Wire | None = None  # of a block that has said nothing yet
        self._open = False
        self._prefix = b""  # of a delta of the open block, up to its words
        self._opaque: Opaque | None = None
        self._usage: Usage | None = None
        self._calls = False
        self._refused = False

    def feed(self, event: Event) -> Sequence[bytes]:
        if isinstance(event, Delta):
            return self._words(event)
        match event:
            case Opened(what=what):
                return self._opened(what)
            case Closed():
                return self._closed()
            case OpaqueAdded(opaque=opaque):
                self._opaque = opaque
                return ()
            case CitationAdded(citation=citation):
                return self._cited(citation)
            case Started():
                return self._started(event)
            case UsageReported(usage=usage):
                self._usage = usage
                return ()
            case Ended():
                return self._ended(event)
            case Failed(failure=failure):
                return (error_frame(failure),)

    def finish(self) -> Sequence[bytes]:
        return ()

    def _words(self, delta: Delta) -> Sequence[bytes]:
        if delta.logprobs is not None:
            _unlikely(self._index, self._ledger)
        if not delta.text:
            return ()
        written = self._prefix + _encode(delta.text) + _END_OF_DELTA
        return (written,) if self._open else (self._begin(), written)

    def _started(self, started: Started) -> Sequence[bytes]:
        self._usage = started.usage
        message = {**_envelope(started.id, self._asked), "usage": _usage(started.usage)}
        return (_event("message_start", message=message),)

    def _opened(self, what: object) -> Sequence[bytes]:
        self._opaque = None
        match what:
            case TextBlock() | RefusalBlock():
                self._refused |= isinstance(what, RefusalBlock)
                self._await(text_block(""), _TEXT)
            case ThinkingBlock():
                self._await({"type": "thinking", "thinking": "", "signature": ""}, _THINKING)
            case CallBlock(id=id, name=name):
                self._calls = True
                self._await(
                    {"type": "tool_use", "id": write_call_id(id, self._asked), "name": name, "input": {}}, _ARGUMENTS
                )
                return (self._begin(),)
            case HostedBlock():
                return self._hosted(what)
        return ()

    def _await(self, start: Wire, delta: bytes) -> None:
        self._start = start
        self._prefix = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":%b' % (
            self._index,
            delta,
        )

    def _begin(self) -> bytes:
        self._open = True
        return _event("content_block_start", index=self._index, content_block=self._start)

    def _closed(self) -> Sequence[bytes]:
        out: list[bytes] = []
        opaque = self._opaque
        if opaque is not None:
            sealed = encode_envelope(opaque)
            if self._open:
                out.append(self._delta({"type": "signature_delta", "signature": sealed}))
            else:  # nothing to show: the slot for opaque thinking alone
                self._start = {"type": "redacted_thinking", "data": sealed}
                out.append(self._begin())
        if self._open:
            out.append(_event("content_block_stop", index=self._index))
            self._index += 1
        self._open = False
        self._start = None
        return out

    def _cited(self, citation: Citation) -> Sequence[bytes]:
        record = write_citation(citation, f"/content/{self._index}", self._ledger)
        if record is None:
            return ()
        begin = () if self._open else (self._begin(),)
        return (*begin, self._delta({"type": "citations_delta", "citation": record}))

    def _hosted(self, hosted: HostedBlock) -> Sequence[bytes]:
        out: list[bytes] = []
        for block in hosted_blocks(hosted, self._asked, f"/content/{self._index}", self._ledger):
            given = block.get("input")
            self._start = {**block, "input": {}} if given else block
            out.append(self._begin())
            if given:
                out.append(self._delta({"type": "input_json_delta", "partial_json": _encode(given).decode()}))
            out += self._closed()
        return out

    def _delta(self, delta: Wire) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _ended(self, ended: Ended) -> Sequence[bytes]:
        delta = _ending(ended, self._calls, self._refused)
        _tell_tier(self._usage, self._ledger)
        return (_event("message_delta", delta=delta, usage=_usage(self._usage)), _event("message_stop"))


def encode_whole(events: Iterable[Event], asked: ReplyContext, ledger: Ledger) -> bytes:
    """The whole message; raises RequestError where the reply failed or cannot be said."""
    reply = collect(events)
    if isinstance(reply.end, Failed):
        raise RequestError(reply.end.failure)
    content: list[Wire] = []
    for piece in reply.pieces:
        if piece.logprobs is not None:
            _unlikely(len(content), ledger)
        content += write_blocks(piece, reply, asked, f"/content/{len(content)}", ledger)
    calls = any(isinstance(piece.what, CallBlock) for piece in reply.pieces)
    refused = any(isinstance(piece.what, RefusalBlock) for piece in reply.pieces)
    _tell_tier(reply.usage, ledger)
    message = {
        **_envelope(reply.id, asked),
        "content": content,
        **_ending(reply.end, calls, refused),
        "usage": _usage(reply.usage),
    }
    return _encode(message)


def _envelope(id: str, asked: ReplyContext) -> Wire:
    return {
        "id": id if id.startswith("msg_") else asked.new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _ending(ended: Ended, calls: bool, refused: bool) -> Wire:
    stop = ended.stop
    if refused:
        stop = Stop.FILTERED
    elif stop is Stop.END and calls:
        stop = Stop.TOOL
    elif stop is Stop.TOOL and not calls:
        stop = Stop.END
    ending: Wire = {"stop_reason": STOP_REASONS[stop], "stop_sequence": ended.sequence}
    if ended.category is not None or ended.explanation is not None:
        ending["stop_details"] = {"type": "refusal", "category": ended.category, "explanation": ended.explanation}
    return ending


def _usage(usage: Usage | None) -> Wire:
    """Counts are never absent: some clients refuse a message without them."""
    usage = usage or Usage()
    counts: Wire = {
        "input_tokens": usage.fresh,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }
    if usage.cache_write_1h:
        short = usage.cache_write - usage.cache_write_1h
        counts["cache_creation"] = {
            "ephemeral_5m_input_tokens": short,
            "ephemeral_1h_input_tokens": usage.cache_write_1h,
        }
    if usage.web_searches:
        counts["server_tool_use"] = {"web_search_requests": usage.web_searches, "web_fetch_requests": 0}
    tier = TIERS_IN_REPLIES.get(usage.service_tier or "")
    if tier is not None:
        counts["service_tier"] = tier
    return counts


def _tell_tier(usage: Usage | None, ledger: Ledger) -> None:
    tier = usage.service_tier if usage is not None else None
    if tier is not None and tier not in TIERS_IN_REPLIES:
        ledger.note_dropped("/service_tier", f"Messages has no tier {tier!r}")


def _unlikely(index: int, ledger: Ledger) -> None:
    ledger.note_dropped(f"/content/{index}/logprobs", "Messages tells no log probabilities")


def _event(kind: str, **fields: object) -> bytes:
    return encode_event(_encode({"type": kind, **fields}), kind.encode())
