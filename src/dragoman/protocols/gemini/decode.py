"""Decode a Gemini reply into hub events. A whole body is read as a stream of one chunk.

A signature belongs to the part that it stands on. It becomes the opaque value of a thinking block right before that
part, which is empty unless thoughts precede it.
"""

import re

import msgspec

from dragoman.framing.error_text import strip_html
from dragoman.framing.jsonread import read_json_leniently, replace_invalid_utf8
from dragoman.framing.sse import Broken, Frame
from dragoman.hub.events import (
    Block,
    CallBlock,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    OpaqueAdded,
    Opened,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    UsageReported,
)
from dragoman.hub.failure import NO_REPLY, Failure, Kind
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import Form, Opaque
from dragoman.hub.ports import Issuer, Progress
from dragoman.hub.reply import MAX_CALLS
from dragoman.hub.usage import clamp_usage
from dragoman.protocols.gemini.errors import UNEXPLAINED, find_error, read_error
from dragoman.protocols.gemini.wire import (
    FAILED_STOPS,
    INESSENTIAL_FIELDS,
    NAME_PREFIX,
    NO_SIGNATURE,
    NOTHING,
    STOPS,
    UNSPECIFIED,
    Candidate,
    Chunk,
    FunctionCall,
    PromptFeedback,
    ReplyPart,
    Tokens,
)

_CHUNKS = msgspec.json.Decoder(Chunk)
_TEXT = TextBlock()
_THINKING = ThinkingBlock()
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_-]")
_CUT = "truncated"  # in msgspec's message for JSON that breaks off
_FOREIGN_PARTS = ("inline_data", "file_data", "executable_code", "code_execution_result", "tool_call", "tool_response")


class Decoder:
    """Decode the frames of one reply."""

    __slots__ = (
        "_block", "_blocks", "_calls", "_finish", "_has_cut_frame", "_id", "_is_over", "_issuer", "_ledger", "_message",
        "_open_kind", "_started", "_usage", "_used_ids",
    )  # fmt: skip

    def __init__(self, issuer: Issuer, ledger: Ledger) -> None:
        self._issuer = issuer
        self._ledger = ledger
        self._id = ""
        self._started = False
        self._is_over = False
        self._has_cut_frame = False  # a frame broke off: either the last one of the stream, or a corrupt one
        self._blocks = 0
        self._open_kind: Block | None = None  # the kind of the open text or thinking block, and its number
        self._block = 0
        self._calls = 0
        self._used_ids: set[str] = set()
        self._finish: str | None = None
        self._message: str | None = None  # finishMessage
        self._usage: Tokens | None = None

    @property
    def progress(self) -> Progress:
        has_stopped = self._finish is not None and self._finish not in FAILED_STOPS
        return Progress.COMPLETE if has_stopped else Progress.READING

    def feed(self, item: object) -> list[Event]:
        if self._is_over:
            return []
        if not isinstance(item, Frame):
            why = item.why if isinstance(item, Broken) else f"{type(item).__name__} is no frame"
            return self._fail(Failure(Kind.CORRUPT, f"the upstream's stream cannot be read: {why}"))
        if self._has_cut_frame:
            return self._fail(Failure(Kind.CORRUPT, "the upstream sent a chunk that is not valid JSON"))
        data = item.data.strip()
        if not data:
            return []
        try:
            chunk = read_json_leniently(_CHUNKS, data, INESSENTIAL_FIELDS)
        except (ValueError, RecursionError) as error:
            return self._read_invalid(error)
        return self._read_chunk(chunk)

    def finish(self) -> list[Event]:
        if self._is_over:
            return []
        if self._finish is not None:
            return self._end()
        why = "without a finishReason" if self._started else "without any content"
        return self._fail(Failure(Kind.TRUNCATED, f"the upstream's stream ended {why}"))

    def _read_invalid(self, error: Exception) -> list[Event]:
        if _CUT in str(error) and not isinstance(error, msgspec.ValidationError):
            self._has_cut_frame = True  # if nothing follows, the connection ended here
            return []
        return self._fail(Failure(Kind.CORRUPT, "the upstream sent a chunk that is not of generateContent"))

    def _read_chunk(self, chunk: Chunk) -> list[Event]:
        if chunk.error:
            return self._fail(read_error(chunk.error) or Failure(Kind.UPSTREAM, UNEXPLAINED))
        if chunk.usage_metadata is not None:
            self._usage = chunk.usage_metadata if self._usage is None else self._usage.merge(chunk.usage_metadata)
        events: list[Event] = []
        if not self._started:
            self._start(chunk, events)
        for candidate in chunk.candidates or ():
            if candidate.index:
                self._ledger.note_dropped(f"/candidates/{candidate.index}", "only the first candidate is translated")
                continue
            self._read_candidate(candidate, events)
        feedback = chunk.prompt_feedback
        if feedback is not None and feedback.block_reason and not chunk.candidates:
            events += self._block_prompt(feedback)
        return events

    def read_whole(self, chunk: Chunk) -> list[Event]:
        """Return the events of a body that is the whole reply, with or without a finishReason."""
        events = self._read_chunk(chunk)
        if not self._is_over and self._finish is None:
            self._finish = "STOP"
        return [*events, *self.finish()]

    def _start(self, chunk: Chunk, events: list[Event]) -> None:
        if not chunk.candidates and not (chunk.prompt_feedback and chunk.prompt_feedback.block_reason):
            return  # only usage so far
        self._started = True
        self._id = chunk.response_id or ""
        events.append(Started(self._id, chunk.model_version or self._issuer.model))

    def _block_prompt(self, feedback: PromptFeedback) -> list[Event]:
        self._is_over = True
        reason = feedback.block_reason or ""
        explanation = feedback.block_reason_message or f"The prompt was blocked: {reason}."
        return [*self._usage_events(), Ended(Stop.FILTERED, category=reason.lower(), explanation=explanation)]

    def _read_candidate(self, candidate: Candidate, events: list[Event]) -> None:
        if candidate.content is not None:
            for part in candidate.content.parts or ():
                self._read_part(part, events)
        if bytes(candidate.grounding_metadata):
            self._ledger.note_dropped("/candidates/0/groundingMetadata", "it is not translated")
        if bytes(candidate.logprobs_result):
            self._ledger.note_dropped("/candidates/0/logprobsResult", "it is not translated")
        if candidate.finish_reason is not None and candidate.finish_reason not in UNSPECIFIED:
            self._finish = candidate.finish_reason
            self._message = candidate.finish_message or self._message

    # Parts

    def _read_part(self, part: ReplyPart, events: list[Event]) -> None:
        signature = part.thought_signature or ""
        if part.function_call is not None:
            self._read_call(part.function_call, signature, events)
        elif part.text is not None:
            self._read_text(part.text, bool(part.thought), signature, events)
        else:
            for field in _FOREIGN_PARTS:
                if bytes(getattr(part, field)):
                    self._ledger.note_dropped("/candidates/0/content/parts", f"there is no translation of {field}")

    def _read_text(self, text: str, thought: bool, signature: str, events: list[Event]) -> None:
        if thought:
            if text:
                events.append(Delta(self._open_block(_THINKING, events), text))
            if signature:
                self._add_signature(signature, events)
            return
        if signature:
            if self._open_kind is _TEXT or not text:
                self._drop_signature()
            else:
                self._add_signature(signature, events)
        if text:
            events.append(Delta(self._open_block(_TEXT, events), text))

    def _drop_signature(self) -> None:
        self._ledger.note_dropped(
            "/candidates/0/content/parts/thoughtSignature", "the signature of text that was already sent has no place"
        )

    def _add_signature(self, signature: str, events: list[Event]) -> None:
        """Close the open thinking block with this signature, or add a block that holds nothing else."""
        if signature == NO_SIGNATURE:
            return
        block = self._open_block(_THINKING, events)
        opaque = Opaque(self._issuer.name, Form.SIGNATURE, signature, self._issuer.model)
        events += (OpaqueAdded(block, opaque), Closed(block))
        self._open_kind = None

    def _read_call(self, call: FunctionCall, signature: str, events: list[Event]) -> None:
        if self._calls > MAX_CALLS:  # the reply has failed; the rest of a long list is not worth reading
            return
        if signature:
            self._add_signature(signature, events)
        self._close_block(events)
        name = call.name.removeprefix(NAME_PREFIX)
        block = self._add_block(CallBlock(self._make_id(call.id), name), events)
        self._calls += 1
        events += (Delta(block, _read_arguments(call)), Closed(block))

    def _make_id(self, id: str | None) -> str:
        """Return an id that no other call of the reply has; models before Gemini 3 give none."""
        made = id or f"call_{_NOT_IN_IDS.sub('', self._id)}_{self._calls}"
        if made in self._used_ids:
            made = f"{made}_{self._calls}"
        self._used_ids.add(made)
        return made

    def _open_block(self, what: Block, events: list[Event]) -> int:
        if self._open_kind is not what:
            self._close_block(events)
            self._block = self._add_block(what, events)
            self._open_kind = what
        return self._block

    def _close_block(self, events: list[Event]) -> None:
        if self._open_kind is not None:
            events.append(Closed(self._block))
            self._open_kind = None

    def _add_block(self, what: Block, events: list[Event]) -> int:
        block = self._blocks
        self._blocks += 1
        events.append(Opened(block, what))
        return block

    # The end

    def _end(self) -> list[Event]:
        finish = self._finish or ""
        if finish in FAILED_STOPS or (finish not in STOPS and not self._blocks):
            why = f": {self._message}" if self._message else ""
            return self._fail(Failure(Kind.UPSTREAM, f"the upstream ended with finishReason {finish!r}{why}"))
        events: list[Event] = []
        self._close_block(events)
        self._is_over = True
        return [*events, *self._usage_events(), self._end_event(finish)]

    def _end_event(self, finish: str) -> Ended:
        stop = STOPS.get(finish)
        if stop is None:
            self._ledger.note_approximated("/candidates/0/finishReason", f"{finish!r} is read as a natural end")
            stop = Stop.END
        if stop is Stop.FILTERED:
            return Ended(stop, category=finish.lower(), explanation=self._message)
        return Ended(Stop.TOOL if stop is Stop.END and self._calls else stop)

    def _usage_events(self) -> list[Event]:
        if self._usage is None or not self._started:
            return []
        return [UsageReported(clamp_usage(self._usage.to_usage(), self._ledger))]

    def _fail(self, failure: Failure) -> list[Event]:
        self._is_over = True
        return [*self._usage_events(), Failed(failure)]


def decode_whole(body: bytes, issuer: Issuer, ledger: Ledger) -> list[Event]:
    """Return the events of a whole reply; an error body, or one that is no reply, gives Failed."""
    body = replace_invalid_utf8(body)
    try:
        chunk = read_json_leniently(_CHUNKS, body, INESSENTIAL_FIELDS)
    except (ValueError, RecursionError):
        excerpt = strip_html(body)
        why = f": {excerpt}" if excerpt else ""
        shape = f"the upstream's reply does not have the shape of generateContent{why}"
        return [Failed(read_error(find_error(body)) or Failure(Kind.CORRUPT, shape))]
    blocked = chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason
    if not chunk.candidates and not chunk.error and not blocked:
        return [Failed(Failure(Kind.CORRUPT, "the upstream's reply has no candidates", code=NO_REPLY))]
    return Decoder(issuer, ledger).read_whole(chunk)


def _read_arguments(call: FunctionCall) -> str:
    """Return the arguments as JSON text on one line; without any, those of a call with none."""
    if call.args == NOTHING or bytes(call.args) == b"null":
        return "{}"
    return msgspec.json.format(bytes(call.args), indent=-1).decode()
