"""Numbers come in; bars and lines of columns, drawn with characters, go out."""

from collections.abc import Sequence

COLUMNS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(part: int, most: int, width: int) -> str:
    """A bar in eighths of a character; whatever is more than nothing is seen."""
    eighths = max(round(8 * width * part / most), 1) if part else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + EIGHTHS[rest].strip()


def sparks(values: Sequence[int]) -> str:
    """One column for each value, the greatest a full one; nothing is a gap."""
    most = max(values, default=0)
    return "".join(COLUMNS[(8 * value - 1) // most] if value else " " for value in values)
