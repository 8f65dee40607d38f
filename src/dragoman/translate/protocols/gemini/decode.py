"""Decode a Gemini reply into hub events. A whole body is read as a stream of one chunk."""

import hashlib
from functools import partial

import msgspec
from msgspec.structs import replace

from dragoman.translate.framing.error_text import strip_html
from dragoman.translate.framing.jsonread import read_json_leniently, replace_invalid_utf8
from dragoman.translate.framing.jsonscan import split_by_index, split_frame
from dragoman.translate.framing.sse import Broken, Frame
from dragoman.translate.hub.answers import AnswersDecoder, merge_answers
from dragoman.translate.hub.events import Ended, Event, Failed, Started, Stop, UsageReported
from dragoman.translate.hub.failure import NO_REPLY, Failure, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Issuer, Progress
from dragoman.translate.hub.usage import Usage, clamp_usage
from dragoman.translate.protocols.gemini.decode_blocks import Grounding, ReplyBlocks, read_grounding
from dragoman.translate.protocols.gemini.errors import UNEXPLAINED, find_error, read_error
from dragoman.translate.protocols.gemini.wire import (
    CONTINUATION,
    FAILED_STOPS,
    INESSENTIAL_FIELDS,
    NOTHING,
    STOPS,
    UNSPECIFIED,
    Candidate,
    Chunk,
    PromptFeedback,
    Tokens,
)

_CHUNKS = msgspec.json.Decoder(Chunk)
_CUT = "truncated"  # in msgspec's message for JSON that breaks off
_DIGEST_BYTES = 8
# Looked up once: on Python 3.11, each look-up of a member is slow.
_END, _TOOL, _FILTERED = Stop.END, Stop.TOOL, Stop.FILTERED


class Decoder:
    """Decode the frames of one reply."""

    __slots__ = (
        "_blocks", "_data", "_finish", "_grounding", "_has_cut_frame", "_index", "_is_over", "_issuer", "_ledger",
        "_message", "_started", "_token", "_usage",
    )  # fmt: skip

    def __init__(self, issuer: Issuer, ledger: Ledger, index: int = 0) -> None:
        self._index = index  # of the candidate
        self._issuer = issuer
        self._ledger = ledger
        self._blocks = ReplyBlocks(issuer, ledger)
        self._started = False
        self._is_over = False
        self._has_cut_frame = False  # a frame broke off: either the last one of the stream, or a corrupt one
        self._data = b""  # the chunk that is being read
        self._finish: str | None = None
        self._message: str | None = None  # finishMessage
        self._token: str | None = None  # that continues the same request
        self._grounding: Grounding | None = None
        self._usage: Tokens | None = None

    @property
    def progress(self) -> Progress:
        has_stopped = self._finish is not None and self._finish not in FAILED_STOPS and self._finish != CONTINUATION
        if has_stopped:
            return Progress.COMPLETE
        return Progress.ACTING if self._blocks.acts else Progress.READING

    def feed(self, item: object) -> list[Event]:
        if self._is_over:
            return []
        if type(item) is not Frame:
            why = item.why if isinstance(item, Broken) else f"{type(item).__name__} is no frame"
            return self._fail(Failure(Kind.CORRUPT, f"the upstream's stream cannot be read: {why}"))
        if self._has_cut_frame:
            return self._fail(Failure(Kind.CORRUPT, "the upstream sent a chunk that is not valid JSON"))
        self._data = data = item.data
        try:
            chunk = read_json_leniently(_CHUNKS, data, INESSENTIAL_FIELDS)
        except (ValueError, RecursionError) as error:
            return self._read_invalid(data, error) if data.strip() else []
        return self._read_chunk(chunk)

    def finish(self) -> list[Event]:
        if self._is_over:
            return []
        if self._finish is not None:
            return self._end()
        why = "without a finishReason" if self._started else "without any content"
        return self._fail(Failure(Kind.TRUNCATED, f"the upstream's stream ended {why}"))

    def _read_invalid(self, data: bytes, error: Exception) -> list[Event]:
        reported = read_error(find_error(data))
        if reported is not None:  # in a list of its own
            return self._fail(reported)
        if _CUT in str(error) and not isinstance(error, msgspec.ValidationError):
            self._has_cut_frame = True  # if nothing follows, the connection ended here
            return []
        return self._fail(Failure(Kind.CORRUPT, "the upstream sent a chunk that is not of generateContent"))

    def _read_chunk(self, chunk: Chunk) -> list[Event]:
        if chunk.error:
            return self._fail(read_error(chunk.error) or Failure(Kind.UPSTREAM, UNEXPLAINED))
        if chunk.usage_metadata is not None:
            self._usage = chunk.usage_metadata if self._usage is None else self._usage.merge(chunk.usage_metadata)
        if chunk.continuation_token:
            self._token = chunk.continuation_token
        events: list[Event] = []
        if not self._started:
            self._start(chunk, events)
        for candidate in chunk.candidates or ():
            if candidate.index:
                self._ledger.record_dropped(f"/candidates/{candidate.index}", "only the first candidate is translated")
                continue
            self._read_candidate(candidate, events)
        feedback = chunk.prompt_feedback
        if feedback is not None and feedback.block_reason and not chunk.candidates:
            events += self._block_prompt(feedback)
        return events

    def read_whole(self, chunks: list[Chunk], body: bytes) -> list[Event]:
        """Return the events of a body that is the whole reply, with or without a finishReason."""
        self._data = body
        events: list[Event] = []
        for chunk in chunks:
            events += [] if self._is_over else self._read_chunk(chunk)
        if not self._is_over and self._finish is None:
            self._finish = "STOP"
        return [*events, *self.finish()]

    def _start(self, chunk: Chunk, events: list[Event]) -> None:
        if not chunk.candidates and not (chunk.prompt_feedback and chunk.prompt_feedback.block_reason):
            return  # only usage so far
        self._started = True
        events.append(Started(chunk.response_id or "", chunk.model_version or self._issuer.model, self._input_usage()))
        # Ids of calls are made from it, and must differ between replies.
        self._blocks.reply_id = (chunk.response_id or _digest(self._data)) + (f"_{self._index}" if self._index else "")

    def _block_prompt(self, feedback: PromptFeedback) -> list[Event]:
        self._is_over = True
        reason = feedback.block_reason or ""
        explanation = feedback.block_reason_message or f"The prompt was blocked: {reason}."
        return [*self._usage_events(), Ended(Stop.FILTERED, category=reason.lower(), explanation=explanation)]

    def _read_candidate(self, candidate: Candidate, events: list[Event]) -> None:
        if candidate.content is not None:
            for part in candidate.content.parts or ():
                self._blocks.read_part(part, events)
        if candidate.logprobs_result is not NOTHING:
            self._blocks.add_logprobs(candidate, events)
        if candidate.grounding_metadata is not NOTHING:
            self._grounding = read_grounding(candidate.grounding_metadata) or self._grounding
        if candidate.continuation_token:
            self._token = candidate.continuation_token
        if candidate.finish_reason is not None and candidate.finish_reason not in UNSPECIFIED:
            self._finish = candidate.finish_reason
            self._message = candidate.finish_message or self._message

    # The end

    def _end(self) -> list[Event]:
        finish = self._finish or ""
        if finish in FAILED_STOPS or (finish not in STOPS and not self._blocks.count and self._token is None):
            why = f": {self._message}" if self._message else ""
            return self._fail(Failure(Kind.UPSTREAM, f"the upstream ended with finishReason {finish!r}{why}"))
        events: list[Event] = []
        if self._grounding is not None:
            self._blocks.add_grounding(self._grounding, events)
        self._blocks.close_block(events)
        self._is_over = True
        return [*events, *self._usage_events(), self._end_event(finish)]

    def _end_event(self, finish: str) -> Ended:
        if finish == CONTINUATION and self._token is not None:
            return Ended(Stop.PAUSE, continuation=self._token)
        stop = STOPS.get(finish)
        if stop is None:
            self._ledger.record_approximated("/candidates/0/finishReason", f"{finish!r} is read as a natural end")
            stop = _END
        if stop is _FILTERED:
            return Ended(stop, category=finish.lower(), explanation=self._message)
        return Ended(_TOOL if stop is _END and self._blocks.calls else stop)

    def _usage_events(self) -> list[Event]:
        if self._usage is None or not self._started:
            return []
        return [UsageReported(clamp_usage(self._to_usage(self._usage), self._ledger))]

    def _input_usage(self) -> Usage | None:
        """Return the counts of the input, which most upstreams send with each chunk."""
        counts = self._usage
        if counts is None or not counts.prompt_token_count:
            return None
        return clamp_usage(Usage(counts.input, cache_read=int(counts.cached_content_token_count or 0)), Ledger())

    def _to_usage(self, counts: Tokens) -> Usage:
        usage = counts.to_usage()
        queries = self._grounding.web_search_queries if self._grounding is not None else None
        return replace(usage, web_searches=len(queries)) if queries else usage

    def _fail(self, failure: Failure) -> list[Event]:
        self._is_over = True
        return [*self._usage_events(), Failed(failure)]


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def make_decoder(issuer: Issuer, ledger: Ledger) -> Decoder | AnswersDecoder:
    """Return the decoder of a stream: of one candidate nearly always, else of as many as the request asks for."""
    if issuer.answers == 1:
        return Decoder(issuer, ledger)
    decoders = [Decoder(issuer, ledger, index) for index in range(issuer.answers)]
    return AnswersDecoder(decoders, partial(split_frame, field="candidates", count=issuer.answers))


def decode_whole(body: bytes, issuer: Issuer, ledger: Ledger) -> list[Event]:
    """Return the events of a whole reply; an error body, or one that is no reply, gives Failed."""
    body = replace_invalid_utf8(body)
    if issuer.answers == 1:
        return _decode_answer(body, issuer, ledger, 0)
    parts = split_by_index(body, "candidates", issuer.answers)
    return merge_answers([_decode_answer(part, issuer, ledger, index) for index, part in enumerate(parts)])


def _decode_answer(body: bytes, issuer: Issuer, ledger: Ledger, index: int) -> list[Event]:
    try:
        chunks = _read_chunks(body)
    except (ValueError, RecursionError):
        excerpt = strip_html(body)
        why = f": {excerpt}" if excerpt else ""
        shape = f"the upstream's reply does not have the shape of generateContent{why}"
        return [Failed(read_error(find_error(body)) or Failure(Kind.CORRUPT, shape))]
    if not any(_has_reply(chunk) for chunk in chunks):
        return [Failed(Failure(Kind.CORRUPT, "the upstream's reply has no candidates", code=NO_REPLY))]
    return Decoder(issuer, ledger, index).read_whole(chunks, body)


def _read_chunks(body: bytes) -> list[Chunk]:
    """Return the one chunk of a reply, or those of a stream that came as an array because it ignores `alt=sse`."""
    if body.lstrip()[:1] != b"[":
        return [read_json_leniently(_CHUNKS, body, INESSENTIAL_FIELDS)]
    parts = msgspec.json.decode(body, type=list[msgspec.Raw])
    return [read_json_leniently(_CHUNKS, bytes(part), INESSENTIAL_FIELDS) for part in parts]


def _has_reply(chunk: Chunk) -> bool:
    blocked = chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason
    return bool(chunk.candidates or chunk.error or blocked)
