"""Encode hub events as a Messages stream or as a whole message."""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from dragoman.translate.framing.sse import encode_event
from dragoman.translate.hub.events import (
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
    ToolReturned,
    UsageReported,
    collect,
)
from dragoman.translate.hub.failure import RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import UNSIGNED, Opaque, encode_envelope
from dragoman.translate.hub.ports import ReplyContext
from dragoman.translate.hub.request import Citation
from dragoman.translate.hub.usage import Usage
from dragoman.translate.protocols.messages.encode_blocks import (
    WholeReply,
    call_block,
    choose_call_id,
    choose_use_id,
    encode_blocks,
    encode_citation,
    encode_hosted,
    encode_outcome,
    encode_use,
    text_block,
)
from dragoman.translate.protocols.messages.errors import encode_error_event
from dragoman.translate.protocols.messages.wire import REFUSAL_CATEGORIES, STOP_REASONS, TIERS_IN_REPLIES, Wire

_encode = msgspec.json.encode
# Looked up once: on Python 3.11, each look-up of a member is slow.
_END, _TOOL, _FILTERED = Stop.END, Stop.TOOL, Stop.FILTERED
_END_OF_DELTA = b"}}\n\n"

# The beginning of a delta, by the kind of the block.
_TEXT = b'{"type":"text_delta","text":'
_THINKING = b'{"type":"thinking_delta","thinking":'
_ARGUMENTS = b'{"type":"input_json_delta","partial_json":'


class Encoder:
    """Encode a stream. Blocks come one after the other; each starts with its first text."""

    __slots__ = (
        "_block_start",
        "_calls",
        "_context",
        "_index",
        "_is_open",
        "_ledger",
        "_opaque",
        "_prefix",
        "_refused",
        "_tool",
        "_usage",
    )

    def __init__(self, context: ReplyContext, ledger: Ledger) -> None:
        self._context = context
        self._ledger = ledger
        self._index = 0
        self._block_start: Wire | None = None  # of a block without text so far
        self._is_open = False
        self._prefix = b""  # of the open block's deltas, up to their text
        self._opaque: Opaque | None = None
        self._usage: Usage | None = None
        self._calls = False
        self._refused = False
        self._tool = HostedBlock("", "")  # the server tool that runs now

    def feed(self, event: Event) -> Sequence[bytes]:
        if isinstance(event, Delta):
            if event.logprobs is not None:
                _record_logprobs(self._index, self._ledger)
            if not event.text:
                return ()
            written = self._prefix + _encode(event.text) + _END_OF_DELTA
            return (written,) if self._is_open else (self._start_block(), written)
        match event:
            case Opened(what=what):
                return self._open_block(what)
            case Closed():
                return self._close_block()
            case OpaqueAdded(opaque=opaque):
                self._opaque = opaque
                return ()
            case CitationAdded(citation=citation):
                return self._encode_citation(citation)
            case ToolReturned(outcome=outcome):
                return self._encode_blocks([encode_outcome(self._tool.kind, self._tool.id, outcome)])
            case Started():
                return self._encode_start(event)
            case UsageReported(usage=usage):
                self._usage = usage
                return ()
            case Ended():
                return self._encode_end(event)
            case Failed(failure=failure):
                return (encode_error_event(failure),)

    def finish(self) -> Sequence[bytes]:
        return ()

    def _encode_start(self, started: Started) -> Sequence[bytes]:
        self._usage = started.usage
        known = started.usage
        if known is None or not known.input:
            known = Usage(input=self._context.input_tokens)  # until the end of the stream, which has the right counts
        message = {**_build_envelope(started.id, self._context), "usage": _usage(known)}
        return (_encode_event("message_start", message=message),)

    def _open_block(self, what: object) -> Sequence[bytes]:
        self._opaque = None
        match what:
            case TextBlock() | RefusalBlock():
                self._refused |= isinstance(what, RefusalBlock)
                self._prepare_block(text_block(""), _TEXT)
            case ThinkingBlock():
                self._prepare_block({"type": "thinking", "thinking": "", "signature": ""}, _THINKING)
            case CallBlock(id=id, name=name):
                self._calls = True
                self._prepare_block(call_block(choose_call_id(id, self._context), name, {}), _ARGUMENTS)
                return (self._start_block(),)
            case HostedBlock():
                return self._encode_hosted(what)
        return ()

    def _prepare_block(self, start: Wire, delta: bytes) -> None:
        self._block_start = start
        self._prefix = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":%b' % (
            self._index,
            delta,
        )

    def _start_block(self) -> bytes:
        self._is_open = True
        return _encode_event("content_block_start", index=self._index, content_block=self._block_start)

    def _close_block(self) -> Sequence[bytes]:
        frames: list[bytes] = []
        sealed = self._find_signature()
        if sealed is not None:
            if self._is_open:
                frames.append(self._delta({"type": "signature_delta", "signature": sealed}))
            else:  # without text: redacted_thinking holds opaque values alone
                self._block_start = {"type": "redacted_thinking", "data": sealed}
                frames.append(self._start_block())
        if self._is_open:
            frames.append(_encode_event("content_block_stop", index=self._index))
            self._index += 1
        self._is_open = False
        self._block_start = None
        return frames

    def _find_signature(self) -> str | None:
        """Return the signature of the block; text without one is marked, so that it is never sent to a vendor."""
        if self._opaque is not None:
            return encode_envelope(self._opaque)
        is_thinking = self._block_start is not None and self._block_start["type"] == "thinking"
        return UNSIGNED if is_thinking and self._is_open else None

    def _encode_citation(self, citation: Citation) -> Sequence[bytes]:
        record = encode_citation(citation, f"/content/{self._index}", self._ledger)
        if record is None:
            return ()
        begin = () if self._is_open else (self._start_block(),)
        return (*begin, self._delta({"type": "citations_delta", "citation": record}))

    def _encode_hosted(self, hosted: HostedBlock) -> Sequence[bytes]:
        if hosted.is_ours:
            id = choose_use_id(hosted, self._context, f"/content/{self._index}", self._ledger)
            self._tool = replace(hosted, id=id)
            return () if hosted.is_resumed else self._encode_blocks([encode_use(hosted, id)])
        return self._encode_blocks(encode_hosted(hosted, self._context, f"/content/{self._index}", self._ledger))

    def _encode_blocks(self, blocks: Sequence[Wire]) -> Sequence[bytes]:
        frames: list[bytes] = []
        for block in blocks:
            given = block.get("input")
            self._block_start = block if given is None else {**block, "input": {}}
            frames.append(self._start_block())
            if given is not None:
                frames.append(self._delta({"type": "input_json_delta", "partial_json": _encode(given).decode()}))
            frames += self._close_block()
        return frames

    def _delta(self, delta: Wire) -> bytes:
        return _encode_event("content_block_delta", index=self._index, delta=delta)

    def _encode_end(self, ended: Ended) -> Sequence[bytes]:
        delta = _build_ending(ended, self._calls, self._refused, self._ledger)
        _record_unknown_tier(self._usage, self._ledger)
        usage = _count_tokens(self._usage or Usage())
        return (_encode_event("message_delta", delta=delta, usage=usage), _encode_event("message_stop"))


def encode_whole(events: Iterable[Event], context: ReplyContext, ledger: Ledger) -> bytes:
    """Return the whole message; raises RequestError if the reply failed or cannot be represented."""
    reply = collect(events)
    if type(reply.end) is Failed:
        raise RequestError(reply.end.failure)
    whole = WholeReply(reply, context, ledger)
    content: list[Wire] = []
    kinds: set[type[object]] = set()
    for piece in reply.pieces:
        if piece.logprobs is not None:
            _record_logprobs(len(content), ledger)
        content += encode_blocks(piece, whole, f"/content/{len(content)}")
        kinds.add(type(piece.what))
    _record_unknown_tier(reply.usage, ledger)
    message = {
        **_build_envelope(reply.id, context),
        "content": content,
        **_build_ending(reply.end, CallBlock in kinds, RefusalBlock in kinds, ledger),
        "usage": _usage(reply.usage),
    }
    return _encode(message)


def _build_envelope(id: str, context: ReplyContext) -> Wire:
    return {
        "id": id if id.startswith("msg_") else context.new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": context.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
    }


def _build_ending(ended: Ended, calls: bool, refused: bool, ledger: Ledger) -> Wire:
    stop = ended.stop
    if refused:
        stop = _FILTERED
    elif stop is _END and calls:
        stop = _TOOL
    elif stop is _TOOL and not calls:
        stop = _END
    details: Wire | None = None
    if stop is _FILTERED or ended.category is not None or ended.explanation is not None:
        category = ended.category if ended.category in REFUSAL_CATEGORIES else None
        if category != ended.category:
            ledger.record_dropped("/stop_details/category", f"Messages has no category {ended.category!r}")
        details = {"type": "refusal", "category": category, "explanation": ended.explanation}
    return {
        "stop_reason": STOP_REASONS[stop],
        "stop_sequence": ended.sequence,
        "stop_details": details,
        "container": None,
    }


def _usage(usage: Usage | None) -> Wire:
    """Return `usage` of a message with every field that Anthropic's schema requires."""
    usage = usage or Usage()
    return {"service_tier": "standard", "inference_geo": None, **_split_writes(usage), **_count_tokens(usage)}


def _count_tokens(usage: Usage) -> Wire:
    """Return `usage` of message_delta, which is shorter; what is only known by then is added."""
    counts: Wire = {
        "input_tokens": usage.fresh,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
        "server_tool_use": None,
    }
    if usage.cache_write:
        counts |= _split_writes(usage)
    if usage.web_searches or usage.web_fetches:
        counts["server_tool_use"] = {
            "web_search_requests": usage.web_searches,
            "web_fetch_requests": usage.web_fetches,
        }
    tier = TIERS_IN_REPLIES.get(usage.service_tier or "")
    if tier is not None:
        counts["service_tier"] = tier
    return counts


def _split_writes(usage: Usage) -> Wire:
    short = usage.cache_write - usage.cache_write_1h
    split = {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": usage.cache_write_1h}
    return {"cache_creation": split}


def _record_unknown_tier(usage: Usage | None, ledger: Ledger) -> None:
    tier = usage.service_tier if usage is not None else None
    if tier is not None and tier not in TIERS_IN_REPLIES:
        ledger.record_dropped("/service_tier", f"Messages has no tier {tier!r}")


def _record_logprobs(index: int, ledger: Ledger) -> None:
    ledger.record_dropped(f"/content/{index}/logprobs", "Messages has no log probabilities")


def _encode_event(kind: str, **fields: object) -> bytes:
    return encode_event(_encode({"type": kind, **fields}), kind.encode())
