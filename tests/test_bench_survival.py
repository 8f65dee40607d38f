"""`make survive` in small: a real gateway process keeps its memory and its pace, and the table is written."""

from collections.abc import Callable
from pathlib import Path

import pytest
from bench.survival.__main__ import Result, measure, write_table
from bench.survival.cases import Case, Run, send_failing, send_mixed, send_parked, send_stored

ROOT = Path(__file__).parents[1]


@pytest.mark.rest
def test_failed_requests_leave_the_memory_of_the_process_flat() -> None:
    result = measure(Case("100 failed requests of 1 MB", lambda: send_failing(100, 1_000_000)), ROOT / "src")
    assert result.answers == "100 x 500"
    assert result.kept_mb < 48


@pytest.mark.rest
@pytest.mark.parametrize(
    ("prepare", "answers", "most_kept_mb"),
    [
        pytest.param(lambda: send_parked("ok", 100, 1_000_000, stream=False), "100 x 200", 48, id="resumable"),
        pytest.param(lambda: send_parked("cut", 100, 1_000_000, stream=True), "100 x 200", 48, id="resumable, cut"),
        pytest.param(lambda: send_parked("fail", 100, 1_000_000, stream=False), "100 x 500", 48, id="keyed, failed"),
        pytest.param(lambda: send_parked("megabyte", 400, 10, stream=True), "400 x 200", 176, id="128 MB are kept"),
        pytest.param(lambda: send_stored(60, 2_000_000), "60 x 200", 48, id="stored"),
        pytest.param(lambda: send_mixed(100, 1_000, 1_000_000), "flat", 64, id="mixed"),
    ],
)
def test_ended_requests_leave_the_memory_of_the_process_flat(
    prepare: Callable[[], Run], answers: str, most_kept_mb: float
) -> None:
    result = measure(Case("a case", prepare), ROOT / "src")
    assert result.answers.startswith(answers)
    assert result.kept_mb < most_kept_mb


def test_the_table_stands_between_the_marks_of_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Before.\n<!-- survival: begin -->\nold\n<!-- survival: end -->\nAfter.\n")
    case = Case("a case", lambda: send_failing(1, 1), most_kept_mb=10.0)
    row = Result("1 x 500", 11.0, 20.0, 0.01, 0.02, 1.0).row(case, "here")
    write_table(page, [row])
    assert page.read_text() == f"Before.\n<!-- survival: begin -->\n{row}\n<!-- survival: end -->\nAfter.\n"
    assert row == "| a case | here | 1 x 500 | 11 | 20 | 10 | 20 | 1.0 | no |"
