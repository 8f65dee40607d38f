"""`dragoman audit`: show who changed what, and check that the log is intact."""

import sys
import time
from datetime import datetime

import click
import msgspec

from dragoman.cli.durations import parse_duration
from dragoman.cli.screen import fit, print_note, remove_control, show_json, show_table
from dragoman.cli.settings import CommonOptions, common_options
from dragoman.operate.audit import AUDIT, AuditEntry
from dragoman.store.audit import AuditFilter

HEADINGS = ("TIME", "WHO", "FROM", "WHAT", "ON", "DETAIL")
MAX_DETAIL = 60


@click.group("audit", invoke_without_command=True)
@click.option(
    "--since", metavar="TIME", callback=parse_duration, help="How far back, such as 24h or 7d. [default: all]"
)
@click.option(
    "--actor", default="", metavar="ID", help="Only changes by this key; local: by commands on the store itself."
)
@click.option("--action", default="", metavar="ACTION", help="Only keys, keys.create, limits, teams, config and so on.")
@click.option("--subject", default="", metavar="TEXT", help="Only changes of this subject.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many, the newest first."
)
@common_options
@click.pass_context
def command(
    context: click.Context,
    since: int | None,
    actor: str,
    action: str,
    subject: str,
    limit: int,
    options: CommonOptions,
) -> None:
    """Show who changed what, the newest first."""
    if context.invoked_subcommand is not None:
        return
    since_ms = 0 if since is None else int((time.time() - since) * 1000)
    fits = AuditFilter(since_ms, actor, action, subject)
    found = options.use(AUDIT, lambda audit: audit.list(fits, limit))
    if options.as_json:
        show_json(found)
    elif found:
        show_table(HEADINGS, [_format_row(entry) for entry in found])
    else:
        print_note("No changes in this period.")


@command.command("verify")
@common_options
def verify(options: CommonOptions) -> None:
    """Check that no row was changed or removed; the exit code is 1 if one was."""
    check = options.use(AUDIT, lambda audit: audit.verify())
    if options.as_json:
        show_json(check)
    elif check.broken is None:
        click.echo(f"The audit log is intact: {check.rows} rows.")
    else:
        click.echo(f"The audit log is broken: row {check.broken} was changed or removed.")
    sys.exit(0 if check.broken is None else 1)


def _format_row(entry: AuditEntry) -> tuple[str, ...]:
    moment = datetime.fromisoformat(entry.time).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    detail = "" if entry.detail is None else msgspec.json.encode(entry.detail).decode()
    texts = (entry.actor, entry.address or "–", entry.action, entry.subject, fit(detail, MAX_DETAIL) or "–")
    return (moment, *map(remove_control, texts))
