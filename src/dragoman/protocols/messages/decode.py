"""What a Messages upstream answers, as frames of a stream or as a whole body, comes in; hub events go out."""

from collections.abc import Callable, Sequence
from enum import Enum

import msgspec

from dragoman.framing.jsonread import read_json_leniently, replace_invalid_utf8, replace_lone_surrogates
from dragoman.framing.sse import Broken, Frame
from dragoman.hub.events import Ended, Event, Failed, Started, Stop, UsageReported
from dragoman.hub.failure import NO_REPLY, Failure, Kind
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import Issuer, Progress
from dragoman.hub.reply import find_excess
from dragoman.hub.usage import Usage, clamp_usage, mark_clamped
from dragoman.protocols.messages.decode_blocks import Blocks
from dragoman.protocols.messages.errors import failure_of
from dragoman.protocols.messages.wire import (
    BESIDE,
    REPLY_TIERS,
    STOPS,
    CacheCreation,
    Count,
    Counts,
    Iteration,
    Message,
    StopDetails,
    StreamEvent,
    is_given,
)


class _Kind(msgspec.Struct):
    type: str = ""


_event = msgspec.json.Decoder(StreamEvent)
_kind = msgspec.json.Decoder(_Kind)
_message = msgspec.json.Decoder(Message)


_CUTS = (Stop.LENGTH, Stop.CONTEXT_FULL, Stop.FILTERED)


class _Phase(Enum):
    """What is waited for."""

    BEFORE = "message_start"
    DURING = "the blocks"
    STOPPED = "message_stop, the stop reason is known"
    OVER = "nothing"


# On Python 3.11 the way through the class costs as much as the rest of a comparison.
_BEFORE, _DURING, _STOPPED, _OVER = _Phase


class Decoder:
    """Reads a stream; also watches streams that pass through."""

    __slots__ = ("_blocks", "_ending", "_ledger", "_phase", "_steps", "_totals")

    def __init__(self, issuer: Issuer, ledger: Ledger) -> None:
        self._ledger = ledger
        self._blocks = Blocks(issuer, ledger)
        self._totals = _Totals()
        self._ending: Ended | None = None
        self._phase = _BEFORE
        self._steps: dict[str, Callable[[StreamEvent], Sequence[Event]]] = {
            "message_start": self._start,
            "content_block_start": self._open,
            "content_block_delta": self._change,
            "content_block_stop": self._close,
            "message_delta": self._stop,
            "message_stop": self._end,
            "error": self._fail,
        }

    @property
    def progress(self) -> Progress:
        return Progress.READING if self._ending is None else Progress.STOPPED

    def feed(self, item: object) -> Sequence[Event]:
        if self._phase is _OVER:
            return ()
        if not isinstance(item, Frame):
            why = item.why if isinstance(item, Broken) else "not a frame"
            return self._failed(Failure(Kind.CORRUPT, f"the upstream's stream cannot be read: {why}"))
        try:
            event = _event.decode(item.data)
        except (ValueError, RecursionError):
            return self._reread(item.data)
        step = self._steps.get(event.type)
        if step is None:
            return () if event.error is None else self._fail(event)
        try:
            return step(event)
        except (ValueError, RecursionError) as error:
            return self._failed(Failure(Kind.CORRUPT, f"the upstream sent an event that cannot be read: {error}"))

    def finish(self) -> Sequence[Event]:
        if self._phase is _OVER:
            return ()
        return self._failed(Failure(Kind.TRUNCATED, "the upstream's stream ended without message_stop"))

    def _reread(self, data: bytes) -> Sequence[Event]:
        """An event of a known type must parse; one that we do not know may have any shape."""
        if data.strip() in (b"[DONE]", b""):
            return ()
        mended = replace_lone_surrogates(data)
        try:
            step = self._steps.get(_kind.decode(mended).type)
            return () if step is None else step(read_json_leniently(_event, mended, BESIDE))
        except (ValueError, RecursionError) as error:
            return self._failed(Failure(Kind.CORRUPT, f"the upstream sent an event that cannot be read: {error}"))

    def _start(self, event: StreamEvent) -> Sequence[Event]:
        if self._phase is not _BEFORE:
            return ()
        self._phase = _DURING
        head = event.message
        if head is None:
            return (Started("", ""),)
        self._totals.merge(head.usage)
        return (Started(head.id, head.model, self._totals.usage(self._ledger)),)

    def _open(self, event: StreamEvent) -> Sequence[Event]:
        begun = self._begin()
        if self._phase is _STOPPED or not is_given(event.content_block):
            return begun
        return [*begun, *self._blocks.open(event.index, event.content_block)]

    def _change(self, event: StreamEvent) -> Sequence[Event]:
        if self._phase is not _DURING or event.delta is None:
            return ()
        return self._blocks.change(event.index, event.delta)

    def _close(self, event: StreamEvent) -> Sequence[Event]:
        return self._blocks.close(event.index)

    def _stop(self, event: StreamEvent) -> Sequence[Event]:
        begun = self._begin()
        self._totals.merge(event.usage)
        change = event.delta
        if change is None or change.stop_reason is None:
            return begun
        self._phase = _STOPPED
        self._ending = _ending(
            change.stop_reason, change.stop_sequence, change.stop_details, self._blocks.calls, self._ledger
        )
        unfinished = self._unfinished(self._ending)
        if unfinished:
            return [*begun, *unfinished]
        closed = self._blocks.close_all()
        used = self._totals.usage(self._ledger)
        return [*begun, *closed, *([UsageReported(used)] if used else [])]

    def _end(self, event: StreamEvent) -> Sequence[Event]:
        begun = self._begin()
        ending = self._ending or _ending(None, None, None, self._blocks.calls, self._ledger)
        unfinished = self._unfinished(ending)
        if unfinished:
            return [*begun, *unfinished]
        closed = self._blocks.close_all()
        self._phase = _OVER
        return [*begun, *closed, ending]

    def _unfinished(self, ending: Ended) -> Sequence[Event]:
        """Return the failure of a reply that ends inside a call, unless a limit or a filter ended it there."""
        name = self._blocks.unfinished_call()
        if name is None or ending.stop in _CUTS:
            return ()
        return self._failed(Failure(Kind.CORRUPT, f"the upstream's reply ended inside its call of {name!r}"))

    def _fail(self, event: StreamEvent) -> Sequence[Event]:
        return self._failed(failure_of(event.error))

    def _begin(self) -> Sequence[Event]:
        if self._phase is not _BEFORE:
            return ()
        self._phase = _DURING
        return (Started("", ""),)

    def _failed(self, failure: Failure) -> Sequence[Event]:
        self._phase = _OVER
        return (Failed(failure),)


def _ending(
    reason: str | None, sequence: str | None, details: StopDetails | None, calls: bool, ledger: Ledger
) -> Ended:
    """The end, mended where the reason and the blocks disagree: a client runs tools by the reason."""
    stop = STOPS.get(reason or "end_turn")
    if stop is None:
        ledger.note_approximated("/stop_reason", f"{reason!r} is told as a natural end")
        stop = Stop.END
    if stop is Stop.TOOL and not calls:
        stop = Stop.END
    elif stop is Stop.END and calls:
        stop = Stop.TOOL
    if details is None:
        return Ended(stop, sequence)
    return Ended(stop, sequence, details.category, details.explanation)


class _Totals:
    """Cumulative counts: each report replaces what it names and keeps the rest."""

    __slots__ = ("_apart", "_counts", "_seen")

    def __init__(self) -> None:
        self._counts = Counts()
        self._apart = Iteration()  # the sum of the passes that the counts leave out
        self._seen = False

    def merge(self, report: Counts | None) -> None:
        if report is None:
            return
        self._seen = True
        for name in Counts.__struct_fields__:
            value = getattr(report, name)
            if value is not None:
                setattr(self._counts, name, value)
        if report.iterations is not None:
            self._apart = _sum_apart(report.iterations)

    def usage(self, ledger: Ledger) -> Usage | None:
        if not self._seen:
            return None
        counts, apart = self._counts, self._apart
        read = _add(counts.cache_read_input_tokens, apart.cache_read_input_tokens)
        written = _add(counts.cache_creation_input_tokens, apart.cache_creation_input_tokens)
        kept_long = [one.cache_creation.ephemeral_1h_input_tokens for one in (counts, apart) if one.cache_creation]
        thought = counts.output_tokens_details.thinking_tokens if counts.output_tokens_details else None
        searches = counts.server_tool_use.web_search_requests if counts.server_tool_use else None
        fresh = _add(counts.input_tokens, apart.input_tokens)
        usage = Usage(
            input=max(fresh, 0) + max(read, 0) + max(written, 0),
            output=_add(counts.output_tokens, apart.output_tokens),
            cache_read=read,
            cache_write=written,
            cache_write_1h=_add(*kept_long),
            reasoning=_add(thought),
            web_searches=_add(searches),
            service_tier=REPLY_TIERS.get(counts.service_tier) if counts.service_tier else None,
        )
        usage = clamp_usage(usage, ledger)
        return mark_clamped(usage, ledger) if fresh < 0 else usage


def _add(*counts: Count) -> int:
    return sum(int(count or 0) for count in counts)


def _sum_apart(iterations: Sequence[Iteration]) -> Iteration:
    """Add up the passes that the counts of the reply leave out.

    These are compactions, unless another model took the reply over.
    """
    if any(one.type == "fallback_message" for one in iterations):
        return Iteration()
    apart = [one for one in iterations if one.type == "compaction"]
    kept_long = [one.cache_creation.ephemeral_1h_input_tokens for one in apart if one.cache_creation]
    return Iteration(
        input_tokens=_add(*(one.input_tokens for one in apart)),
        output_tokens=_add(*(one.output_tokens for one in apart)),
        cache_read_input_tokens=_add(*(one.cache_read_input_tokens for one in apart)),
        cache_creation_input_tokens=_add(*(one.cache_creation_input_tokens for one in apart)),
        cache_creation=CacheCreation(_add(*kept_long)),
    )


def decode_whole(body: bytes, issuer: Issuer, ledger: Ledger) -> list[Event]:
    """The events that a whole reply tells; an error body under a good status is a failure too."""
    body = replace_invalid_utf8(body)
    try:
        message = read_json_leniently(_message, body, BESIDE)
    except (ValueError, RecursionError) as error:
        return [Failed(Failure(Kind.CORRUPT, f"the upstream's reply cannot be read: {error}"))]
    if message.error is not None or message.type == "error":
        return [Failed(failure_of(message.error))]
    if message.type != "message" and not message.content:
        return [Failed(Failure(Kind.CORRUPT, "the upstream's reply is not a message", code=NO_REPLY))]
    if too_many := find_excess(blocks=len(message.content)):
        return [Failed(too_many)]
    totals = _Totals()
    totals.merge(message.usage)
    usage = totals.usage(ledger)
    blocks = Blocks(issuer, ledger)
    events: list[Event] = [Started(message.id, message.model, usage)]
    try:
        for index, block in enumerate(message.content):
            events += blocks.open(index, block)
            events += blocks.close(index)
        events += blocks.close_all()
    except (ValueError, RecursionError) as error:
        return [Failed(Failure(Kind.CORRUPT, f"the upstream's reply has a block that cannot be read: {error}"))]
    if usage is not None:
        events.append(UsageReported(usage))
    events.append(_ending(message.stop_reason, message.stop_sequence, message.stop_details, blocks.calls, ledger))
    return events
