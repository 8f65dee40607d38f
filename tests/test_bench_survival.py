"""`make survive` in small: a real gateway process keeps its memory and its pace, and the table is written."""

from pathlib import Path

import pytest
from bench.survival.__main__ import Result, measure, write_table
from bench.survival.cases import Case, send_failing

ROOT = Path(__file__).parents[1]


@pytest.mark.rest
def test_failed_requests_leave_the_memory_of_the_process_flat() -> None:
    result = measure(Case("100 failed requests of 1 MB", lambda: send_failing(100, 1_000_000)), ROOT / "src")
    assert result.answers == "100 x 500"
    assert result.kept_mb < 48


def test_the_table_stands_between_the_marks_of_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Before.\n<!-- survival: begin -->\nold\n<!-- survival: end -->\nAfter.\n")
    case = Case("a case", lambda: send_failing(1, 1), most_kept_mb=10.0)
    row = Result("1 x 500", 11.0, 20.0, 0.01, 0.02, 1.0).row(case, "here")
    write_table(page, [row])
    assert page.read_text() == f"Before.\n<!-- survival: begin -->\n{row}\n<!-- survival: end -->\nAfter.\n"
    assert row == "| a case | here | 1 x 500 | 11 | 20 | 10 | 20 | 1.0 | no |"
