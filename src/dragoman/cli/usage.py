"""`dragoman usage`: show requests, tokens and cost by day, model, key, client, provider, user, team and so on."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, time

import click
from msgspec import Struct

from dragoman.cli.logs import NoteFormatter, log_to_stderr
from dragoman.cli.screen import count, fit, pad, print_note, remove_control, show_json, show_table
from dragoman.cli.settings import CommonOptions, common_options, key_option
from dragoman.config.settings import Config
from dragoman.operate import AdminError, InvalidArgument
from dragoman.operate.gateway.running_gateway import choose_key, find_gateway, require_key
from dragoman.operate.usage.reports import (
    COUNTS,
    GROUPS,
    ROWS,
    LoadedUsage,
    Total,
    UsageQuestion,
    UsageReport,
    add_totals,
    as_record,
    fill_days,
    find_group_problem,
    format_csv_header,
    format_csv_rows,
    group_totals,
    load_usage,
    parse_span,
    read_quotas,
)
from dragoman.store.usage_rows import RECORD_NAMES, UsageRow, UsageSpan
from dragoman.store.usage_rows import make_record as row_as_record
from dragoman.upstreams.account_state import Quota

OFFERED = ("day", *(by for by in GROUPS if by != "all"), "tag:NAME")
ROW_HEADINGS = ("TIME", "CLIENT", "ROUTE", "OUTCOME", "INPUT", "OUTPUT", "COST", "FIRST", "TOOK")
PLAN_HEADINGS = ("PROVIDER", "PLAN", "WHAT", "USED", "LIMIT", "RESET ON")
PLAN_BAR_WIDTH = 20
NONE = "–"
WIDTH = 100
MAX_BAR_WIDTH = 24
MIN_BAR_WIDTH = 6
MIN_NAME_WIDTH = 12
GAP = "  "
SPARKS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉"


def _check_group(context: click.Context, parameter: click.Parameter, by: str) -> str:
    problem = "by" if by == "all" else find_group_problem(by, ("day",))
    if problem is not None:
        raise click.BadParameter(f"expected one of {', '.join(OFFERED)}, got {by[:80]!r}")
    return by


@click.command("usage")
@click.option(
    "--by",
    metavar=f"[{'|'.join(OFFERED)}]",
    callback=_check_group,
    default="day",
    show_default=True,
    help="What to group by.",
)
@click.option(
    "--since",
    metavar="WHEN",
    default="7d",
    show_default=True,
    help='How far back: 24h, 7d, 4w, a day (2026-11-15), or "all".',
)
@click.option("--until", metavar="DAY", help="The last day. [default: today]")
@click.option("--rows", "each", is_flag=True, help="Show every request by itself.")
@click.option("--plans", is_flag=True, help="Show how much of each account's plan is used instead.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@key_option
@common_options
def command(
    by: str,
    since: str,
    until: str | None,
    each: bool,
    plans: bool,
    as_csv: bool,
    key: str | None,
    options: CommonOptions,
) -> None:
    """Show what was used: requests, tokens and cost."""
    if as_csv and (options.as_json or plans):
        raise click.UsageError("--csv cannot be used with --json or --plans.")
    if options.url is not None and plans:
        raise click.UsageError("--url cannot be used with --plans, which asks the providers.")
    log_to_stderr(NoteFormatter(), logging.ERROR)
    config = options.config
    if plans:
        sys.exit(_show_plans(config, options.as_json))
    try:
        span = parse_span(since, until, datetime.now())
    except InvalidArgument as error:
        raise click.UsageError(str(error)) from None
    form = "json" if options.as_json else "csv" if as_csv else "table"
    group = ROWS if each else "all" if by == "day" else by
    loaded = asyncio.run(_load(config, choose_key(config, key), UsageQuestion(span, group), options.url))
    if loaded.gateway_problem:
        print_note(f"The store was read instead of the gateway: {loaded.gateway_problem}")
    if not loaded.report.whole:
        print_note("This is what your key used; the gateway does not show it what other keys used.")
    if each:
        _show_rows(loaded.report.rows, form)
    else:
        _show_totals(loaded.report, by, span, form)


async def _load(config: Config, key: str | None, question: UsageQuestion, url: str | None) -> LoadedUsage:
    root = await find_gateway(config, os.environ, url)
    loaded = await load_usage(config, key if url is None else require_key(key, url), question, root)
    if url is not None and loaded.gateway_problem:  # the store here may be another gateway's
        raise AdminError(loaded.gateway_problem)
    return loaded


def _show_totals(report: UsageReport, by: str, span: UsageSpan, form: str) -> None:
    totals = group_totals(report.sums, by, report.names)
    if form == "json":
        show_json(as_record(totals, by, span))
    elif form == "csv":
        names = ("key", "name") if by == "key" else (by,)
        _show_csv([total.as_row(by) for total in totals], (*names, *COUNTS, "cost_usd"))
    elif totals:
        click.echo("\n".join(render_page(totals, by, span)))
    else:
        print_note("No requests in this time. `dragoman usage --since all` shows all requests.")


def _show_rows(rows: Sequence[UsageRow], form: str) -> None:
    if form == "json":
        show_json([row_as_record(row) for row in rows])
    elif form == "csv":
        _show_csv([row_as_record(row) for row in rows], RECORD_NAMES)
    elif rows:
        show_table(ROW_HEADINGS, [_format_row(row) for row in rows], ROW_HEADINGS[4:])
    else:
        print_note("No requests in this time.")


def _show_csv(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> None:
    click.echo(format_csv_header(names) + format_csv_rows(rows, names), nl=False)


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
        print_note(problem)
    if not report.quotas and not report.problems:
        print_note("No configured provider reports how much of its plan is used.")
    return 1 if report.problems else 0


def _format_quota(quota: Quota) -> tuple[str, ...]:
    return (quota.provider, quota.plan, quota.what, f"{quota.used:g}", _format_limit(quota), quota.resets_on or NONE)


def _format_limit(quota: Quota) -> str:
    """Return the limit with a bar that shows how much of it is used."""
    if not quota.limit:
        return NONE
    filled = min(PLAN_BAR_WIDTH, round(PLAN_BAR_WIDTH * quota.used / quota.limit))
    return f"{quota.limit:g} [{'#' * filled}{'.' * (PLAN_BAR_WIDTH - filled)}]"


class Column(Struct, frozen=True):
    heading: str
    format: Callable[[Total, Total], str]  # of one line and of the sum of all lines
    is_shown: Callable[[Total], object]  # of the sum: a column of zeros is left out


COLUMNS = (
    Column("REQUESTS", lambda total, whole: f"{total.requests:,}", lambda whole: True),
    Column("FAILED", lambda total, whole: f"{total.failed:,}", lambda whole: whole.failed),
    Column("INPUT", lambda total, whole: f"{total.input_tokens:,}", lambda whole: True),
    Column("OUTPUT", lambda total, whole: f"{total.output_tokens:,}", lambda whole: True),
    Column(
        "CREDITS", lambda total, whole: f"{total.credits:,.2f}" if total.credits else "–", lambda whole: whole.credits
    ),
    Column(
        "CACHE",
        lambda total, whole: NONE if total.cache_share is None else f"{100 * total.cache_share:.0f}%",
        lambda whole: whole.cache_possible_tokens,
    ),
    Column("SAVED", lambda total, whole: format_saved(total), lambda whole: whole.cache_saved_nano_usd),
    Column("COST", lambda total, whole: format_cost(total, whole), lambda whole: True),
)
LEFT_OUT = (frozenset(("SAVED",)), frozenset(("SAVED", "CACHE")))  # where names would be cut
TOKEN_KINDS: tuple[tuple[str, Callable[[Total], int]], ...] = (
    ("fresh input", lambda whole: whole.fresh_input_tokens),
    ("cache reads", lambda whole: whole.cache_read_tokens),
    ("cache writes", lambda whole: whole.cache_write_tokens),
    ("output", lambda whole: whole.output_tokens - whole.reasoning_tokens),
    ("reasoning", lambda whole: whole.reasoning_tokens),
)


def render_page(totals: Sequence[Total], by: str, span: UsageSpan) -> list[str]:
    whole = add_totals(totals)
    table, kinds = _table(totals, by, whole), _token_kinds(whole)
    return [_title(span), "", *table, "", *kinds, "", *render_notes(whole)]


def render_notes(whole: Total) -> list[str]:
    """Return how many requests there were, and which of the numbers are incomplete or estimated."""
    requests = count(whole.requests, "request")
    lines = [f"{requests}, {whole.failed:,} failed, {whole.client_gone:,} cancelled by the client."]
    if whole.counted < whole.requests:
        lines.append(f"{count(whole.requests - whole.counted, 'request')} without token counts.")
    if whole.unpriced:
        unpriced = count(whole.unpriced, "request")
        lines.append(f"{unpriced} without a known price (+). [[prices]] in dragoman.toml can set one.")
    if whole.estimated:
        share = 100 * whole.estimated_tokens / max(1, whole.tokens)
        tokens = count(whole.estimated_tokens, "token")
        lines.append(f"{count(whole.estimated, 'request')} with estimated counts: {tokens}, {share:.1f} % of all.")
    if whole.cache_share is not None:
        had = f"{100 * whole.cache_share:.0f} % of what they could have had"
        lines.append(f"Prompt caches had {had}, and saved {format_saved(whole)}.")
    if whole.derived:
        lines.append(f"{count(whole.derived, 'request')} with counts derived from the upstream's context use.")
    return lines


def format_cost(total: Total, whole: Total) -> str:
    """Return the cost in dollars, with a plus where a part of it has no known price."""
    if not total.priced:
        return "–"
    places = 2 if whole.dollars >= 10 else 4
    is_tiny = 0 < total.cost_nano_usd < 10 ** (9 - places)
    text = f"<${10**-places:.{places}f}" if is_tiny else f"${total.dollars:,.{places}f}"
    return text + ("+" if total.unpriced else "")


def format_saved(total: Total) -> str:
    """Return what prompt caches have saved in dollars; less than nothing where they were written and not read."""
    places = 2 if abs(total.saved_dollars) >= 10 else 4
    return f"{'-' if total.cache_saved_nano_usd < 0 else ''}${abs(total.saved_dollars):,.{places}f}"


def draw_bar(part: int, most: int, width: int) -> str:
    """Draw a bar in eighths of a character; anything above zero is visible."""
    eighths = max(round(8 * width * part / most), 1) if part else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + EIGHTHS[rest].strip()


def draw_sparks(values: Sequence[int]) -> str:
    """Draw one column for each value, the greatest a full one; zero is a gap."""
    most = max(values, default=0)
    return "".join(SPARKS[(8 * value - 1) // most] if value else " " for value in values)


def _title(span: UsageSpan) -> str:
    first = datetime.fromtimestamp(span.since_ms / 1000)
    last = datetime.fromtimestamp((span.until_ms - 1) / 1000).date()
    if span.since_ms == 0:
        return f"Usage up to {last}"
    since = str(first.date()) if first.time() == time() else first.strftime("%Y-%m-%d %H:%M")
    return f"Usage on {since}" if since == str(last) else f"Usage from {since} to {last}"


def _table(totals: Sequence[Total], by: str, whole: Total) -> list[str]:
    shown = [*totals, whole] if len(totals) > 1 else totals
    names = [by.upper(), *(remove_control(total.label) for total in shown)]
    longest = max(map(len, names))
    for left_out in (frozenset(), *LEFT_OUT):
        columns = [column for column in COLUMNS if column.is_shown(whole) and column.heading not in left_out]
        cells = [[column.heading for column in columns]]
        cells += [[column.format(total, whole) for column in columns] for total in shown]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        room = WIDTH - sum(len(GAP) + width for width in widths)
        if longest <= room:
            break
    width = min(longest, max(MIN_NAME_WIDTH, room))
    charts = ["", *_charts(totals, by, whole, room - width - len(GAP)), ""]
    return [
        GAP.join([pad(fit(name, width), width), *map(str.rjust, line, widths), chart]).rstrip()
        for name, line, chart in zip(names, cells, charts, strict=False)
    ]


def _charts(totals: Sequence[Total], by: str, whole: Total, room: int) -> list[str]:
    """Draw a bar for each day; for any other group its days, or its share if they are too few or too many."""
    days = [] if by == "day" else fill_days(whole.days)
    if 2 <= len(days) <= room:
        return [draw_sparks([total.days.get(day, 0) for day in days]) for total in totals]
    width = min(MAX_BAR_WIDTH, room)
    if width < MIN_BAR_WIDTH:
        return [""] * len(totals)
    most = max(total.tokens for total in totals)
    return [draw_bar(total.tokens, most, width) for total in totals]


def _token_kinds(whole: Total) -> list[str]:
    counts = [(name, tokens(whole)) for name, tokens in TOKEN_KINDS if tokens(whole)]
    width = max((len(f"{number:,}") for _, number in counts), default=0)
    most = max((number for _, number in counts), default=0)
    return [
        f"{name:<12}{GAP}{number:>{width},}{GAP}{100 * number / max(1, whole.tokens):5.1f} %{GAP}"
        f"{draw_bar(number, most, MAX_BAR_WIDTH)}"
        for name, number in counts
    ]
