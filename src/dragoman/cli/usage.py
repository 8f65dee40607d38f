"""Flags come in; what was used goes out: tables and charts by day, model, key, client or provider."""

import asyncio
import logging
import sys
from datetime import datetime
from typing import get_args

import click

from dragoman.cli.screen import remark, show_json
from dragoman.cli.settings import config_option, json_option, read_settings
from dragoman.http.usage import ROWS, UsageReport
from dragoman.store.usage_rows import By, Span

GROUPS = ("day", *(by for by in get_args(By) if by != "all"))


@click.command("usage")
@click.option("--by", type=click.Choice(GROUPS), default="day", show_default=True, help="What to add up by.")
@click.option("--since", metavar="WHEN", default="7d", show_default=True, help='24h, 7d, 4w, a day, or "all".')
@click.option("--until", metavar="DAY", help="The last day (today).")
@click.option("--rows", "each", is_flag=True, help="Every request by itself.")
@click.option("--plans", is_flag=True, help="Instead: how much of each account's plan is used.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--key", metavar="KEY", help="The client key; $DRAGOMAN_API_KEY is the better place.")
@config_option
@json_option
def command(
    by: str,
    since: str,
    until: str | None,
    each: bool,
    plans: bool,
    as_csv: bool,
    key: str | None,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Show what was used: requests, tokens and cost."""
    from dragoman.cli.accounting.source import used
    from dragoman.cli.accounting.span import span_of
    from dragoman.cli.gateway import known_key
    from dragoman.cli.logs import Remark, log_to_stderr

    if as_csv and (as_json or plans):
        raise click.UsageError("--csv goes with neither --json nor --plans.")
    log_to_stderr(Remark(), logging.ERROR)
    config = read_settings(config_file)
    if plans:
        from dragoman.cli.accounting.plans import show_plans

        sys.exit(asyncio.run(show_plans(config, as_json)))
    span = span_of(since, until, datetime.now())
    form = "json" if as_json else "csv" if as_csv else "table"
    group = ROWS if each else "all" if by == "day" else by
    told = asyncio.run(used(config, known_key(config, key), span, group))
    if each:
        from dragoman.cli.accounting.listing import show_rows

        show_rows(told.rows, form)
    else:
        _show(told, by, span, form)


def _show(told: UsageReport, by: str, span: Span, form: str) -> None:
    from dragoman.admin.usage_totals import as_json, totals_of
    from dragoman.cli.accounting.listing import show_csv
    from dragoman.cli.accounting.page import page
    from dragoman.cli.accounting.span import title

    totals = totals_of(told.sums, by, told.names)
    if form == "json":
        show_json(as_json(totals, by, span))
    elif form == "csv":
        show_csv([total.as_row(by) for total in totals], by)
    elif totals:
        click.echo("\n".join(page(totals, by, title(span))))
    else:
        remark("No requests in this time. `dragoman usage --since all` shows everything.")
