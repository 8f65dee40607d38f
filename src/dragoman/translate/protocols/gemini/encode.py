"""Encode hub events as a Gemini stream, of events or as one JSON array, or as a whole reply.

A client's history is made of these chunks. So each has a part that is not empty beside others, every call is whole,
and the last chunk, which has the finish reason, has a part as well: SDKs forget a turn whose last chunk has none.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat

import msgspec
from msgspec.structs import replace

from dragoman.translate.hub.answers import AnswersEncoder, split_answers
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
    Reply,
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
from dragoman.translate.hub.opaque import Opaque, Thought
from dragoman.translate.hub.ports import EVENT_STREAM, ReplyContext, Stage
from dragoman.translate.hub.usage import Usage
from dragoman.translate.protocols.gemini.encode_blocks import (
    Grounding,
    StepReasoning,
    encode_call,
    encode_hosted,
    encode_logprobs,
    read_arguments,
    shows_thoughts,
)
from dragoman.translate.protocols.gemini.errors import encode_error, repeat_stream_error
from dragoman.translate.protocols.gemini.wire import FINISH_REASONS, STOPS, Wire, encode_json, escape_line_ends

_encode = msgspec.json.encode
# Looked up once: on Python 3.11, each look-up of a member is slow.
_FILTERED, _PAUSE, _CONTEXT_FULL = Stop.FILTERED, Stop.PAUSE, Stop.CONTEXT_FULL
_EMPTY: Wire = {"text": ""}
_QUIET_S = 10.0  # how long a client gets nothing while a call is collected, before it is sent a sign of life
_NO_TEXT = b'{"text":""}'
WITHHELD = "The provider's content filter has withheld this reply."


class Encoder:
    """Encode one reply, or one of its answers. Blocks come one after the other."""

    __slots__ = (
        *("_arguments", "_block", "_context", "_grounding", "_index", "_is_events", "_is_plain", "_separators"),
        *("_last_write", "_text_prefix", "_text_suffix"),
        *("_ledger", "_opaque", "_open", "_prefix", "_reasoning", "_refused", "_sent_at", "_shows_thoughts"),
        *("_signs", "_suffix", "_thoughts", "_usage"),
    )  # fmt: skip

    def __init__(
        self, context: ReplyContext, ledger: Ledger, index: int = 0, separators: Iterator[bytes] | None = None
    ) -> None:
        self._context = context
        self._index = b'"index":%d' % index  # of the candidate
        self._separators = separators or _make_separators()  # shared by all answers of a reply
        self._ledger = ledger
        self._is_events = context.stream_type == EVENT_STREAM
        self._shows_thoughts = shows_thoughts(context)
        self._prefix = self._suffix = b""  # of a chunk with one part
        self._sent_at = context.now()
        self._open: Block | None = None
        self._block = 0
        self._arguments: list[str] = []  # of the open call
        self._thoughts: list[str] = []  # the text of the open thinking block
        self._opaque: Opaque | None = None
        self._reasoning = StepReasoning()
        self._signs = False  # the next text carries reasoning
        self._grounding = Grounding(ledger)
        self._refused = False
        self._is_plain = False  # the next text is written between these two
        self._text_prefix = self._text_suffix = b""
        self._usage: Usage | None = None
        self._last_write = b""  # after an error

    @property
    def keep_alive(self) -> bytes:
        """What keeps the connection of this stream open, and means nothing."""
        return self._frame(self._prefix + _NO_TEXT + self._suffix) if self._is_events and self._prefix else b"\n"

    def feed(self, event: Event) -> Sequence[bytes]:
        if type(event) is Delta:
            if not self._is_plain or event.logprobs is not None or not event.text:
                return self._encode_delta(event)
            self._grounding.pieces.append(event.text)
            data = _encode(event.text)
            if not data.isascii():
                data = escape_line_ends(data)
            return (self._text_prefix + data + self._text_suffix,)
        match event:
            case Opened(block=block, what=what):
                return self._open_block(block, what)
            case Closed():
                return self._close_block()
            case OpaqueAdded(opaque=opaque):
                self._opaque = opaque
            case CitationAdded(citation=citation):
                self._grounding.add_citation(citation, f"/content/{self._block}")
            case ToolReturned(outcome=outcome):
                assert isinstance(self._open, HostedBlock)
                self._grounding.add_outcome(self._open, outcome)
                self._reasoning.add_use(self._open, outcome, f"/content/{self._block}", self._ledger)
                self._signs = True
            case Started():
                self._start(event)
            case UsageReported(usage=usage):
                self._usage = usage
            case Ended():
                return self.encode_end(event)
            case Failed(failure=failure):
                self._last_write = repeat_stream_error(failure, self._context.stream_type)
                frame = self._frame(encode_error(failure))
                return (frame,) if self._is_events else (frame, b"]")
        return ()

    def finish(self) -> Sequence[bytes]:
        return (self._last_write,) if self._last_write else ()

    def _start(self, started: Started) -> None:
        self._usage = started.usage
        self._prefix = b'{"candidates":[{"content":{"parts":['
        head = encode_json(_build_head(started.id, self._context))
        self._suffix = b'],"role":"model"},' + self._index + b"}]," + head[1:]
        self._text_prefix = b"data: " + self._prefix + b'{"text":'
        self._text_suffix = b"}" + self._suffix + b"\n\n"

    # Blocks

    def _open_block(self, number: int, what: Block) -> Sequence[bytes]:
        self._open, self._block = what, number
        if type(what) is HostedBlock:
            self._grounding.add_hosted(what)
            return [self._chunk(part) for part in encode_hosted(what, f"/content/{number}", self._ledger)]
        if type(what) is RefusalBlock:
            self._refused = True
        self._is_plain = self._is_events and not self._signs and type(what) in (TextBlock, RefusalBlock)
        return ()

    def _encode_delta(self, delta: Delta) -> Sequence[bytes]:
        what, text = self._open, delta.text
        if type(what) is CallBlock:
            self._arguments.append(text)
            # An empty chunk if the client has been sent nothing for long, since calls are sent whole.
            if self._context.now() - self._sent_at < _QUIET_S:
                return ()
            self._sent_at = self._context.now()
            return (self.keep_alive,)
        if type(what) is ThinkingBlock:
            self._thoughts.append(text)
            return (self._chunk({"text": text, "thought": True}),) if text and self._shows_thoughts else ()
        if not text and delta.logprobs is None:
            return ()
        self._grounding.pieces.append(text)
        self._is_plain = self._is_events
        if self._signs or delta.logprobs is not None:
            return (self._encode_signed(delta),)
        return (self._chunk({"text": text}),)

    def _encode_signed(self, delta: Delta) -> bytes:
        self._signs = False
        part = {"text": delta.text, **self._reasoning.sign_text()}
        if delta.logprobs is None:
            return self._chunk(part)
        return self._frame(
            self._prefix + encode_json(part) + self._add(encode_logprobs([delta.logprobs], self._ledger))
        )

    def _close_block(self) -> Sequence[bytes]:
        what, self._open, self._is_plain = self._open, None, False
        if type(what) is CallBlock:
            text, self._arguments = "".join(self._arguments), []
            arguments = read_arguments(what, text, f"/content/{self._block}", self._ledger)
            if arguments is None:
                return ()
            self._signs = False
            call = encode_call(what, arguments, self._context)
            return (self._chunk({**call, **self._reasoning.sign_call()}),)
        if type(what) is ThinkingBlock:
            self._reasoning.add(Thought("".join(self._thoughts), self._opaque, what.raw))
            self._thoughts, self._opaque, self._signs = [], None, True
        elif type(what) is not HostedBlock:
            self._grounding.close_block()
        return ()

    # The end

    def encode_end(self, ended: Ended, *, is_last: bool = True) -> Sequence[bytes]:
        """Return the end of the candidate, and of the stream if it is the last one."""
        _record_end(ended, self._usage, self._ledger)
        frames: list[bytes] = []
        if _is_filtered(ended, self._refused) and not self._grounding.has_text:
            ended = _explain(ended)
            frames.append(self._chunk({"text": ended.explanation}))
        part = {**_EMPTY, **self._reasoning.sign_text()}
        ending = {**_build_ending(ended, self._refused), **self._grounding.build()}
        suffix = self._add(ending)
        if not is_last:
            return [*frames, self._frame(self._prefix + encode_json(part) + suffix)]
        usage = b',"usageMetadata":' + encode_json(_build_usage(self._usage)) + b"}"
        frames.append(self._frame(self._prefix + encode_json(part) + suffix[:-1] + usage))
        return frames if self._is_events else [*frames, b"]"]

    def _add(self, fields: Wire) -> bytes:
        """Return the end of a chunk, with more fields of its candidate."""
        more = b"," + encode_json(fields)[1:-1] if fields else b""
        return self._suffix.replace(self._index, self._index + more, 1)

    def _chunk(self, part: Wire) -> bytes:
        return self._frame(self._prefix + encode_json(part) + self._suffix)

    def _frame(self, data: bytes) -> bytes:
        if self._is_events:
            return b"data: " + data + b"\n\n"
        return next(self._separators) + data


def _make_separators() -> Iterator[bytes]:
    """Return what stands before each chunk of a stream that is a JSON array."""
    return chain((b"[",), repeat(b",\n"))


def make_encoder(context: ReplyContext, ledger: Ledger) -> Stage[Event, bytes]:
    """Return the encoder of a reply: of one candidate nearly always, else of as many as the request asks for."""
    count = context.request.sampling.n or 1
    if count == 1:
        return Encoder(context, ledger)
    separators, new_id, id = _make_separators(), context.new_id, context.new_id("")
    context = replace(context, new_id=lambda prefix: new_id(prefix) if prefix else id)  # the same reply for all
    return AnswersEncoder([Encoder(context, ledger, index, separators) for index in range(count)])


def keep_alive(encoder: Stage[Event, bytes]) -> bytes:
    """Return what keeps the connection of a stream open."""
    first = encoder.first if isinstance(encoder, AnswersEncoder) else encoder
    assert isinstance(first, Encoder)
    return first.keep_alive


def is_keep_alive(written: bytes) -> bool:
    """Return whether a write is a keep-alive of an encoder."""
    is_empty_chunk = b'"parts":[' + _NO_TEXT + b"]" in written and b'"finishReason"' not in written
    return written == b"\n" or (is_empty_chunk and written.count(b"\n\n") == 1)


def encode_whole(events: Iterable[Event], context: ReplyContext, ledger: Ledger) -> bytes:
    """Return the whole reply; raises RequestError if it failed."""
    answers = [events] if (context.request.sampling.n or 1) == 1 else split_answers(events)
    replies = [collect(answer) for answer in answers]
    candidates = [_encode_candidate(reply, index, context, ledger) for index, reply in enumerate(replies)]
    head = _build_head(replies[0].id, context)
    return encode_json({"candidates": candidates, "usageMetadata": _build_usage(replies[0].usage), **head})


def _encode_candidate(reply: Reply, index: int, context: ReplyContext, ledger: Ledger) -> Wire:
    if type(reply.end) is Failed:
        raise RequestError(reply.end.failure)
    _record_end(reply.end, reply.usage, ledger)
    grounding = Grounding(ledger)
    parts = _encode_pieces(reply, grounding, context, ledger)
    refused = any(type(piece.what) is RefusalBlock for piece in reply.pieces)
    end = reply.end
    if _is_filtered(end, refused) and not any(part.get("text") and "thought" not in part for part in parts):
        end = _explain(end)
        parts.append({"text": end.explanation})
    candidate: Wire = {"content": {"parts": parts or [_EMPTY], "role": "model"}, "index": index}
    candidate |= {**_build_ending(end, refused), **grounding.build()}
    return candidate | encode_logprobs([piece.logprobs for piece in reply.pieces if piece.logprobs is not None], ledger)


def _encode_pieces(reply: Reply, grounding: Grounding, context: ReplyContext, ledger: Ledger) -> list[Wire]:
    reasoning, shows = StepReasoning(), shows_thoughts(context)
    parts: list[Wire] = []
    for number, piece in enumerate(reply.pieces):
        what, at = piece.what, f"/content/{number}"
        match what:
            case ThinkingBlock():
                reasoning.add(Thought(piece.text, piece.opaque, what.raw))
                parts += [{"text": piece.text, "thought": True}] if piece.text and shows else []
            case CallBlock():
                arguments = read_arguments(what, piece.text, at, ledger)
                if arguments is not None:
                    parts.append({**encode_call(what, arguments, context), **reasoning.sign_call()})
            case HostedBlock():
                grounding.add_hosted(what)
                parts += encode_hosted(what, at, ledger)
                if what.outcome is not None:
                    reasoning.add_use(what, what.outcome, at, ledger)
            case TextBlock() | RefusalBlock():
                parts += [{"text": piece.text, **reasoning.sign_text()}] if piece.text else []
                grounding.pieces.append(piece.text)
                for citation in piece.citations:
                    grounding.add_citation(citation, at)
                grounding.close_block()
    _carry_rest(parts, reasoning.sign_text(), ledger)
    return parts


def _carry_rest(parts: list[Wire], signature: Wire, ledger: Ledger) -> None:
    """Add reasoning that nothing follows to the last part, where Gemini's own replies have it too.

    An empty part that carries it may not stand beside others.
    """
    if not signature:
        return
    if not parts:
        parts.append({**_EMPTY, **signature})
    elif "text" in parts[-1] and not signature.keys() & parts[-1].keys():
        if "thought" not in parts[-1]:
            ledger.record_approximated("/content", "reasoning after the last part of a reply is sent with it")
        parts[-1] = {**parts[-1], **signature}
    else:
        ledger.record_dropped("/content", "reasoning after the last part of a reply has no place")


def _build_head(id: str, context: ReplyContext) -> Wire:
    return {"modelVersion": context.model, "responseId": id or context.new_id("")}


def _is_filtered(ended: Ended, refused: bool) -> bool:
    return refused or ended.stop is _FILTERED


def _explain(ended: Ended) -> Ended:
    """Return the end of a withheld reply with an explanation: a client retries a reply without text."""
    return ended if ended.explanation else replace(ended, explanation=WITHHELD)


def _build_ending(ended: Ended, refused: bool) -> Wire:
    """Return the fields of a candidate that say why it ended."""
    if not _is_filtered(ended, refused):
        return {"finishReason": FINISH_REASONS[ended.stop]}
    category = (ended.category or "").upper()
    reason = category if STOPS.get(category) is Stop.FILTERED else FINISH_REASONS[Stop.FILTERED]
    message: Wire = {"finishMessage": ended.explanation} if ended.explanation else {}
    return {"finishReason": reason, **message}


def _record_end(ended: Ended, usage: Usage | None, ledger: Ledger) -> None:
    """Note what Gemini cannot say of an end."""
    if ended.category and STOPS.get(ended.category.upper()) is not Stop.FILTERED:
        ledger.record_dropped("/stop_details/category", f"Gemini has no finishReason {ended.category!r}")
    if ended.sequence is not None:
        ledger.record_dropped("/stop_sequence", "Gemini does not report which stop sequence was hit")
    if ended.stop is _PAUSE:
        ledger.record_approximated("/stop_reason", "Gemini has no pause; sent as a natural end")
    elif ended.stop is _CONTEXT_FULL:
        ledger.record_approximated("/stop_reason", "Gemini does not distinguish a full context from the token limit")
    if usage is not None and usage.service_tier not in (None, "default", "auto"):
        ledger.record_dropped("/service_tier", "Gemini's replies do not name a tier")


def _build_usage(usage: Usage | None) -> Wire:
    """Return the counts: those of thoughts and of rounds after the first stand apart."""
    usage = usage or Usage()
    prompt = max(0, usage.input - usage.later_input)
    counts = {
        "promptTokenCount": prompt,
        "candidatesTokenCount": max(0, usage.output - usage.reasoning),
        "totalTokenCount": usage.input + usage.output,
    }
    if usage.reasoning:
        counts["thoughtsTokenCount"] = min(usage.reasoning, usage.output)
    if usage.later_input:
        counts["toolUsePromptTokenCount"] = usage.input - prompt
    if usage.cache_read:
        counts["cachedContentTokenCount"] = min(usage.cache_read, prompt)  # a part of the prompt
    return dict(counts)
