"""Encode hub events as a Chat stream.

Chat has one text, one chain of thought and one list of calls per reply, in no order among each other: blocks
are joined, and the ledger records which.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.translate.hub.answers import AnswersEncoder
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
)
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm, encode_envelope
from dragoman.translate.hub.ports import ReplyContext, Stage
from dragoman.translate.hub.request import Citation
from dragoman.translate.hub.usage import Usage
from dragoman.translate.protocols.chat.errors import encode_error_event
from dragoman.translate.protocols.chat.wire import FINISHES

# The order of the kinds in a Chat message; a block that comes after a later kind loses its position.
_ORDER: dict[type[Block], int] = {ThinkingBlock: 0, TextBlock: 1, RefusalBlock: 1, CallBlock: 2}
_encode = msgspec.json.encode
# Looked up once: on Python 3.11, each look-up of a member is slow.
_END, _TOOL, _PAUSE, _CONTEXT_FULL = Stop.END, Stop.TOOL, Stop.PAUSE, Stop.CONTEXT_FULL
_FIELDS: dict[type[Block], bytes] = {
    TextBlock: b'{"content":',
    RefusalBlock: b'{"refusal":',
    ThinkingBlock: b'{"reasoning_content":',
}


class LossRecorder(Struct, eq=False):
    """Record what a Chat message cannot represent."""

    _ledger: Ledger
    _last: int = 0
    _text_seen: bool = False

    def block(self, number: int, what: Block) -> None:
        at = f"/content/{number}"
        if type(what) is HostedBlock:  # compared: `isinstance` of a struct that does not fit is slow
            if what.is_ours:  # Chat shows a search by its citations alone
                return
            self._ledger.record_dropped(at, f"Chat has no place for the activity of {what.kind}")
            return
        if type(what) is CallBlock and what.namespace:
            self._ledger.record_dropped(f"{at}/namespace", "Chat's tools have no namespaces")
        place = _ORDER[type(what)]
        if place < self._last:
            self._ledger.record_approximated(at, "Chat does not keep the order of text, reasoning and calls")
        elif type(what) is TextBlock and self._text_seen:
            self._ledger.record_approximated(
                at, "Chat has one text per reply: this block is joined to the text before it"
            )
        self._last = max(self._last, place)
        self._text_seen |= type(what) is TextBlock

    def citation(self, number: int, citation: Citation) -> None:
        at = f"/content/{number}/citations"
        if not citation.url:
            self._ledger.record_dropped(at, "Chat cites only URLs")
        elif citation.start is None or citation.end is None or (citation.quoted and citation.raw is not None):
            self._ledger.record_approximated(at, "Chat cites a URL for a range of characters")

    def end(self, end: Ended, explained: bool) -> None:
        if end.category:
            self._ledger.record_dropped("/stop_details/category", "Chat has no categories of refusals")
        if end.explanation and not explained:
            self._ledger.record_dropped(
                "/stop_details/explanation", "Chat has no explanation of a refusal beside a text"
            )
        if end.sequence is not None:
            self._ledger.record_dropped("/stop_sequence", "Chat does not report which stop sequence was hit")
        if end.stop is _PAUSE:
            self._ledger.record_approximated("/stop_reason", "Chat has no pause; sent as a natural end")
        elif end.stop is _CONTEXT_FULL:
            self._ledger.record_approximated(
                "/stop_reason", "Chat does not distinguish a full context from the token limit"
            )


def encode_call_signature(opaque: Opaque | None) -> dict[str, object]:
    """Return where Google's clients expect the signature of a call: they return this, though perhaps no reasoning."""
    if opaque is None or not opaque.of_call:
        return {}
    return {"extra_content": {"google": {"thought_signature": encode_envelope(opaque)}}}


def encode_opaque(index: int, opaque: Opaque, text: str) -> dict[str, object]:
    """Return an entry of reasoning_details: an opaque value with its text, which reasoning_content joins to others."""
    token = encode_envelope(opaque, text if opaque.form is not OpaqueForm.REDACTED else "")
    return {"type": "reasoning.encrypted", "data": token, "format": "unknown", "index": index}


def encode_annotation(citation: Citation, start: int, length: int) -> dict[str, object]:
    cited = {
        "url": citation.url,
        "title": citation.title or citation.url,
        "start_index": start + (citation.start or 0),
        "end_index": start + (length if citation.end is None else citation.end),
    }
    return {"type": "url_citation", "url_citation": cited}


def choose_reply_id(upstream: str, context: ReplyContext) -> str:
    return upstream if upstream.startswith("chatcmpl") else context.new_id("chatcmpl-")


def choose_finish_reason(stop: Stop, calls: bool) -> str:
    """Return the finish reason; it agrees with the calls, because agents run tools depending on it."""
    if stop is _END or stop is _TOOL:
        stop = _TOOL if calls else _END
    return FINISHES[stop]


def encode_usage(usage: Usage) -> dict[str, object]:
    """Return `usage`. `credits_used` is not OpenAI's: gateways that count credits use this name."""
    counts: dict[str, object] = {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
    return counts if usage.credits is None else {**counts, "credits_used": usage.credits}


class _OpenBlock:
    """An open block: the bytes before and after the text of its deltas, and its length so far."""

    __slots__ = ("length", "prefix", "start", "suffix", "texts", "what")

    def __init__(self, what: Block, prefix: bytes, suffix: bytes, start: int) -> None:
        self.what = what
        self.prefix = prefix
        self.suffix = suffix
        self.start = start  # characters of content before it
        self.length = 0
        self.texts: list[str] | None = [] if isinstance(what, ThinkingBlock) else None


class Encoder:
    """Encode one reply as a Chat stream, or one of its answers."""

    __slots__ = (
        "_blocks", "_calls", "_citations", "_content_length", "_context", "_created", "_details", "_has_visible_text",
        "_head", "_index", "_losses", "_prefix", "_signature", "_suffix", "_usage",
    )  # fmt: skip

    def __init__(self, context: ReplyContext, ledger: Ledger, index: int = 0) -> None:
        self._context = context
        self._index = index  # of the choice
        self._losses = LossRecorder(ledger)
        self._head = self._prefix = b""
        # The usage of every chunk but the last is null, if the client wants usage at all.
        null_usage = b',"usage":null' if context.request.extras.include_usage else b""
        self._suffix = b',"logprobs":null,"finish_reason":null}]' + null_usage + b"}\n\n"
        self._blocks: dict[int, _OpenBlock] = {}
        self._calls = 0
        self._signature: Opaque | None = None  # of the reasoning before the next call
        self._details = 0
        self._content_length = 0  # characters of content
        self._has_visible_text = False  # text or a refusal
        self._citations: list[tuple[Citation, _OpenBlock]] = []
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
                detail = encode_opaque(self._details, opaque, "".join(self._blocks[block].texts or ()))
                self._details += 1
                self._signature = opaque
                return (self._chunk({"reasoning_details": [detail]}),)
            case CitationAdded(block=block, citation=citation):
                self._losses.citation(block, citation)
                if citation.url:
                    self._citations.append((citation, self._blocks[block]))
            case Started():
                return self._start(event)
            case UsageReported(usage=usage):
                self._usage = usage
            case Ended():
                return self.encode_end(event)
            case Failed(failure=failure):
                return (encode_error_event(failure),)
        return ()

    def finish(self) -> Sequence[bytes]:
        return ()

    def _start(self, event: Started) -> Sequence[bytes]:
        self._usage = event.usage
        self._head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":[' % (
            _encode(choose_reply_id(event.id, self._context)),
            self._context.created,
            _encode(self._context.model),
        )
        self._prefix = self._head + b'{"index":%d,"delta":' % self._index
        return (self._prefix + b'{"role":"assistant","content":""}' + self._suffix,)

    def _delta(self, event: Delta) -> Sequence[bytes]:
        block_state = self._blocks[event.block]
        text = event.text
        block_state.length += len(text)
        if block_state.texts is not None:
            block_state.texts.append(text)
        chunk = block_state.prefix + _encode(text) + block_state.suffix
        if event.logprobs is not None:
            field = b"refusal" if isinstance(block_state.what, RefusalBlock) else b"content"
            logprobs = b'"logprobs":{"%b":%b}' % (field, bytes(event.logprobs))
            chunk = block_state.prefix + _encode(text) + block_state.suffix.replace(b'"logprobs":null', logprobs)
        return (chunk,)

    def _open(self, block: int, what: Block) -> Sequence[bytes]:
        self._losses.block(block, what)
        if isinstance(what, CallBlock):
            return self._open_call(block, what)
        field = _FIELDS.get(type(what))
        if field is not None:
            self._blocks[block] = _OpenBlock(what, self._prefix + field, b"}" + self._suffix, self._content_length)
        return ()

    def _open_call(self, block: int, what: CallBlock) -> Sequence[bytes]:
        kind, field = ("custom", "input") if what.custom else ("function", "arguments")
        index = self._calls
        self._calls += 1
        prefix = self._prefix + b'{"tool_calls":[{"index":%d,"%b":{"%b":' % (index, kind.encode(), field.encode())
        self._blocks[block] = _OpenBlock(what, prefix, b"}}]}" + self._suffix, self._content_length)
        call = {"index": index, "id": what.id, "type": kind, kind: {"name": what.name, field: ""}}
        signed = encode_call_signature(self._signature)
        self._signature = None
        return (self._chunk({"tool_calls": [call | signed]}),)

    def _close(self, block: int) -> Sequence[bytes]:
        block_state = self._blocks.get(block)
        if block_state is None:
            return ()
        if isinstance(block_state.what, TextBlock):
            self._content_length += block_state.length
        elif isinstance(block_state.what, CallBlock) and not block_state.what.custom and not block_state.length:
            return (block_state.prefix + b'"{}"' + block_state.suffix,)
        self._has_visible_text |= isinstance(block_state.what, TextBlock | RefusalBlock) and block_state.length > 0
        return ()

    def encode_end(self, event: Ended, *, is_last: bool = True) -> Sequence[bytes]:
        """Return the end of the choice, and of the stream if it is the last one."""
        refusal = None if self._has_visible_text else event.explanation
        self._losses.end(event, refusal is not None)
        frames: list[bytes] = []
        if refusal:
            frames.append(self._chunk({"refusal": refusal}))
        if self._citations:
            # In one chunk: accumulators that join lists reject a second list without indices.
            cited = [
                encode_annotation(citation, block_state.start, block_state.length)
                for citation, block_state in self._citations
            ]
            frames.append(self._chunk({"annotations": cited}))
        finish = b'"finish_reason":' + _encode(choose_finish_reason(event.stop, self._calls > 0))
        frames.append(self._prefix + b"{}" + self._suffix.replace(b'"finish_reason":null', finish))
        if not is_last:
            return frames
        if self._context.request.extras.include_usage and self._usage is not None:
            tier = self._usage.service_tier
            named = b"" if tier is None else b',"service_tier":' + _encode(tier)
            frames.append(self._head + b"]" + named + b',"usage":' + _encode(encode_usage(self._usage)) + b"}\n\n")
        return [*frames, b"data: [DONE]\n\n"]

    def _chunk(self, delta: dict[str, object]) -> bytes:
        return self._prefix + _encode(delta) + self._suffix


def make_encoder(context: ReplyContext, ledger: Ledger) -> Stage[Event, bytes]:
    """Return the encoder of a reply: of one choice nearly always, else of as many as the request asks for."""
    count = context.request.sampling.n or 1
    if count == 1:
        return Encoder(context, ledger)
    id = context.new_id("chatcmpl-")
    context = replace(context, new_id=lambda prefix: id)  # the same for all
    return AnswersEncoder([Encoder(context, ledger, index) for index in range(count)])
