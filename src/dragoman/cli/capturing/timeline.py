"""A capture comes in; the lines that tell it go out: what came from upstream, what it meant, what was sent."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from textwrap import wrap
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from dragoman.admin.frames import brief, frames_of
from dragoman.admin.replay.player import joined
from dragoman.cli.screen import flat, padded, shortened
from dragoman.flow.capture.format import CLOSED, WHOLE, Capture, UpstreamRequest, event_of
from dragoman.hub.events import (
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
    Started,
    UsageReported,
)

WIDTH = 120
TIME = 8
GAP = "  "
HEADINGS = ("UPSTREAM", "HUB", "CLIENT")
WHY = "why       "
LONGEST_MESSAGE = 1000
SHARES = (38, 29, 39)
TOGETHER_S = 0.0005


class _Error(Struct):
    message: str = ""


class _Told(Struct):
    """An error as every client protocol words it."""

    error: _Error


class Beat(Struct, frozen=True):
    """Something that happened, and on which of the three sides."""

    at: float
    column: int
    text: str


def told(capture: Capture, full: bool = False, width: int = WIDTH) -> Iterator[str]:
    """Without `full`, no line is longer than `width`."""
    beats = sorted(_beats(capture), key=lambda beat: beat.at)
    yield from (line if full else shortened(line, width) for line in map(flat, _opening(capture)))
    yield from _why(capture, width)
    yield ""
    yield from _listed(beats) if full else _side_by_side(beats, _widths(width))


def _opening(capture: Capture) -> Iterator[str]:
    moment = datetime.fromtimestamp(capture.started_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    yield f"{capture.request_id}  {moment}  {capture.client or 'an unnamed client'}"
    asked = capture.request
    what = (
        f"for {capture.requested_model} {'as a stream' if capture.stream else 'whole'}"
        if capture.requested_model
        else "for no model"
    )
    yield f"asked     {asked.method} {asked.path}, {len(asked.body)} bytes, {what}"
    if capture.route:
        count = len(capture.upstream_requests)
        yield f"went      {capture.protocols}, {capture.route}, {count} request{'' if count == 1 else 's'} upstream"
    status = "nothing was sent" if capture.response is None else f"HTTP {capture.response.status}"
    yield f"outcome   {_outcome(capture)}; {status}, after {capture.duration_ms:.0f} ms"
    for place, loss in enumerate(capture.losses):
        whose = "request" if place < capture.request_losses else "reply"
        yield f"lost      {whose} {loss.path or '/'} {loss.how.value}: {loss.why}"
    for trip in capture.guard_trips:
        yield f"guard     {trip}"
    if capture.truncated:
        yield f"missing   {', '.join(capture.truncated)}: not kept whole"


def _outcome(capture: Capture) -> str:
    code = f" ({capture.error_code})" if capture.error_code else ""
    cut = f", cut tool call: {', '.join(capture.cut_calls)}" if capture.cut_calls else ""
    return f"{capture.outcome}{code}{cut}"


def _why(capture: Capture, width: int) -> Iterator[str]:
    """Whole, over as many lines as it takes."""
    message = flat(_message(capture))[:LONGEST_MESSAGE]
    room = width - len(WHY)
    for place, line in enumerate(wrap(message, room if message.isascii() else room // 2)):
        yield f"{' ' * len(WHY) if place else WHY}{line}"


def _message(capture: Capture) -> str:
    """What the failure says of itself: in the stream, else in the error that the client got."""
    for moment in reversed(capture.events):
        event = event_of(moment.event)
        if isinstance(event, Failed):
            return event.failure.message
    if capture.response is None or capture.response.status < 400:
        return ""
    try:
        told = msgspec.json.decode(joined(capture.response.chunks), type=_Told)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return told.error.message


def _beats(capture: Capture) -> Iterator[Beat]:
    for question in capture.upstream_requests:
        yield from _upstream(question)
    for moment in capture.events:
        yield Beat(moment.at, 1, _event(event_of(moment.event)))
    if capture.response is not None:
        chunks = capture.response.chunks
        at = chunks[0].at if chunks else capture.duration_ms / 1000
        fields = dict(capture.response.headers)
        kind = fields.get("content-type", "")
        yield Beat(at, 2, f"< {capture.response.status} {kind}")
        yield from (Beat(at, 2, text) for at, text in frames_of(chunks, kind))


def _upstream(question: UpstreamRequest) -> Iterator[Beat]:
    place = urlsplit(question.url)
    yield Beat(question.at, 0, f"> {question.method} {place.netloc}{place.path}, {len(question.body)} bytes")
    answer = question.response
    if answer is None:
        yield Beat(question.at, 0, f"({question.error})")
        return
    kind = dict(answer.headers).get("content-type", "")
    yield Beat(answer.at, 0, f"< {answer.status} {kind}")
    yield from (Beat(at, 0, text) for at, text in frames_of(answer.chunks, kind))
    ends = {WHOLE: "(end)", CLOSED: "(closed by us)"}
    yield Beat(answer.ended_at, 0, ends.get(answer.end, f"({answer.end})"))


def _event(event: Event) -> str:
    match event:
        case Delta(block=block, text=text):
            return f"delta {block} {_quoted(text)}"
        case Opened(block=block, what=CallBlock(name=name, id=id)):
            return f"opened {block} call {name} {id}"
        case Opened(block=block, what=HostedBlock(kind=kind)):
            return f"opened {block} hosted {kind}"
        case Opened(block=block, what=what):
            return f"opened {block} {type(what).__name__.removesuffix('Block').lower()}"
        case Closed(block=block):
            return f"closed {block}"
        case OpaqueAdded(block=block, opaque=opaque):
            return f"sealed {block} {opaque.form.value}, {len(opaque.payload)} characters"
        case CitationAdded(block=block):
            return f"cited {block} {msgspec.json.encode(event.citation).decode()}"
        case Started(id=id, model=model):
            return f"started {id} {model}".rstrip()
        case UsageReported(usage=usage):
            counts = f"{usage.input} in, {usage.output} out" if usage.context is None else f"{usage.context} in all"
            return f"used {counts}, {usage.source.value}"
        case Ended(stop=stop, cut=cut):
            calls = "".join(f", cut {call.name} {_quoted(call.arguments)}" for call in cut)
            return f"ended {stop.value}{calls}"
        case Failed(failure=failure):
            return f"failed {failure.kind.value}: {failure.message}"


def _widths(width: int) -> list[int]:
    """Of the three columns: each has its share of what the time and the gaps leave."""
    room = width - TIME - len(GAP) * len(SHARES)
    widths = [room * share // sum(SHARES) for share in SHARES]
    return [*widths[:-1], room - sum(widths[:-1])]


def _side_by_side(beats: list[Beat], widths: Sequence[int]) -> Iterator[str]:
    yield _row("ms", HEADINGS, widths)
    for group in _groups(beats):
        columns = [[brief(beat.text) for beat in group if beat.column == column] for column in range(len(HEADINGS))]
        for place, cells in enumerate(zip_longest(*columns, fillvalue="")):
            yield _row(_time(group[0].at) if place == 0 else "", cells, widths)


def _listed(beats: list[Beat]) -> Iterator[str]:
    for beat in beats:
        yield f"{_time(beat.at):>{TIME}}{GAP}{HEADINGS[beat.column].lower():8}{GAP}{flat(beat.text)}"


def _groups(beats: list[Beat]) -> Iterator[list[Beat]]:
    """What came from upstream at one time and all that it led to, until the next thing comes from there."""
    group: list[Beat] = []
    for beat in beats:
        if group and beat.column == 0 and (group[-1].column != 0 or beat.at - group[-1].at > TOGETHER_S):
            yield group
            group = []
        group.append(beat)
    if group:
        yield group


def _row(time: str, cells: Iterable[str], widths: Sequence[int]) -> str:
    columns = [padded(shortened(flat(cell), width), width) for cell, width in zip(cells, widths, strict=True)]
    return GAP.join([time.rjust(TIME), *columns]).rstrip()


def _time(at: float) -> str:
    return f"{at * 1000:.1f}"


def _quoted(text: str) -> str:
    return msgspec.json.encode(text.encode(errors="replace").decode()).decode()
