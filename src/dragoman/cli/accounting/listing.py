"""Usage rows or totals come in; one line for each goes out, as a table, as CSV or as JSON."""

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import datetime

import click

from dragoman.admin.usage_totals import COUNTS
from dragoman.cli.screen import harmless, remark, shortened, show_json, show_table
from dragoman.store.usage_rows import RECORD_NAMES, UsageRow, as_record

HEADINGS = ("TIME", "CLIENT", "ROUTE", "OUTCOME", "INPUT", "OUTPUT", "COST", "FIRST", "TOOK")
NUMBERS = HEADINGS[4:]
NOTHING = "–"


def show_rows(rows: Sequence[UsageRow], form: str) -> None:
    if form == "json":
        show_json([as_record(row) for row in rows])
    elif form == "csv":
        _write([as_record(row) for row in rows], RECORD_NAMES)
    elif rows:
        show_table(HEADINGS, [_line(row) for row in rows], NUMBERS)
    else:
        remark("No requests in this time.")


def show_csv(totals: Sequence[Mapping[str, object]], by: str) -> None:
    head = ("key", "name") if by == "key" else (by,)
    _write(totals, (*head, *COUNTS, "cost_usd"))


def _write(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> None:
    page = io.StringIO()
    writer = csv.DictWriter(page, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _plain(value) for name, value in row.items()})
    click.echo(page.getvalue(), nl=False)


def _plain(value: object) -> object:
    """A spreadsheet takes what begins like a formula for one."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value


def _line(row: UsageRow) -> tuple[str, ...]:
    return (
        datetime.fromtimestamp(row.time_ms / 1000).strftime("%m-%d %H:%M:%S"),
        shortened(harmless(row.client), 16) or NOTHING,
        shortened(harmless(row.route or row.requested_model), 32) or NOTHING,
        row.outcome,
        NOTHING if row.input_tokens is None else f"{row.input_tokens:,}",
        NOTHING if row.output_tokens is None else f"{row.output_tokens:,}",
        NOTHING if row.cost_nano_usd is None else f"${row.cost_nano_usd / 10**9:.4f}",
        NOTHING if row.ttft_ms is None else f"{row.ttft_ms:,}ms",
        f"{row.duration_ms:,}ms",
    )
