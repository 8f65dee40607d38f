"""`dragoman usage`: show requests, tokens and cost by day, model, key, client or provider."""

import asyncio
import logging
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import get_args

import click

from dragoman.admin.accounting import ROWS, LoadedUsage, UsageReport, load_usage, parse_span, read_quotas
from dragoman.admin.csv_table import format_header, format_rows
from dragoman.admin.errors import InvalidArgument
from dragoman.admin.running_gateway import choose_key
from dragoman.admin.usage_totals import COUNTS, as_record, group_totals
from dragoman.cli.screen import fit, remark, remove_control, show_json, show_table
from dragoman.cli.settings import config_option, json_option, key_option, read_settings
from dragoman.config import Config
from dragoman.providers.account_state import Quota
from dragoman.store.usage_rows import RECORD_NAMES, GroupBy, UsageRow, UsageSpan
from dragoman.store.usage_rows import make_record as row_as_record

GROUPS = ("day", *(by for by in get_args(GroupBy) if by != "all"))
ROW_HEADINGS = ("TIME", "CLIENT", "ROUTE", "OUTCOME", "INPUT", "OUTPUT", "COST", "FIRST", "TOOK")
PLAN_HEADINGS = ("PROVIDER", "PLAN", "WHAT", "USED", "LIMIT", "RESET ON")
PLAN_BAR_WIDTH = 20
NONE = "–"


@click.command("usage")
@click.option("--by", type=click.Choice(GROUPS), default="day", show_default=True, help="What to group by.")
@click.option("--since", metavar="WHEN", default="7d", show_default=True, help='24h, 7d, 4w, a day, or "all".')
@click.option("--until", metavar="DAY", help="The last day. [default: today]")
@click.option("--rows", "each", is_flag=True, help="Show every request by itself.")
@click.option("--plans", is_flag=True, help="Show how much of each account's plan is used instead.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@key_option
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
    from dragoman.cli.logs import RemarkFormatter, log_to_stderr

    if as_csv and (as_json or plans):
        raise click.UsageError("--csv cannot be used with --json or --plans.")
    log_to_stderr(RemarkFormatter(), logging.ERROR)
    config = read_settings(config_file)
    if plans:
        sys.exit(_show_plans(config, as_json))
    try:
        span = parse_span(since, until, datetime.now())
    except InvalidArgument as error:
        raise click.UsageError(str(error)) from None
    form = "json" if as_json else "csv" if as_csv else "table"
    group = ROWS if each else "all" if by == "day" else by
    loaded = asyncio.run(load_usage(config, choose_key(config, key), span, group))
    _explain_source(loaded)
    if each:
        _show_rows(loaded.report.rows, form)
    else:
        _show_totals(loaded.report, by, span, form)


def _explain_source(loaded: LoadedUsage) -> None:
    if loaded.gateway_problem:
        remark(f"The store was read instead of the gateway: {loaded.gateway_problem}")
    if not loaded.report.whole:
        remark("This is what your key used; the gateway does not show it what other keys used.")


def _show_totals(report: UsageReport, by: str, span: UsageSpan, form: str) -> None:
    from dragoman.cli.usage_page import render_page

    totals = group_totals(report.sums, by, report.names)
    if form == "json":
        show_json(as_record(totals, by, span))
    elif form == "csv":
        names = ("key", "name") if by == "key" else (by,)
        _show_csv([total.as_row(by) for total in totals], (*names, *COUNTS, "cost_usd"))
    elif totals:
        click.echo("\n".join(render_page(totals, by, span)))
    else:
        remark("No requests in this time. `dragoman usage --since all` shows all requests.")


def _show_rows(rows: Sequence[UsageRow], form: str) -> None:
    if form == "json":
        show_json([row_as_record(row) for row in rows])
    elif form == "csv":
        _show_csv([row_as_record(row) for row in rows], RECORD_NAMES)
    elif rows:
        show_table(ROW_HEADINGS, [_format_row(row) for row in rows], ROW_HEADINGS[4:])
    else:
        remark("No requests in this time.")


def _show_csv(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> None:
    click.echo(format_header(names) + format_rows(rows, names), nl=False)


def _format_row(row: UsageRow) -> tuple[str, ...]:
    return (
        datetime.fromtimestamp(row.time_ms / 1000).strftime("%m-%d %H:%M:%S"),
        fit(remove_control(row.client), 16) or NONE,
        fit(remove_control(row.route or row.requested_model), 32) or NONE,
        row.outcome,
        NONE if row.input_tokens is None else f"{row.input_tokens:,}",
        NONE if row.output_tokens is None else f"{row.output_tokens:,}",
        NONE if row.cost_nano_usd is None else f"${row.cost_nano_usd / 10**9:.4f}",
        NONE if row.ttft_ms is None else f"{row.ttft_ms:,}ms",
        f"{row.duration_ms:,}ms",
    )


def _show_plans(config: Config, as_json: bool) -> int:
    """Show the plans and return the exit code: 1 where an account could not be read."""
    report = asyncio.run(read_quotas(config))
    if as_json:
        show_json(report.quotas)
    elif report.quotas:
        show_table(PLAN_HEADINGS, [_format_quota(quota) for quota in report.quotas])
    for problem in report.problems:
        remark(problem)
    if not report.quotas and not report.problems:
        remark("No configured provider reports how much of its plan is used.")
    return 1 if report.problems else 0


def _format_quota(quota: Quota) -> tuple[str, ...]:
    return (quota.provider, quota.plan, quota.what, f"{quota.used:g}", _format_limit(quota), quota.resets_on or NONE)


def _format_limit(quota: Quota) -> str:
    """Return the limit with a bar that shows how much of it is used."""
    if not quota.limit:
        return NONE
    filled = min(PLAN_BAR_WIDTH, round(PLAN_BAR_WIDTH * quota.used / quota.limit))
    return f"{quota.limit:g} [{'#' * filled}{'.' * (PLAN_BAR_WIDTH - filled)}]"
