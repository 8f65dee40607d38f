"""`dragoman capture`: list captured exchanges, show one as a timeline, and export its bodies and streams."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap

import click

from dragoman.cli.completion import complete_captures
from dragoman.cli.screen import count, fit, one_line, pad, print_note, show_json, show_table
from dragoman.cli.settings import config_option, read_settings, store_options
from dragoman.operate.captures.files import export_capture, find_capture, list_captures, read_capture
from dragoman.operate.captures.timeline import Side, TimelineEntry, build_timeline, failure_message, shorten_frame
from dragoman.proxy.capture.files import CaptureFile, to_json
from dragoman.proxy.capture.format import Capture

HEADINGS = ("ID", "TIME", "CLIENT", "PROTOCOLS", "ROUTE", "OUTCOME", "SIZE")
MIN_WIDTH = 80
HOW_TO_CAPTURE = "Set debug.capture to `errors` to keep failed exchanges, or to `all` to keep every one."
WIDTH = 120
TIME_WIDTH = 8
GAP = "  "
SIDES: tuple[Side, ...] = ("upstream", "hub", "client")
ERROR_LABEL = "error     "
MAX_MESSAGE_CHARACTERS = 1000
SHARES = (38, 29, 39)  # of the width, for each side
SAME_TIME_S = 0.0005


@click.group("capture")
def command() -> None:
    """List, show and export captured exchanges.

    ID is a request id, its beginning or its end, or `last`.
    """


@command.command("list")
@store_options
def show_list(config_file: str | None, as_json: bool) -> None:
    """List the captures, the newest last."""
    captures = list_captures(read_settings(config_file).debug)
    if as_json:
        show_json([{**kept.summary.list_fields(), "file": str(kept.file), "size": kept.size} for kept in captures])
    elif captures:
        show_table(HEADINGS, [_format_row(kept) for kept in captures])
    else:
        print_note(f"There are no captures. {HOW_TO_CAPTURE}")


@command.command("show", short_help="Show an exchange as a timeline.")
@click.argument("which", metavar="ID|FILE", shell_complete=complete_captures)
@click.option("--full", is_flag=True, help="Show everything in full.")
@store_options
def show_one(which: str, full: bool, config_file: str | None, as_json: bool) -> None:
    """Show an exchange as a timeline: upstream frames, hub events, and what the client received."""
    capture = choose_capture(which, config_file)
    if as_json:
        click.echo(to_json(capture), nl=False)
        return
    width = shutil.get_terminal_size((WIDTH, 0)).columns
    for line in render_timeline(capture, full, max(width, MIN_WIDTH)):
        click.echo(line)


@command.command("export", short_help="Write bodies and streams into plain files.")
@click.argument("which", metavar="ID|FILE", shell_complete=complete_captures)
@click.argument("directory", required=False, type=click.Path(file_okay=False, path_type=Path))
@config_option
def export_one(which: str, directory: Path | None, config_file: str | None) -> None:
    """Write an exchange's bodies and streams into DIRECTORY, as plain files."""
    capture = choose_capture(which, config_file)
    for file in export_capture(capture, directory or Path(f"capture-{capture.request_id}")):
        click.echo(str(file))


def choose_capture(which: str, config_file: str | None) -> Capture:
    """Read a capture from a file, or from the configured directory by its id."""
    file = Path(which)
    return read_capture(file) if file.is_file() else find_capture(read_settings(config_file).debug, which)


def _format_row(kept: CaptureFile) -> tuple[str, ...]:
    summary = kept.summary
    time = datetime.fromisoformat(summary.time).astimezone().strftime("%m-%d %H:%M:%S")
    size = f"{kept.size / 1024:.1f} kB"
    names = (summary.client or "–", summary.protocols, summary.route or "–")
    return (summary.request_id, time, *names, summary.outcome, size)


def render_timeline(capture: Capture, full: bool = False, width: int = WIDTH) -> Iterator[str]:
    """Yield the lines of a timeline. Without `full`, no line is longer than `width`."""
    entries = build_timeline(capture)
    yield from (line if full else fit(line, width) for line in map(one_line, _summarise(capture)))
    yield from _explain_failure(capture, width)
    yield ""
    yield from _list_in_one_column(entries) if full else _side_by_side(entries, _column_widths(width))


def _summarise(capture: Capture) -> Iterator[str]:
    time = datetime.fromtimestamp(capture.started_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    yield f"{capture.request_id}  {time}  {capture.client or 'unknown client'}"
    if capture.client_request_id:
        yield f"client's id  {capture.client_request_id}"
    request = capture.request
    mode = "stream" if capture.stream else "whole reply"
    model = f"model {capture.requested_model}, {mode}" if capture.requested_model else "no model"
    yield f"request   {request.method} {request.path}, {len(request.body)} bytes, {model}"
    if capture.route:
        requests = count(len(capture.upstream_requests), "upstream request")
        yield f"route     {capture.protocols}, {capture.route}, {requests}"
    if capture.why:
        yield f"why       {capture.why}"
    if capture.upstream_chunks:
        yield f"stream    {capture.upstream_bytes} bytes in {count(capture.upstream_chunks, 'chunk')} from the upstream"
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


def _list_in_one_column(entries: list[TimelineEntry]) -> Iterator[str]:
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
