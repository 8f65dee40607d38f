"""Encode hub events as a Chat stream or as a whole Chat reply.

Chat has one text, one chain of thought and one list of calls per reply, in no order among each other: blocks
are joined, and the ledger records which.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from dragoman.hub.events import (
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
)
from dragoman.hub.failure import RequestError
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import Form, Opaque, encode_envelope
from dragoman.hub.ports import ReplyContext
from dragoman.hub.reply import Reply, collect
from dragoman.hub.request import Citation
from dragoman.hub.usage import Usage
from dragoman.protocols.chat.errors import error_frame
from dragoman.protocols.chat.wire import FINISHES

# Where a kind of block stands in a Chat message; whatever comes after a later one has lost its place.
_ORDER: dict[type[Block], int] = {ThinkingBlock: 0, TextBlock: 1, RefusalBlock: 1, CallBlock: 2}
_encode = msgspec.json.encode
_FIELDS: dict[type[Block], bytes] = {
    TextBlock: b'{"content":',
    RefusalBlock: b'{"refusal":',
    ThinkingBlock: b'{"reasoning_content":',
}


class Losses:
    """Tells the ledger which blocks a Chat message cannot show as they were."""

    __slots__ = ("_last", "_ledger", "_text_seen")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._last = 0
        self._text_seen = False

    def block(self, number: int, what: Block) -> None:
        at = f"/content/{number}"
        if isinstance(what, HostedBlock):
            self._ledger.note_dropped(at, f"Chat cannot tell what {what.kind} did")
            return
        if isinstance(what, CallBlock) and what.namespace:
            self._ledger.note_dropped(f"{at}/namespace", "Chat's tools have no namespaces")
        place = _ORDER[type(what)]
        if place < self._last:
            self._ledger.note_approximated(at, "Chat does not tell the order of text, thoughts and calls")
        elif isinstance(what, TextBlock) and self._text_seen:
            self._ledger.note_approximated(at, "Chat has one text per reply: this is joined to what stood before")
        self._last = max(self._last, place)
        self._text_seen |= isinstance(what, TextBlock)

    def citation(self, number: int, citation: Citation) -> None:
        at = f"/content/{number}/citations"
        if not citation.url:
            self._ledger.note_dropped(at, "Chat cites nothing but addresses")
        elif citation.start is None or citation.end is None or citation.quoted:
            self._ledger.note_approximated(at, "Chat cites an address for a range of characters")

    def end(self, end: Ended, explained: bool) -> None:
        if end.category:
            self._ledger.note_dropped("/stop_details/category", "Chat has no categories of refusals")
        if end.explanation and not explained:
            self._ledger.note_dropped("/stop_details/explanation", "Chat explains no refusal beside a text")
        if end.sequence is not None:
            self._ledger.note_dropped("/stop_sequence", "Chat does not tell which stop sequence was hit")
        if end.stop is Stop.PAUSE:
            self._ledger.note_approximated("/stop_reason", "Chat cannot pause: this looks like a natural end")
        elif end.stop is Stop.CONTEXT_FULL:
            self._ledger.note_approximated("/stop_reason", "Chat does not tell a full context from the cap on tokens")


def whole(events: Iterable[Event], asked: ReplyContext, ledger: Ledger) -> bytes:
    """The whole reply; a failure is raised, for it has a status and a body of its own."""
    reply = collect(events)
    if isinstance(reply.end, Failed):
        raise RequestError(reply.end.failure)
    losses = Losses(ledger)
    for number, piece in enumerate(reply.pieces):
        losses.block(number, piece.what)
        for citation in piece.citations:
            losses.citation(number, citation)
    message = _message(reply, reply.end)
    losses.end(reply.end, message["refusal"] is not None and message["refusal"] == reply.end.explanation)
    calls = "tool_calls" in message
    body: dict[str, object] = {
        "id": reply_id(reply.id, asked),
        "object": "chat.completion",
        "created": asked.created,
        "model": asked.model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": _logprobs(reply),
                "finish_reason": finish_reason(reply.end.stop, calls),
            }
        ],
    }
    if reply.usage is not None:
        body["usage"] = tokens(reply.usage)
        if reply.usage.service_tier is not None:
            body["service_tier"] = reply.usage.service_tier
    return msgspec.json.encode(body)


def _message(reply: Reply, end: Ended) -> dict[str, object]:
    text = _joined(reply, TextBlock)
    thoughts = _joined(reply, ThinkingBlock)
    refusal = _joined(reply, RefusalBlock) or (None if text else end.explanation) or None
    calls = [_write_call(piece.what, piece.text) for piece in reply.pieces if isinstance(piece.what, CallBlock)]
    sealed = [(piece.opaque, piece.text) for piece in reply.pieces if piece.opaque is not None]
    message: dict[str, object] = {
        "role": "assistant",
        "content": text if text or not (calls or refusal) else None,
        "refusal": refusal,
        "annotations": list(_annotations(reply)),
    }
    if thoughts:
        message["reasoning_content"] = thoughts
    if sealed:
        message["reasoning_details"] = [detail_entry(index, *what) for index, what in enumerate(sealed)]
    if calls:
        message["tool_calls"] = calls
    return message


def _joined(reply: Reply, kind: type[Block]) -> str:
    return "".join(piece.text for piece in reply.pieces if isinstance(piece.what, kind))


def _write_call(what: CallBlock, text: str) -> dict[str, object]:
    if what.custom:
        return {"id": what.id, "type": "custom", "custom": {"name": what.name, "input": text}}
    return {"id": what.id, "type": "function", "function": {"name": what.name, "arguments": text or "{}"}}


def detail_entry(index: int, opaque: Opaque, text: str) -> dict[str, object]:
    """The client's opaque slot. What a signature vouches for rides along: blocks are joined in reasoning_content."""
    token = encode_envelope(opaque, text if opaque.form is not Form.REDACTED else "")
    return {"type": "reasoning.encrypted", "data": token, "format": "unknown", "index": index}


def _annotations(reply: Reply) -> Iterator[dict[str, object]]:
    start = 0
    for piece in reply.pieces:
        if isinstance(piece.what, TextBlock):
            for citation in piece.citations:
                if citation.url:
                    yield annotation(citation, start, len(piece.text))
            start += len(piece.text)


def annotation(citation: Citation, start: int, length: int) -> dict[str, object]:
    cited = {
        "url": citation.url,
        "title": citation.title or citation.url,
        "start_index": start + (citation.start or 0),
        "end_index": start + (length if citation.end is None else citation.end),
    }
    return {"type": "url_citation", "url_citation": cited}


def _logprobs(reply: Reply) -> dict[str, object] | None:
    told: dict[str, object] = {"content": _token_list(reply, TextBlock), "refusal": _token_list(reply, RefusalBlock)}
    return told if any(tokens is not None for tokens in told.values()) else None


def _token_list(reply: Reply, kind: type[Block]) -> list[msgspec.Raw] | None:
    tokens: list[msgspec.Raw] = []
    for piece in reply.pieces:
        if isinstance(piece.what, kind) and piece.logprobs is not None:
            tokens += msgspec.json.decode(piece.logprobs, type=list[msgspec.Raw])
    return tokens or None


def reply_id(upstream: str, asked: ReplyContext) -> str:
    return upstream if upstream.startswith("chatcmpl") else asked.new_id("chatcmpl-")


def finish_reason(stop: Stop, calls: bool) -> str:
    """The reason, made to agree with the calls: agents run tools by it."""
    if stop in (Stop.END, Stop.TOOL):
        stop = Stop.TOOL if calls else Stop.END
    return FINISHES[stop]


def tokens(usage: Usage) -> dict[str, object]:
    """Credits are no field of OpenAI's; clients of credit-counting gateways know them by this name."""
    told: dict[str, object] = {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
    return told if usage.credits is None else {**told, "credits_used": usage.credits}


class _Slot:
    """An open block: the bytes around the text of its deltas, and what later events must know of it."""

    __slots__ = ("before", "behind", "length", "start", "texts", "what")

    def __init__(self, what: Block, before: bytes, behind: bytes, start: int) -> None:
        self.what = what
        self.before = before
        self.behind = behind
        self.start = start  # characters of content before it
        self.length = 0
        self.texts: list[str] | None = [] if isinstance(what, ThinkingBlock) else None


class Encoder:
    """Writes one reply as the events of a Chat stream."""

    __slots__ = (
        "_asked",
        "_before",
        "_behind",
        "_calls",
        "_cited",
        "_created",
        "_details",
        "_head",
        "_losses",
        "_said",
        "_slots",
        "_spoken",
        "_usage",
    )  # fmt: skip

    def __init__(self, asked: ReplyContext, ledger: Ledger) -> None:
        self._asked = asked
        self._losses = Losses(ledger)
        self._head = self._before = b""
        # The usage of every chunk but the last is null, if the client wants usage at all.
        nulled = b',"usage":null' if asked.request.include_usage else b""
        self._behind = b',"logprobs":null,"finish_reason":null}]' + nulled + b"}\n\n"
        self._slots: dict[int, _Slot] = {}
        self._calls = 0
        self._details = 0
        self._said = 0  # characters of content
        self._spoken = False  # whether the client has anything to read, a refusal included
        self._cited: list[tuple[Citation, _Slot]] = []
        self._usage: Usage | None = None

    def feed(self, event: Event) -> Sequence[bytes]:
        if type(event) is Delta:
            return self._delta(event)
        match event:
            case Opened(block=block, what=what):
                return self._open(block, what)
            case Closed(block=block):
                return self._close(block)
            case OpaqueAdded(block=block, opaque=opaque):
                return self._seal(block, opaque)
            case CitationAdded(block=block, citation=citation):
                self._losses.citation(block, citation)
                if citation.url:
                    self._cited.append((citation, self._slots[block]))
            case Started():
                return self._start(event)
            case UsageReported(usage=usage):
                self._usage = usage
            case Ended():
                return self._end(event)
            case Failed(failure=failure):
                return (error_frame(failure),)
        return ()

    def finish(self) -> Sequence[bytes]:
        return ()

    def _start(self, event: Started) -> Sequence[bytes]:
        self._usage = event.usage
        self._head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":[' % (
            _encode(reply_id(event.id, self._asked)),
            self._asked.created,
            _encode(self._asked.model),
        )
        self._before = self._head + b'{"index":0,"delta":'
        return (self._before + b'{"role":"assistant","content":""}' + self._behind,)

    def _delta(self, event: Delta) -> Sequence[bytes]:
        slot = self._slots[event.block]
        text = event.text
        slot.length += len(text)
        if slot.texts is not None:
            slot.texts.append(text)
        chunk = slot.before + _encode(text) + slot.behind
        if event.logprobs is not None:
            field = b"refusal" if isinstance(slot.what, RefusalBlock) else b"content"
            told = b'"logprobs":{"%b":%b}' % (field, bytes(event.logprobs))
            chunk = slot.before + _encode(text) + slot.behind.replace(b'"logprobs":null', told)
        return (chunk,)

    def _open(self, block: int, what: Block) -> Sequence[bytes]:
        self._losses.block(block, what)
        if isinstance(what, CallBlock):
            return self._open_call(block, what)
        field = _FIELDS.get(type(what))
        if field is not None:
            self._slots[block] = _Slot(what, self._before + field, b"}" + self._behind, self._said)
        return ()

    def _open_call(self, block: int, what: CallBlock) -> Sequence[bytes]:
        kind, field = ("custom", "input") if what.custom else ("function", "arguments")
        index = self._calls
        self._calls += 1
        before = self._before + b'{"tool_calls":[{"index":%d,"%b":{"%b":' % (index, kind.encode(), field.encode())
        self._slots[block] = _Slot(what, before, b"}}]}" + self._behind, self._said)
        call = {"index": index, "id": what.id, "type": kind, kind: {"name": what.name, field: ""}}
        return (self._chunk({"tool_calls": [call]}),)

    def _close(self, block: int) -> Sequence[bytes]:
        slot = self._slots.get(block)
        if slot is None:
            return ()
        if isinstance(slot.what, TextBlock):
            self._said += slot.length
        elif isinstance(slot.what, CallBlock) and not slot.what.custom and not slot.length:
            return (slot.before + b'"{}"' + slot.behind,)
        self._spoken |= isinstance(slot.what, TextBlock | RefusalBlock) and slot.length > 0
        return ()

    def _seal(self, block: int, opaque: Opaque) -> Sequence[bytes]:
        detail = detail_entry(self._details, opaque, "".join(self._slots[block].texts or ()))
        self._details += 1
        return (self._chunk({"reasoning_details": [detail]}),)

    def _end(self, event: Ended) -> Sequence[bytes]:
        refusal = None if self._spoken else event.explanation
        self._losses.end(event, refusal is not None)
        told: list[bytes] = []
        if refusal:
            told.append(self._chunk({"refusal": refusal}))
        if self._cited:
            # All at once: accumulators that join lists refuse a second one without indices.
            cited = [annotation(citation, slot.start, slot.length) for citation, slot in self._cited]
            told.append(self._chunk({"annotations": cited}))
        finish = b'"finish_reason":' + _encode(finish_reason(event.stop, self._calls > 0))
        told.append(self._before + b"{}" + self._behind.replace(b'"finish_reason":null', finish))
        if self._asked.request.include_usage and self._usage is not None:
            tier = self._usage.service_tier
            named = b"" if tier is None else b',"service_tier":' + _encode(tier)
            told.append(self._head + b"]" + named + b',"usage":' + _encode(tokens(self._usage)) + b"}\n\n")
        return [*told, b"data: [DONE]\n\n"]

    def _chunk(self, delta: dict[str, object]) -> bytes:
        return self._before + _encode(delta) + self._behind
