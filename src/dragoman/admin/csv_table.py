"""Write records as CSV whose cells a spreadsheet does not run as formulas."""

import io
from collections.abc import Iterable, Mapping, Sequence

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def format_header(names: Sequence[str]) -> str:
    return _format([names])


def format_rows(records: Iterable[Mapping[str, object]], names: Sequence[str]) -> str:
    return _format([escape_formula(record.get(name)) for name in names] for record in records)


def escape_formula(value: object) -> object:
    """Quote what a spreadsheet would run as a formula. A carriage return, which would end the row, becomes a space."""
    if not isinstance(value, str):
        return value
    text = value.replace("\r", " ")
    return f"'{text}" if value.startswith(FORMULA_STARTS) else text


def _format(rows: Iterable[Sequence[object]]) -> str:
    import csv

    page = io.StringIO()
    csv.writer(page, lineterminator="\n").writerows(rows)
    return page.getvalue()
