"""The name of a capture comes in; what happened in that exchange goes out, as a table, a timeline or plain files."""

import shutil
from datetime import datetime
from pathlib import Path

import click

from dragoman.cli.capturing.choosing import chosen, kept_captures
from dragoman.cli.screen import remark, show_json, show_table
from dragoman.cli.settings import config_option, json_option
from dragoman.flow.capture.directory import Kept

HEADINGS = ("ID", "TIME", "CLIENT", "PROTOCOLS", "ROUTE", "OUTCOME", "SIZE")
NARROWEST = 80  # of a terminal that a timeline is fitted to
OFF = "Nothing is captured unless debug.capture says so: `errors` keeps what went wrong, `all` keeps everything."


@click.group("capture")
def command() -> None:
    """List, show and export captured exchanges.

    An exchange is named by `last`, by its request id, or by the beginning or the end of that.
    """


@command.command("list")
@config_option
@json_option
def show_list(config_file: str | None, as_json: bool) -> None:
    """List the captures, the newest last."""
    kept = kept_captures(config_file).listed()
    if as_json:
        show_json([{**_fields(one), "file": str(one.file), "size": one.size} for one in kept])
    elif kept:
        show_table(HEADINGS, [_row(one) for one in kept])
    else:
        remark(f"There are no captures. {OFF}")


@command.command("show")
@click.argument("which", metavar="ID|FILE")
@click.option("--full", is_flag=True, help="Shorten nothing.")
@config_option
@json_option
def show_one(which: str, full: bool, config_file: str | None, as_json: bool) -> None:
    """Show an exchange as a timeline: what came from upstream, what it meant, what was sent."""
    from dragoman.cli.capturing.timeline import WIDTH, told
    from dragoman.flow.capture.file_format import to_json

    capture = chosen(which, config_file)
    if as_json:
        click.echo(to_json(capture), nl=False)
        return
    width = shutil.get_terminal_size((WIDTH, 0)).columns
    for line in told(capture, full, max(width, NARROWEST)):
        click.echo(line)


@command.command("export")
@click.argument("which", metavar="ID|FILE")
@click.argument("directory", required=False, type=click.Path(file_okay=False, path_type=Path))
@config_option
def export_one(which: str, directory: Path | None, config_file: str | None) -> None:
    """Write an exchange's bodies and streams into DIRECTORY, as plain files."""
    from dragoman.admin.captures import export

    capture = chosen(which, config_file)
    for file in export(capture, directory or Path(f"capture-{capture.request_id}")):
        click.echo(str(file))


def _row(kept: Kept) -> tuple[str, ...]:
    summary = kept.summary
    moment = datetime.fromisoformat(summary.time).astimezone().strftime("%m-%d %H:%M:%S")
    size = f"{kept.size / 1024:.1f} kB"
    return (
        summary.request_id,
        moment,
        summary.client or "–",
        summary.protocols,
        summary.route or "–",
        summary.outcome,
        size,
    )


def _fields(kept: Kept) -> dict[str, object]:
    import msgspec

    return msgspec.structs.asdict(kept.summary)
