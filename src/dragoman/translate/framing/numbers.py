"""Whole numbers as others write them: int() takes the digits of every script, and fails beyond 4,300 of them."""

MAX_DIGITS = 19
MOST = 2**63 - 1


def parse_number(text: str, most: int = MOST) -> int | None:
    """Return a number that stands in ASCII digits, at most `most`; None for any other text."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    return min(int(digits), most) if len(digits) <= MAX_DIGITS else most
