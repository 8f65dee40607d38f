"""How many values a JSON text holds, counted without making any of them: what a parser would cost."""

import re

WINDOW = 256 * 1024  # small enough that other threads get their turn between two

_SEPARATORS = (b",", b"[", b"{")
_CONTENT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)  # of a string, from behind its opening quote
_QUOTE, _BACKSLASH = b'"\\'


def exceeds_value_count(json: bytes, most: int) -> bool:
    """Whether the text holds more than `most` values; of a text that is no JSON, some answer."""
    if len(json) <= 2 * most:  # the shortest value and its separator are two bytes
        return False
    starts = range(0, len(json), WINDOW)
    if sum(_count_separators(json[start : start + WINDOW]) for start in starts) < most:
        return False
    return _exceeds_outside_strings(json, most)


def _exceeds_outside_strings(json: bytes, most: int) -> bool:
    values, strings, at = 1, 0, 0
    while values <= most and strings <= 2 * most:  # a value is at most two strings: its key, and itself
        quote = json.find(b'"', at)
        values += _count_separators(json[at:quote] if quote >= 0 else json[at:])
        if quote < 0:
            return values > most
        strings += 1
        at = _end_of_string(json, quote + 1)
    return True


def _end_of_string(json: bytes, at: int) -> int:
    """Where the string ends, its closing quote included, whose content begins at `at`."""
    while at < len(json):
        content = _CONTENT.match(json, at, at + WINDOW)
        assert content is not None  # it may be empty
        at = content.end()
        if at < len(json) and json[at] == _QUOTE:
            return at + 1
        if at < len(json) and json[at] == _BACKSLASH:  # the window ends in the middle of an escape
            at += 2
    return len(json)


def _count_separators(window: bytes) -> int:
    return sum(map(window.count, _SEPARATORS))
