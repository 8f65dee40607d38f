"""The timeline of a capture as text: three columns side by side, or one line for each entry."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from textwrap import wrap

from dragoman.admin.timeline import Side, TimelineEntry, build_timeline, failure_message, shorten_frame
from dragoman.cli.screen import count, fit, one_line, pad
from dragoman.flow.capture.format import Capture

WIDTH = 120
TIME_WIDTH = 8
GAP = "  "
SIDES: tuple[Side, ...] = ("upstream", "hub", "client")
ERROR_LABEL = "error     "
MAX_MESSAGE_CHARACTERS = 1000
SHARES = (38, 29, 39)  # of the width, for each side
SAME_TIME_S = 0.0005


def render_timeline(capture: Capture, full: bool = False, width: int = WIDTH) -> Iterator[str]:
    """Yield the lines of a timeline. Without `full`, no line is longer than `width`."""
    entries = build_timeline(capture)
    yield from (line if full else fit(line, width) for line in map(one_line, _summarise(capture)))
    yield from _explain_failure(capture, width)
    yield ""
    yield from _one_below_the_other(entries) if full else _side_by_side(entries, _column_widths(width))


def _summarise(capture: Capture) -> Iterator[str]:
    time = datetime.fromtimestamp(capture.started_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    yield f"{capture.request_id}  {time}  {capture.client or 'unknown client'}"
    request = capture.request
    mode = "stream" if capture.stream else "whole reply"
    model = f"model {capture.requested_model}, {mode}" if capture.requested_model else "no model"
    yield f"request   {request.method} {request.path}, {len(request.body)} bytes, {model}"
    if capture.route:
        requests = count(len(capture.upstream_requests), "upstream request")
        yield f"route     {capture.protocols}, {capture.route}, {requests}"
    status = "no response sent" if capture.response is None else f"HTTP {capture.response.status}"
    yield f"outcome   {_describe_outcome(capture)}; {status}, after {capture.duration_ms:.0f} ms"
    for index, loss in enumerate(capture.losses):
        which = "request" if index < capture.request_losses else "reply"
        yield f"loss      {which} {loss.path or '/'} {loss.how.value}: {loss.why}"
    for trip in capture.guard_trips:
        yield f"guard     {trip}"
    if capture.truncated:
        yield f"missing   not kept completely: {', '.join(capture.truncated)}"


def _describe_outcome(capture: Capture) -> str:
    code = f" ({capture.error_code})" if capture.error_code else ""
    cut = f", cut tool call: {', '.join(capture.cut_calls)}" if capture.cut_calls else ""
    return f"{capture.outcome}{code}{cut}"


def _explain_failure(capture: Capture, width: int) -> Iterator[str]:
    """Yield the whole message of the failure, over as many lines as it needs."""
    message = one_line(failure_message(capture))[:MAX_MESSAGE_CHARACTERS]
    room = width - len(ERROR_LABEL)
    for index, line in enumerate(wrap(message, room if message.isascii() else room // 2)):
        yield f"{' ' * len(ERROR_LABEL) if index else ERROR_LABEL}{line}"


def _column_widths(width: int) -> list[int]:
    """Divide what the times and the gaps leave by the shares of the three columns."""
    room = width - TIME_WIDTH - len(GAP) * len(SHARES)
    widths = [room * share // sum(SHARES) for share in SHARES]
    return [*widths[:-1], room - sum(widths[:-1])]


def _side_by_side(entries: list[TimelineEntry], widths: Sequence[int]) -> Iterator[str]:
    yield _row("ms", [side.upper() for side in SIDES], widths)
    for group in _group(entries):
        columns = [[shorten_frame(entry.text) for entry in group if entry.side == side] for side in SIDES]
        for index, cells in enumerate(zip_longest(*columns, fillvalue="")):
            yield _row(_format_time(group[0].at) if index == 0 else "", cells, widths)


def _one_below_the_other(entries: list[TimelineEntry]) -> Iterator[str]:
    for entry in entries:
        yield f"{_format_time(entry.at):>{TIME_WIDTH}}{GAP}{entry.side:8}{GAP}{one_line(entry.text)}"


def _group(entries: list[TimelineEntry]) -> Iterator[list[TimelineEntry]]:
    """Yield what the upstream sent at one time together with everything until it sends again."""
    group: list[TimelineEntry] = []
    for entry in entries:
        is_upstream = entry.side == "upstream"
        if group and is_upstream and (group[-1].side != "upstream" or entry.at - group[-1].at > SAME_TIME_S):
            yield group
            group = []
        group.append(entry)
    if group:
        yield group


def _row(time: str, cells: Iterable[str], widths: Sequence[int]) -> str:
    columns = [pad(fit(one_line(cell), width), width) for cell, width in zip(cells, widths, strict=True)]
    return GAP.join([time.rjust(TIME_WIDTH), *columns]).rstrip()


def _format_time(at: float) -> str:
    return f"{at * 1000:.1f}"
