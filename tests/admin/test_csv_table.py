"""CSV whose cells are data in every spreadsheet."""

import csv
import io

import pytest

from dragoman.admin.csv_table import format_header, format_rows


def test_records_are_read_back_by_a_csv_reader() -> None:
    names = ("name", "n")
    records: list[dict[str, object]] = [{"name": 'a,"b"\nc', "n": -1, "more": 2}, {"n": None}]
    text = format_header(names) + format_rows(records, names)
    assert list(csv.reader(io.StringIO(text))) == [["name", "n"], ['a,"b"\nc', "-1"], ["", ""]]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_no_text_starts_a_formula(start: str) -> None:
    [[cell]] = csv.reader(io.StringIO(format_rows([{"name": f"{start}cmd|' /C calc'!A0"}], ("name",)), newline=""))
    assert cell.startswith("'")
