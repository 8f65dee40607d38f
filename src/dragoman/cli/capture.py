"""`dragoman capture`: list, show and export captured exchanges."""

import shutil
from datetime import datetime
from pathlib import Path

import click
import msgspec

from dragoman.admin.captures import export_capture, find_capture, list_captures, read_capture
from dragoman.cli.completing import complete_captures
from dragoman.cli.screen import remark, show_json, show_table
from dragoman.cli.settings import config_option, json_option, read_settings
from dragoman.flow.capture.files import CaptureFile
from dragoman.flow.capture.format import Capture

HEADINGS = ("ID", "TIME", "CLIENT", "PROTOCOLS", "ROUTE", "OUTCOME", "SIZE")
MIN_WIDTH = 80
HOW_TO_CAPTURE = "Set debug.capture to `errors` to keep failed exchanges, or to `all` to keep every one."


@click.group("capture")
def command() -> None:
    """List, show and export captured exchanges.

    ID is a request id, its beginning or its end, or `last`.
    """


@command.command("list")
@config_option
@json_option
def show_list(config_file: str | None, as_json: bool) -> None:
    """List the captures, the newest last."""
    captures = list_captures(read_settings(config_file).debug)
    if as_json:
        show_json([_fields(kept) for kept in captures])
    elif captures:
        show_table(HEADINGS, [_format_row(kept) for kept in captures])
    else:
        remark(f"There are no captures. {HOW_TO_CAPTURE}")


@command.command("show", short_help="Show an exchange as a timeline.")
@click.argument("which", metavar="ID|FILE", shell_complete=complete_captures)
@click.option("--full", is_flag=True, help="Show everything in full.")
@config_option
@json_option
def show_one(which: str, full: bool, config_file: str | None, as_json: bool) -> None:
    """Show an exchange as a timeline: upstream frames, hub events, and what the client received."""
    from dragoman.cli.timeline import WIDTH, render_timeline
    from dragoman.flow.capture.files import to_json

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


def _fields(kept: CaptureFile) -> dict[str, object]:
    return {**msgspec.structs.asdict(kept.summary), "file": str(kept.file), "size": kept.size}
