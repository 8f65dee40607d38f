"""A reply in Chat's words: events come in; the chunks of a stream go out.

Chat has one text, one chain of thought and one list of calls per reply, in no order among each other: blocks
are joined, and the ledger says which.
"""

from collections.abc import Sequence

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
    OpaqueAdded,
    Opened,
    RefusalBlock,
    Started,
    TextBlock,
    ThinkingBlock,
    UsageReported,
)
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import Opaque
from dragoman.hub.ports import ReplyContext
from dragoman.hub.request import Citation
from dragoman.hub.usage import Usage
from dragoman.protocols.chat.errors import error_frame
from dragoman.protocols.chat.reply import Losses, annotation, detail_entry, finish_reason, reply_id, tokens

_encode = msgspec.json.encode

_FIELDS: dict[type[Block], bytes] = {
    TextBlock: b'{"content":',
    RefusalBlock: b'{"refusal":',
    ThinkingBlock: b'{"reasoning_content":',
}


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
