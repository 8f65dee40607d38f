"""Decode a Messages reply, streamed or whole, into hub events."""

from collections.abc import Callable, Sequence
from enum import Enum

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.translate.framing.jsonread import read_json_leniently, replace_invalid_utf8, replace_lone_surrogates
from dragoman.translate.framing.sse import Broken, Frame
from dragoman.translate.hub.events import Ended, Event, Failed, Started, Stop, UsageReported, find_excess
from dragoman.translate.hub.failure import NO_REPLY, Failure, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Issuer, Progress
from dragoman.translate.hub.usage import Usage, clamp_usage, mark_clamped
from dragoman.translate.protocols.messages.decode_blocks import Blocks
from dragoman.translate.protocols.messages.errors import read_error
from dragoman.translate.protocols.messages.wire import (
    INESSENTIAL_FIELDS,
    REPLY_TIERS,
    STOPS,
    CacheCreation,
    Count,
    Counts,
    Iteration,
    Message,
    StopDetails,
    StreamEvent,
    is_present,
)


class _TypeOnly(msgspec.Struct):
    type: str = ""


_event = msgspec.json.Decoder(StreamEvent)
_kind = msgspec.json.Decoder(_TypeOnly)
_message = msgspec.json.Decoder(Message)


_END, _TOOL = Stop.END, Stop.TOOL  # looked up once: on Python 3.11, each look-up of a member is slow
_CUT_STOPS = (Stop.LENGTH, Stop.CONTEXT_FULL, Stop.FILTERED)


class _Phase(Enum):
    """What the decoder expects next."""

    BEFORE = "message_start"
    DURING = "the blocks"
    STOPPED = "message_stop, the stop reason is known"
    OVER = "nothing"


# On Python 3.11 looking up an Enum member costs as much as the comparison itself.
_BEFORE, _DURING, _STOPPED, _OVER = _Phase


class Decoder:
    """Decode a stream, also to observe one that passes through unchanged."""

    __slots__ = ("_blocks", "_ending", "_id", "_ledger", "_phase", "_readers", "_totals")

    def __init__(self, issuer: Issuer, ledger: Ledger) -> None:
        self._ledger = ledger
        self._blocks = Blocks(issuer, ledger)
        self._totals = _Totals()
        self._ending: Ended | None = None
        self._phase = _BEFORE
        self._id = ""  # of the message
        self._readers: dict[str, Callable[[StreamEvent], Sequence[Event]]] = {
            "message_start": self._read_start,
            "content_block_start": self._open_block,
            "content_block_delta": self._change_block,
            "content_block_stop": self._close_block,
            "message_delta": self._read_stop,
            "message_stop": self._read_end,
            "error": self._read_error,
        }

    @property
    def progress(self) -> Progress:
        if self._ending is not None:
            return Progress.STOPPED
        return Progress.ACTING if self._blocks.acts else Progress.READING

    def feed(self, item: object) -> Sequence[Event]:
        if self._phase is _OVER:
            return ()
        if not isinstance(item, Frame):
            why = item.why if isinstance(item, Broken) else "not a frame"
            return self._fail_with(Failure(Kind.CORRUPT, f"the upstream's stream cannot be read: {why}"))
        try:
            event = _event.decode(item.data)
        except (ValueError, RecursionError):
            return self._read_invalid(item.data)
        reader = self._readers.get(event.type)
        if reader is None:
            return () if event.error is None else self._read_error(event)
        try:
            return reader(event)
        except (ValueError, RecursionError) as error:
            return self._fail_with(Failure(Kind.CORRUPT, f"the upstream sent an event that cannot be read: {error}"))

    def finish(self) -> Sequence[Event]:
        if self._phase is _OVER:
            return ()
        return self._fail_with(Failure(Kind.TRUNCATED, "the upstream's stream ended without message_stop"))

    def _read_invalid(self, data: bytes) -> Sequence[Event]:
        """Read an event whose decoding failed: a known type must parse, an unknown one may have any shape."""
        if data.strip() in (b"[DONE]", b""):
            return ()
        repaired = replace_lone_surrogates(data)
        try:
            reader = self._readers.get(_kind.decode(repaired).type)
            return () if reader is None else reader(read_json_leniently(_event, repaired, INESSENTIAL_FIELDS))
        except (ValueError, RecursionError) as error:
            return self._fail_with(Failure(Kind.CORRUPT, f"the upstream sent an event that cannot be read: {error}"))

    def _read_start(self, event: StreamEvent) -> Sequence[Event]:
        head = event.message
        if self._phase is not _BEFORE:
            if head is None or head.id in ("", self._id) or not self._id:
                return ()
            return self._fail_with(Failure(Kind.CORRUPT, "the upstream began another message within its stream"))
        self._phase = _DURING
        if head is None:
            return (Started("", ""),)
        self._id = head.id
        self._totals.merge(head.usage)
        return (Started(head.id, head.model, self._totals.usage(self._ledger)),)

    def _open_block(self, event: StreamEvent) -> Sequence[Event]:
        started = self._ensure_started()
        if self._phase is _STOPPED or not is_present(event.content_block):
            return started
        return [*started, *self._blocks.open(event.index, event.content_block)]

    def _change_block(self, event: StreamEvent) -> Sequence[Event]:
        if self._phase is not _DURING or event.delta is None:
            return ()
        return self._blocks.change(event.index, event.delta)

    def _close_block(self, event: StreamEvent) -> Sequence[Event]:
        return self._blocks.close(event.index)

    def _read_stop(self, event: StreamEvent) -> Sequence[Event]:
        started = self._ensure_started()
        self._totals.merge(event.usage)
        change = event.delta
        if change is None or change.stop_reason is None:
            return started
        self._phase = _STOPPED
        stop = ReportedStop(change.stop_reason, change.stop_sequence, change.stop_details)
        self._ending = _build_end(stop, self._blocks.calls, self._ledger)
        unfinished = self._check_calls(self._ending)
        if unfinished:
            return [*started, *unfinished]
        closed = self._blocks.close_all()
        used = self._totals.usage(self._ledger)
        return [*started, *closed, *([UsageReported(used)] if used else [])]

    def _read_end(self, event: StreamEvent) -> Sequence[Event]:
        started = self._ensure_started()
        ending = self._ending or _build_end(ReportedStop(), self._blocks.calls, self._ledger)
        unfinished = self._check_calls(ending)
        if unfinished:
            return [*started, *unfinished]
        closed = self._blocks.close_all()
        self._phase = _OVER
        return [*started, *closed, ending]

    def _check_calls(self, ending: Ended) -> Sequence[Event]:
        """Return the failure of a reply that ends inside a call, unless a limit or a filter ended it there."""
        name = self._blocks.unfinished_call()
        if name is None or ending.stop in _CUT_STOPS:
            return ()
        return self._fail_with(Failure(Kind.CORRUPT, f"the upstream's reply ended inside its call of {name!r}"))

    def _read_error(self, event: StreamEvent) -> Sequence[Event]:
        return self._fail_with(read_error(event.error))

    def _ensure_started(self) -> Sequence[Event]:
        if self._phase is not _BEFORE:
            return ()
        self._phase = _DURING
        return (Started("", ""),)

    def _fail_with(self, failure: Failure) -> Sequence[Event]:
        self._phase = _OVER
        return (Failed(failure),)


class ReportedStop(Struct, frozen=True):
    """Why a message ended, as the upstream says it."""

    reason: str | None = None
    sequence: str | None = None
    details: StopDetails | None = None


def _build_end(reported: ReportedStop, calls: bool, ledger: Ledger) -> Ended:
    """Return the end. The stop reason is corrected to agree with the calls, because clients run tools by it."""
    reason, sequence, details = reported.reason, reported.sequence, reported.details
    stop = STOPS.get(reason or "end_turn")
    if stop is None:
        ledger.record_approximated("/stop_reason", f"{reason!r} is read as a natural end")
        stop = _END
    if stop is _TOOL and not calls:
        stop = _END
    elif stop is _END and calls:
        stop = _TOOL
    if details is None:
        return Ended(stop, sequence)
    return Ended(stop, sequence, details.category, details.explanation)


class _Totals:
    """Cumulative token counts: each report replaces the fields it holds."""

    __slots__ = ("_counts", "_extra", "_seen")

    def __init__(self) -> None:
        self._counts = Counts()
        self._extra = Iteration()  # the sum of the iterations that the counts leave out
        self._seen = False

    def merge(self, report: Counts | None) -> None:
        if report is None:
            return
        if self._seen:
            for name in Counts.__struct_fields__:
                value = getattr(report, name)
                if value is not None:
                    setattr(self._counts, name, value)
        else:
            self._seen, self._counts = True, replace(report)
        if report.iterations is not None:
            self._extra = _sum_extra(report.iterations)

    def usage(self, ledger: Ledger) -> Usage | None:
        if not self._seen:
            return None
        counts, extra = self._counts, self._extra
        read = _add(counts.cache_read_input_tokens, extra.cache_read_input_tokens)
        written = _add(counts.cache_creation_input_tokens, extra.cache_creation_input_tokens)
        written_for_1h = [one.cache_creation.ephemeral_1h_input_tokens for one in (counts, extra) if one.cache_creation]
        thought = counts.output_tokens_details.thinking_tokens if counts.output_tokens_details else None
        searches = counts.server_tool_use.web_search_requests if counts.server_tool_use else None
        fresh = _add(counts.input_tokens, extra.input_tokens)
        usage = Usage(
            input=max(fresh, 0) + max(read, 0) + max(written, 0),
            output=_add(counts.output_tokens, extra.output_tokens),
            cache_read=read,
            cache_write=written,
            cache_write_1h=_add(*written_for_1h),
            reasoning=_add(thought),
            web_searches=_add(searches),
            service_tier=REPLY_TIERS.get(counts.service_tier) if counts.service_tier else None,
        )
        usage = clamp_usage(usage, ledger)
        return mark_clamped(usage, ledger) if fresh < 0 else usage


def _add(*counts: Count) -> int:
    total = 0
    for count in counts:
        if count:
            total += int(count)
    return total


def _sum_extra(iterations: Sequence[Iteration]) -> Iteration:
    """Add up the iterations that the counts of the reply leave out.

    These are compactions, unless another model took over the reply.
    """
    if any(one.type == "fallback_message" for one in iterations):
        return Iteration()
    extra = [one for one in iterations if one.type == "compaction"]
    written_for_1h = [one.cache_creation.ephemeral_1h_input_tokens for one in extra if one.cache_creation]
    return Iteration(
        input_tokens=_add(*(one.input_tokens for one in extra)),
        output_tokens=_add(*(one.output_tokens for one in extra)),
        cache_read_input_tokens=_add(*(one.cache_read_input_tokens for one in extra)),
        cache_creation_input_tokens=_add(*(one.cache_creation_input_tokens for one in extra)),
        cache_creation=CacheCreation(_add(*written_for_1h)),
    )


def decode_whole(body: bytes, issuer: Issuer, ledger: Ledger) -> list[Event]:
    """Return the events of a whole reply; an error body with a good status is a failure too."""
    body = replace_invalid_utf8(body)
    try:
        message = read_json_leniently(_message, body, INESSENTIAL_FIELDS)
    except (ValueError, RecursionError) as error:
        return [Failed(Failure(Kind.CORRUPT, f"the upstream's reply cannot be read: {error}"))]
    if message.error is not None or message.type == "error":
        return [Failed(read_error(message.error))]
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
    reported = ReportedStop(message.stop_reason, message.stop_sequence, message.stop_details)
    events.append(_build_end(reported, blocks.calls, ledger))
    return events
