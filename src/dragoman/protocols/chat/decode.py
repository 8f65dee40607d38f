"""Decode a streamed Chat reply into hub events.

This module absorbs what compatible servers do to the grammar: roles, ids and names repeated or missing, tool indices
that start anywhere, usage on any chunk, reasoning under four names. A whole body is read as a stream of one chunk.
"""

import msgspec

from dragoman.framing.jsonread import read_json_leniently
from dragoman.framing.sse import Broken, Frame
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
    Stop,
    TextBlock,
    ThinkingBlock,
    UsageReported,
)
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import Opaque
from dragoman.hub.ports import Issuer, Progress
from dragoman.hub.reply import MAX_CALLS
from dragoman.hub.request import Citation
from dragoman.hub.usage import clamp_usage
from dragoman.protocols.chat.decode_blocks import (
    Calls,
    Details,
    argument_text,
    block_opaque,
    call_opaque,
    field_opaque,
    is_opaque,
    number,
    part_text,
)
from dragoman.protocols.chat.errors import UNEXPLAINED, failure_in, read_error
from dragoman.protocols.chat.wire import (
    BESIDE,
    DONE,
    FAILED_STOPS,
    STOPS,
    Annotation,
    CallPiece,
    Choice,
    Chunk,
    ContentPart,
    FunctionPiece,
    Message,
    Tokens,
    detail_text,
    is_alias,
)

CHUNKS = msgspec.json.Decoder(Chunk)
_TEXT = TextBlock()
_REFUSAL = RefusalBlock()
_THINKING = ThinkingBlock()
_CUT = "truncated"  # how msgspec says that the JSON goes on


class Decoder:
    """Reads the frames of one reply."""

    __slots__ = (
        "_base", "_block", "_blocks", "_calls", "_chars", "_cut", "_details", "_finish", "_id", "_issuer", "_ledger",
        "_matched", "_model", "_over", "_plain", "_speaking", "_started", "_tier", "_usage",
    )  # fmt: skip

    def __init__(self, issuer: Issuer, ledger: Ledger) -> None:
        self._issuer = issuer
        self._ledger = ledger
        self._id = ""
        self._model = ""
        self._started = False
        self._over = False
        self._cut = False  # a frame broke off: the stream's last one, or a corrupt one
        self._blocks = 0  # how many have been opened
        self._speaking: Block | None = None  # the open block of words, if any, and its number
        self._block = 0
        self._base = 0  # characters of text before the open text block, and in all
        self._chars = 0
        self._details = Details()
        self._plain = False  # whether thoughts come in a field of their own: details then repeat them
        self._calls = Calls()
        self._finish: str | None = None
        self._matched: str | None = None
        self._usage: Tokens | None = None
        self._tier: str | None = None

    @property
    def progress(self) -> Progress:
        """After the finish reason only counts and `[DONE]` follow, without which the reply is complete too."""
        has_stopped = self._finish is not None and self._finish not in FAILED_STOPS
        return Progress.COMPLETE if has_stopped else Progress.READING

    def feed(self, item: object) -> list[Event]:
        if self._over:
            return []
        if not isinstance(item, Frame):
            why = item.why if isinstance(item, Broken) else f"{type(item).__name__} is no frame"
            return self._fail(Failure(Kind.CORRUPT, f"the upstream's stream cannot be read: {why}"))
        if self._cut:
            return self._fail(Failure(Kind.CORRUPT, "the upstream's stream has a chunk of broken JSON"))
        data = item.data.strip()
        if not data:  # a keep-alive of servers that do not know comments
            return []
        if item.event == "error":
            return self._fail(failure_in(data))
        if data[:1] == b"[" and DONE.startswith(data):
            return self._told_done()
        try:
            chunk = read_json_leniently(CHUNKS, data, BESIDE)
        except (ValueError, RecursionError) as error:
            return self._unreadable(error)
        return self._take(chunk)

    def finish(self) -> list[Event]:
        if self._over:
            return []
        if self._finish is not None:
            return self._done()
        if not self._started:
            return self._fail(_empty())
        return self._fail(_cut_off())

    def _told_done(self) -> list[Event]:
        if not self._started:
            return self._fail(_empty())
        if self._finish is None and "cut_then_done" in self._issuer.quirks:
            return self._fail(_cut_off())
        return self._done()

    def take_whole(self, chunk: Chunk) -> list[Event]:
        """A body that is the whole reply ends it, with or without a finish_reason."""
        events = self._take(chunk)
        if self._over:
            return events
        if not self._started:
            return events + self._fail(Failure(Kind.CORRUPT, "the upstream's reply has no choice with index 0"))
        return events + self._done()

    def _unreadable(self, error: Exception) -> list[Event]:
        if _CUT in str(error) and not isinstance(error, msgspec.ValidationError):
            self._cut = True  # if nothing follows, this is where the connection ended
            return []
        return self._fail(Failure(Kind.CORRUPT, "the upstream's stream has a chunk that is not Chat"))

    def _take(self, chunk: Chunk) -> list[Event]:
        if chunk.error:
            return self._fail(read_error(chunk.error) or Failure(Kind.UPSTREAM, UNEXPLAINED))
        if chunk.service_tier:
            self._tier = chunk.service_tier
        finished = self._finish is not None
        events: list[Event] = []
        usage = chunk.usage
        for choice in chunk.choices or ():
            if choice.index:
                self._ledger.note_dropped(f"/choices/{choice.index}", "one answer is translated")
                continue
            if not self._same_reply(chunk, finished):
                return self._fail(Failure(Kind.CORRUPT, "the upstream's stream changed its id or model midway"))
            if not self._blocks:
                self._start(chunk, events)
            self._tell(choice, events)
            if self._over:
                return events
            usage = usage or choice.usage
        if usage is not None:
            self._usage = usage
            if finished:
                events += self._done()
        return events

    def _same_reply(self, chunk: Chunk, finished: bool) -> bool:
        """Another id or model, once something was said, is another reply; before that, some servers leave them open."""
        if not self._blocks or finished:
            return True
        same_id = not chunk.id or not self._id or chunk.id == self._id
        return same_id and (not chunk.model or chunk.model == self._model or is_alias(chunk.model, self._model))

    def _start(self, chunk: Chunk, events: list[Event]) -> None:
        self._id = chunk.id or self._id
        self._model = chunk.model or self._model
        if not self._started:
            self._started = True
            events.append(Started(self._id, chunk.model or self._issuer.model))

    def _tell(self, choice: Choice, events: list[Event]) -> None:
        message = choice.delta or choice.message
        if message is not None:
            self._think(message, events)
            logprobs = choice.logprobs
            self._say(message.content, _array(logprobs.content) if logprobs else None, events)
            refused = _array(logprobs.refusal) if logprobs else None
            if message.refusal or refused:
                events.append(Delta(self._speak(_REFUSAL, events), message.refusal or "", refused))
            for annotation in message.annotations or ():
                self._cite(annotation, events)
            if message.tool_calls or message.function_call is not None:
                if message.tool_calls and message is choice.message:
                    number(message.tool_calls)
                self._call(message, events)
        if choice.finish_reason:
            self._stop(choice, events)

    def _stop(self, choice: Choice, events: list[Event]) -> None:
        self._finish = choice.finish_reason
        matched = choice.stop_reason or choice.matched_stop
        self._matched = matched if isinstance(matched, str) else None
        if self._finish in FAILED_STOPS:
            events += self._fail(Failure(Kind.UPSTREAM, f"the upstream ended with finish_reason {self._finish!r}"))

    # Words: text, refusals and thoughts. One such block is open at a time; calls stay open beside it.

    def _speak(self, what: Block, events: list[Event]) -> int:
        if self._speaking is not what:
            self._hush(events)
            self._block = self._open(what, events)
            self._speaking = what
            self._base = self._chars
        return self._block

    def _hush(self, events: list[Event]) -> None:
        if self._speaking is None:
            return
        opaques: list[Opaque] = []
        if self._speaking is _THINKING:
            opaques += self._details.opaques(self._issuer.name, self._issuer.model)
            self._details = Details()
        events += [OpaqueAdded(self._block, opaque) for opaque in opaques[:1]]
        events.append(Closed(self._block))
        self._speaking = None
        for opaque in opaques[1:]:
            self._seal(opaque, events)

    def _seal(self, opaque: Opaque, events: list[Event]) -> None:
        """Ends the open thought with its opaque value, or tells a thought that has nothing else."""
        block = self._speak(_THINKING, events)
        events += (OpaqueAdded(block, opaque), Closed(block))
        self._speaking = None

    def _open(self, what: Block, events: list[Event]) -> int:
        block = self._blocks
        self._blocks += 1
        events.append(Opened(block, what))
        return block

    def _say(self, content: str | list[ContentPart] | None, logprobs: msgspec.Raw | None, events: list[Event]) -> None:
        if isinstance(content, list):
            for part in content:
                self._say_part(part, events)
            content = ""
        if content or logprobs is not None:
            text = content or ""
            events.append(Delta(self._speak(_TEXT, events), text, logprobs))
            self._chars += len(text)

    def _say_part(self, part: ContentPart, events: list[Event]) -> None:
        if part.thinking:
            self._muse(part_text(part.thinking), events)
        elif part.refusal:
            events.append(Delta(self._speak(_REFUSAL, events), part.refusal))
        else:
            self._say(part.text, None, events)

    def _cite(self, annotation: Annotation, events: list[Event]) -> None:
        cited = annotation.url_citation
        if cited is None or self._speaking is not _TEXT:
            self._ledger.note_dropped("/choices/0/message/annotations", f"nothing to attach {annotation.type!r} to")
            return
        start, end = (None if at is None else max(0, at - self._base) for at in (cited.start_index, cited.end_index))
        events.append(CitationAdded(self._block, Citation(url=cited.url, title=cited.title, start=start, end=end)))

    def _think(self, message: Message, events: list[Event]) -> None:
        plain = message.reasoning_content or message.reasoning or message.reasoning_text
        if not (plain or message.reasoning_details or message.thinking_blocks or message.reasoning_opaque):
            return
        blocks = message.thinking_blocks or ()
        # LiteLLM tells the same thoughts in both places.
        text = plain if isinstance(plain, str) and not any(block.thinking for block in blocks) else ""
        self._plain |= bool(text)
        self._muse(text, events)
        for detail in message.reasoning_details or ():
            if not self._plain and not blocks:
                self._muse(detail_text(detail), events)
            if self._speaking is _THINKING or is_opaque(detail):
                self._speak(_THINKING, events)
                self._details.add(detail)
        for block in blocks:
            self._muse(block.thinking or "", events)
            opaque = block_opaque(block, self._issuer.name, self._issuer.model)
            if opaque is not None:
                self._seal(opaque, events)
        if message.reasoning_opaque:
            self._seal(field_opaque(message.reasoning_opaque, self._issuer.name, self._issuer.model), events)

    def _muse(self, text: str, events: list[Event]) -> None:
        if text:
            events.append(Delta(self._speak(_THINKING, events), text))

    # Tool calls

    def _call(self, message: Message, events: list[Event]) -> None:
        if message.tool_calls:
            for piece in message.tool_calls:
                if len(self._calls) > MAX_CALLS:  # the reply has failed; the rest of a long list is not worth reading
                    break
                self._take_piece(piece, events)
        elif message.function_call is not None:
            self._take_piece(CallPiece(index=-1, function=message.function_call), events)

    def _take_piece(self, piece: CallPiece, events: list[Event]) -> None:
        custom = piece.custom
        if custom is not None:
            name, text = custom.name, custom.input or ""
        else:
            function = piece.function or FunctionPiece()
            name, text = function.name, argument_text(function.arguments)
        call = self._calls.of(piece, name, self._id)
        if call.block is None:
            if not name:
                call.held.append(text)
                return
            self._hush(events)
            vouched = call_opaque(piece.extra_content, call.id, self._issuer.name, self._issuer.model)
            if vouched is not None:
                self._seal(vouched, events)
            call.block = self._open(CallBlock(call.id, name, custom=custom is not None), events)
            text = "".join((*call.held, text))
        if text:
            events.append(Delta(call.block, text))

    # The end

    def _done(self) -> list[Event]:
        events: list[Event] = []
        self._hush(events)
        blocks = self._calls.blocks()
        if len(blocks) < len(self._calls):
            return events + self._fail(Failure(Kind.CORRUPT, "the upstream called a tool without naming it"))
        self._over = True
        events += map(Closed, blocks)
        events += self._used()
        events.append(self._ended())
        return events

    def _ended(self) -> Ended:
        finish = self._finish or "stop"
        stop = STOPS.get(finish)
        if stop is None:
            self._ledger.note_approximated("/choices/0/finish_reason", f"{finish!r} is taken for a natural end")
            stop = Stop.END
        # Agents run tools by the reason given, and servers give the wrong one both ways.
        if stop in (Stop.END, Stop.TOOL):
            stop = Stop.TOOL if self._calls else Stop.END
        if stop is Stop.END and self._matched:
            return Ended(Stop.STOP_SEQUENCE, sequence=self._matched)
        return Ended(stop)

    def _used(self) -> list[Event]:
        if self._usage is None or not self._usage.is_told or not self._started:
            return []
        return [UsageReported(clamp_usage(self._usage.meaning(self._tier), self._ledger))]

    def _fail(self, failure: Failure) -> list[Event]:
        self._over = True
        return [*self._used(), Failed(failure)]


def _array(logprobs: msgspec.Raw) -> msgspec.Raw | None:
    text = bytes(logprobs)
    return logprobs if text.startswith(b"[") and text != b"[]" else None


def _empty() -> Failure:
    return Failure(Kind.TRUNCATED, "the upstream's stream ended before it said anything")


def _cut_off() -> Failure:
    return Failure(Kind.TRUNCATED, "the upstream's stream ended without a finish_reason")
