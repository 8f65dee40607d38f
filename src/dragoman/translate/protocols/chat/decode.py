"""Decode a streamed Chat reply into hub events.

This module absorbs what compatible servers do to the grammar: roles, ids and names repeated or missing, tool indices
that start anywhere, usage on any chunk, reasoning under four names. A whole body is read as a stream of one chunk.
"""

import msgspec

from dragoman.translate.framing.jsonread import read_json_leniently
from dragoman.translate.framing.sse import Broken, Frame
from dragoman.translate.hub.events import (
    MAX_CALLS,
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
    Stop,
    TextBlock,
    ThinkingBlock,
    UsageReported,
)
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque
from dragoman.translate.hub.ports import Issuer, Progress
from dragoman.translate.hub.request import Citation
from dragoman.translate.hub.usage import clamp_usage
from dragoman.translate.protocols.chat.decode_blocks import (
    Calls,
    ReasoningDetails,
    arguments_as_text,
    as_array,
    is_opaque,
    number_calls,
    read_block_opaque,
    read_call_opaque,
    read_field_opaque,
    read_thinking_text,
)
from dragoman.translate.protocols.chat.errors import UNEXPLAINED, read_error, read_event_error
from dragoman.translate.protocols.chat.wire import (
    DONE,
    FAILED_STOPS,
    INESSENTIAL_FIELDS,
    STOPS,
    Annotation,
    CallPiece,
    Choice,
    Chunk,
    Content,
    FunctionPiece,
    Message,
    Tokens,
    may_be_same_model,
    visible_text,
)

CHUNKS = msgspec.json.Decoder(Chunk)
_TEXT = TextBlock()
_REFUSAL = RefusalBlock()
_THINKING = ThinkingBlock()
_END, _TOOL = Stop.END, Stop.TOOL  # looked up once: on Python 3.11, each look-up of a member is slow
_CUT = "truncated"  # in msgspec's message for JSON that breaks off


class Decoder:
    """Decode the frames of one reply."""

    __slots__ = (
        "_acts", "_base", "_block", "_blocks", "_calls", "_chars", "_details", "_finish", "_has_cut_frame",
        "_has_plain_reasoning", "_id", "_is_over", "_issuer", "_ledger", "_matched", "_model", "_open_kind", "_started",
        "_tier", "_usage",
    )  # fmt: skip

    def __init__(self, issuer: Issuer, ledger: Ledger) -> None:
        self._issuer = issuer
        self._ledger = ledger
        self._id = ""
        self._model = ""
        self._started = False
        self._is_over = False
        self._has_cut_frame = False  # a frame broke off: either the last one of the stream, or a corrupt one
        self._blocks = 0  # number of blocks opened so far
        self._acts = False  # sound or pictures have come, which have no event
        self._open_kind: Block | None = None  # the kind of the open text, refusal or thinking block, and its number
        self._block = 0
        self._base = 0  # characters of text before the open text block, and in total
        self._chars = 0
        self._details = ReasoningDetails()
        self._has_plain_reasoning = False  # reasoning has a field of its own, and the details repeat it
        self._calls = Calls()
        self._finish: str | None = None
        self._matched: str | None = None
        self._usage: Tokens | None = None
        self._tier: str | None = None

    @property
    def progress(self) -> Progress:
        """Return how far the reply has come: after a finish reason only usage and `[DONE]` may follow."""
        if self._finish is not None and self._finish not in FAILED_STOPS:
            return Progress.COMPLETE
        return Progress.ACTING if self._acts else Progress.READING

    def feed(self, item: object) -> list[Event]:
        if self._is_over:
            return []
        if not isinstance(item, Frame):
            why = item.why if isinstance(item, Broken) else f"{type(item).__name__} is no frame"
            return self._fail(Failure(Kind.CORRUPT, f"the upstream's stream cannot be read: {why}"))
        if self._has_cut_frame:
            return self._fail(Failure(Kind.CORRUPT, "the upstream sent a chunk that is not valid JSON"))
        data = item.data.strip()
        if not data:  # a keep-alive of servers that send no comments
            return []
        if item.event == "error":
            return self._fail(read_event_error(data))
        if data[:1] == b"[" and DONE.startswith(data):
            if not self._started:
                return self._fail(_no_content())
            if self._finish is None and "cut_then_done" in self._issuer.quirks:
                return self._fail(_make_truncated_failure())
            return self._end()
        try:
            chunk = CHUNKS.decode(data)  # succeeds nearly always
        except (ValueError, RecursionError):
            return self._read_odd_chunk(data)
        return self._read_chunk(chunk)

    def finish(self) -> list[Event]:
        if self._is_over:
            return []
        if self._finish is not None:
            return self._end()
        if not self._started:
            return self._fail(_no_content())
        return self._fail(_make_truncated_failure())

    def read_whole(self, chunk: Chunk) -> list[Event]:
        """Return the events of a body that is the whole reply, with or without a finish_reason."""
        events = self._read_chunk(chunk)
        if self._is_over:
            return events
        if not self._started:
            return events + self._fail(Failure(Kind.CORRUPT, "the upstream's reply has no choice with index 0"))
        return events + self._end()

    def _read_odd_chunk(self, data: bytes) -> list[Event]:
        try:
            chunk = read_json_leniently(CHUNKS, data, INESSENTIAL_FIELDS)
        except (ValueError, RecursionError) as error:
            return self._read_invalid(error)
        return self._read_chunk(chunk)

    def _read_invalid(self, error: Exception) -> list[Event]:
        if _CUT in str(error) and not isinstance(error, msgspec.ValidationError):
            self._has_cut_frame = True  # if nothing follows, the connection ended here
            return []
        return self._fail(Failure(Kind.CORRUPT, "the upstream sent a chunk that is not of Chat Completions"))

    def _read_chunk(self, chunk: Chunk) -> list[Event]:
        if chunk.error:
            return self._fail(read_error(chunk.error) or Failure(Kind.UPSTREAM, UNEXPLAINED))
        if chunk.service_tier:
            self._tier = chunk.service_tier
        finished = self._finish is not None
        events: list[Event] = []
        usage = chunk.usage
        for choice in chunk.choices or ():
            if choice.index:
                self._ledger.record_dropped(f"/choices/{choice.index}", "only the first choice is translated")
                continue
            is_same = chunk.id == self._id and chunk.model == self._model  # as in most chunks
            if self._blocks and not is_same and not finished and not self._is_same_reply(chunk):
                return self._fail(Failure(Kind.CORRUPT, "the upstream changed the id or model within its stream"))
            if not self._blocks:
                self._id = chunk.id or self._id
                self._model = chunk.model or self._model
                if not self._started:
                    self._started = True
                    events.append(Started(self._id, chunk.model or self._issuer.model))
                delta = choice.delta
                self._acts |= delta is not None and (delta.audio is not None or delta.images is not None)
            self._read_choice(choice, events)
            if self._is_over:
                return events
            usage = usage or choice.usage
        if usage is not None:
            self._usage = usage
            if finished:
                events += self._end()
        return events

    def _is_same_reply(self, chunk: Chunk) -> bool:
        """Return whether a chunk belongs to this reply: after the first content, id and model must not change."""
        same_id = not chunk.id or not self._id or chunk.id == self._id
        same_model = not chunk.model or chunk.model == self._model
        return same_id and (same_model or may_be_same_model(chunk.model or "", self._model))

    def _read_choice(self, choice: Choice, events: list[Event]) -> None:
        message = choice.delta or choice.message
        if message is not None:
            plain = message.reasoning_content or message.reasoning or message.reasoning_text
            if plain or message.reasoning_details or message.thinking_blocks or message.reasoning_opaque:
                self._read_reasoning(message, plain, events)
            content, logprobs = message.content, choice.logprobs
            if type(content) is str and content and logprobs is None and self._open_kind is _TEXT:  # as in most chunks
                events.append(Delta(self._block, content))
                self._chars += len(content)
            else:
                self._read_content(content, as_array(logprobs.content) if logprobs else None, events)
            refused = as_array(logprobs.refusal) if logprobs else None
            if message.refusal or refused:
                events.append(Delta(self._open_block(_REFUSAL, events), message.refusal or "", refused))
            for annotation in message.annotations or ():
                self._read_annotation(annotation, events)
            if message.tool_calls or message.function_call is not None:
                if message.tool_calls and message is choice.message:
                    number_calls(message.tool_calls)
                self._read_calls(message, events)
        if choice.finish_reason:
            self._stop(choice, events)

    def _stop(self, choice: Choice, events: list[Event]) -> None:
        self._finish = choice.finish_reason
        matched = choice.stop_reason or choice.matched_stop
        self._matched = matched if isinstance(matched, str) else None
        if self._finish in FAILED_STOPS:
            events += self._fail(Failure(Kind.UPSTREAM, f"the upstream ended with finish_reason {self._finish!r}"))

    # Text, refusals and reasoning: one such block is open at a time, and calls stay open beside it.

    def _open_block(self, what: Block, events: list[Event]) -> int:
        if self._open_kind is not what:
            self._close_block(events)
            self._block = self._add_block(what, events)
            self._open_kind = what
            self._base = self._chars
        return self._block

    def _close_block(self, events: list[Event]) -> None:
        if self._open_kind is None:
            return
        opaques: tuple[Opaque, ...] = ()
        if self._open_kind is _THINKING:
            opaques = tuple(self._details.opaques(self._issuer.name, self._issuer.model))
            self._details = ReasoningDetails()
            events += [OpaqueAdded(self._block, opaque) for opaque in opaques[:1]]
        events.append(Closed(self._block))
        self._open_kind = None
        for opaque in opaques[1:]:
            self._add_opaque(opaque, events)

    def _add_opaque(self, opaque: Opaque, events: list[Event]) -> None:
        """Close the open thinking block with its opaque value, or add a block that holds nothing else."""
        block = self._open_block(_THINKING, events)
        events += (OpaqueAdded(block, opaque), Closed(block))
        self._open_kind = None

    def _add_block(self, what: Block, events: list[Event]) -> int:
        block = self._blocks
        self._blocks += 1
        events.append(Opened(block, what))
        return block

    def _read_content(self, content: Content, logprobs: msgspec.Raw | None, events: list[Event]) -> None:
        if isinstance(content, list):
            for part in content:
                if part.thinking:
                    self._add_thinking(read_thinking_text(part.thinking), events)
                elif part.refusal:
                    events.append(Delta(self._open_block(_REFUSAL, events), part.refusal))
                else:
                    self._read_content(part.text, None, events)
            content = ""
        if content or logprobs is not None:
            text = content or ""
            block = self._block if self._open_kind is _TEXT else self._open_block(_TEXT, events)
            events.append(Delta(block, text, logprobs))
            self._chars += len(text)

    def _read_annotation(self, annotation: Annotation, events: list[Event]) -> None:
        cited = annotation.url_citation
        if cited is None or self._open_kind is not _TEXT:
            self._ledger.record_dropped("/choices/0/message/annotations", f"nothing to attach {annotation.type!r} to")
            return
        start, end = (None if at is None else max(0, at - self._base) for at in (cited.start_index, cited.end_index))
        events.append(CitationAdded(self._block, Citation(url=cited.url, title=cited.title, start=start, end=end)))

    def _read_reasoning(self, message: Message, plain: object, events: list[Event]) -> None:
        blocks = message.thinking_blocks or ()
        # LiteLLM sends the same reasoning in both fields.
        text = plain if isinstance(plain, str) and not any(block.thinking for block in blocks) else ""
        self._has_plain_reasoning |= bool(text)
        self._add_thinking(text, events)
        for detail in message.reasoning_details or ():
            if not self._has_plain_reasoning and not blocks:
                self._add_thinking(visible_text(detail), events)
            if self._open_kind is _THINKING or is_opaque(detail):
                self._open_block(_THINKING, events)
                self._details.add(detail)
        for block in blocks:
            self._add_thinking(block.thinking or "", events)
            opaque = read_block_opaque(block, self._issuer.name, self._issuer.model)
            if opaque is not None:
                self._add_opaque(opaque, events)
        if message.reasoning_opaque:
            self._add_opaque(read_field_opaque(message.reasoning_opaque, self._issuer.name, self._issuer.model), events)

    def _add_thinking(self, text: str, events: list[Event]) -> None:
        if text:
            events.append(Delta(self._open_block(_THINKING, events), text))

    # Tool calls

    def _read_calls(self, message: Message, events: list[Event]) -> None:
        if message.tool_calls:
            for piece in message.tool_calls:
                if len(self._calls) > MAX_CALLS:  # the reply has failed; the rest of a long list is not worth reading
                    break
                self._read_call_piece(piece, events)
        elif message.function_call is not None:
            self._read_call_piece(CallPiece(index=-1, function=message.function_call), events)

    def _read_call_piece(self, piece: CallPiece, events: list[Event]) -> None:
        custom = piece.custom
        if custom is not None:
            name, text = custom.name, custom.input or ""
        else:
            function = piece.function or FunctionPiece()
            name, text = function.name, arguments_as_text(function.arguments)
        call = self._calls.find_or_add(piece, name, self._id)
        if call.block is None:
            if not name:
                call.held.append(text)
                return
            self._close_block(events)
            signature = read_call_opaque(piece.extra_content, call.id, self._issuer.name, self._issuer.model)
            if signature is not None:
                self._add_opaque(signature, events)
            call.block = self._add_block(CallBlock(call.id, name, custom=custom is not None), events)
            text = "".join((*call.held, text))
        if text:
            events.append(Delta(call.block, text))

    # The end

    def _end(self) -> list[Event]:
        events: list[Event] = []
        self._close_block(events)
        if self._calls:
            blocks = self._calls.blocks()
            if len(blocks) < len(self._calls):
                return events + self._fail(Failure(Kind.CORRUPT, "the upstream called a tool without a name"))
            events += map(Closed, blocks)
        self._is_over = True
        events += self._usage_events()
        events.append(self._end_event())
        return events

    def _end_event(self) -> Ended:
        finish = self._finish or "stop"
        stop = STOPS.get(finish)
        if stop is None:
            self._ledger.record_approximated("/choices/0/finish_reason", f"{finish!r} is read as a natural end")
            stop = _END
        # Agents run tools depending on this reason, and servers get it wrong in both directions.
        if stop is _END or stop is _TOOL:
            stop = _TOOL if self._calls else _END
        if stop is _END and self._matched:
            return Ended(Stop.STOP_SEQUENCE, sequence=self._matched)
        return Ended(stop)

    def _usage_events(self) -> list[Event]:
        if self._usage is None or not self._usage.has_counts or not self._started:
            return []
        return [UsageReported(clamp_usage(self._usage.to_usage(self._tier), self._ledger))]

    def _fail(self, failure: Failure) -> list[Event]:
        self._is_over = True
        return [*self._usage_events(), Failed(failure)]


def _no_content() -> Failure:
    return Failure(Kind.TRUNCATED, "the upstream's stream ended without any content")


def _make_truncated_failure() -> Failure:
    return Failure(Kind.TRUNCATED, "the upstream's stream ended without a finish_reason")
