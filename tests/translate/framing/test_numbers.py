"""Numbers that others write."""

import pytest

from dragoman.translate.framing.numbers import MOST, parse_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        ("0" * 5000 + "7", 7),
        (str(MOST), MOST),
        (str(MOST + 1), MOST),
        ("9" * 5000, MOST),
        *((text, None) for text in ("", "-1", "+1", "1.0", " 1", "1_0", "\u00b2", "\u0663", "x")),
    ],
)
def test_only_ascii_digits_are_a_number_and_very_many_of_them_a_large_one(text: str, number: int | None) -> None:
    assert parse_number(text) == number


def test_a_number_is_at_most_what_its_reader_takes() -> None:
    assert (parse_number("1001", 1000), parse_number("999", 1000)) == (1000, 999)
