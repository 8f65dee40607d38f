"""Resolve JSON's escapes of ASCII characters: `\\u0073` is an `s`.

Hardly any writer of JSON uses them, but whoever does hides a word from a search without meaning to. The backslashes of
JSON inside a JSON string are doubled; any number of them is understood.
"""

import re
from bisect import bisect_left
from collections.abc import Callable

MARK = "\\u00"  # a text without this holds no such escape
MARK_BYTES = MARK.encode()

_ESCAPE = re.compile(r"\\+(?:u00([2-6][0-9A-Fa-f]|7[0-9A-Ea-e])|([/\"]))")


def unescape(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def unescape_with_places(text: str) -> tuple[str, Callable[[int], int]]:
    """Return the text without escapes, and a function that maps a place in it to the place in the original."""
    places: list[int] = []  # of each escape, in the text without escapes
    longer: list[int] = []  # by how much the original is longer, up to and including that escape
    extra = 0
    for match in _ESCAPE.finditer(text):
        places.append(match.start() - extra)
        extra += match.end() - match.start() - 1
        longer.append(extra)

    def place(at: int) -> int:
        before = bisect_left(places, at)
        return at + (longer[before - 1] if before else 0)

    return unescape(text), place


def _character(match: re.Match[str]) -> str:
    return match[2] or chr(int(match[1], 16))
