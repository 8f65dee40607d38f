"""docs/usage.md shows the remarks as `dragoman usage` prints them, and names every column of a row."""

import re
from pathlib import Path

from dragoman.cli.usage import render_notes
from dragoman.operate.usage.reports import Total
from dragoman.store.usage_rows import RECORD_NAMES

PAGE = (Path(__file__).parents[3] / "docs" / "usage.md").read_text()
COUNTED = 3311 - 73
WEEK = Total(
    "total",
    requests=3311,
    failed=59,
    client_gone=33,
    counted=COUNTED,
    priced=COUNTED - 570,
    estimated=130,
    estimated_tokens=6_218_909,
    derived=547,
    input_tokens=145_028_869,
    output_tokens=6_446_808,
)


def test_the_page_shows_the_remarks_as_they_are_printed() -> None:
    assert "\n".join(render_notes(WEEK)) in PAGE


def test_the_page_names_every_column_of_a_row() -> None:
    table = PAGE.partition("## A row")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", table))
    assert set(RECORD_NAMES) <= named
