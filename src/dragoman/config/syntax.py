"""Syntax errors of a TOML file, with line, column and advice for the usual mistakes."""

import re
import tomllib

from dragoman.config.problems import Problem

PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
BREAK_BEFORE = re.compile(r"[\s=\[{,]")  # what cannot be in a value without quotes
BARE_AFTER = re.compile(r"[^\s,\]}#]*")
NOT_IN_KEY = re.compile(r"[^\w.-]")
NUMBER = re.compile(r"[+-]?\d*\.?\d+[a-zA-Z]{0,2}")  # also with a unit, as in 10s: quotes would not help
NO_TEXT = re.compile(r"[^A-Za-z/~*$:.]*")
IN_VALUE = ("Expected newline", "Unclosed")  # a value that begins like a number or `true` ends in the middle


def describe_syntax_error(file: str, text: str, error: tomllib.TOMLDecodeError) -> Problem:
    """Return the problem of a text that is not valid TOML."""
    place = PLACE.search(str(error))
    message = PLACE.sub("", str(error))
    if place is None or place[1] is None:
        last = text.count("\n") + (not text.endswith("\n"))
        return Problem(file, last, "", f"not valid TOML: {message}")
    line, column = int(place[1]), int(place[2])
    advice = _advise(text.split("\n")[line - 1], column - 1, message)
    return Problem(file, line, "", f"not valid TOML at column {column}: {advice or message}")


def _advise(line: str, at: int, message: str) -> str | None:
    """Return what to write instead of a string without quotes; None if that is not the mistake.

    The value itself is not shown: it may be a secret.
    """
    before = BREAK_BEFORE.split(line[:at])[-1]
    is_value = message == "Invalid value" or (before and message.startswith(IN_VALUE))
    if not is_value:
        return None
    after = BARE_AFTER.match(line, at)
    value = before + (after[0] if after else "")
    assigned = line[: at - len(before)].rstrip()
    key = NOT_IN_KEY.split(assigned[:-1].rstrip())[-1] if assigned.endswith("=") else ""
    name = f"{key} = " if key else ""
    if value.lower() in ("true", "false"):
        return f"true and false are written in lower case: {name}{value.lower()}"
    if value[:1] in ("“", "”", "„", "‘", "’"):
        return f'a string must be in straight quotes: {name}"…"'
    if '"' in value or "'" in value or NO_TEXT.fullmatch(value) or NUMBER.fullmatch(value):
        return None
    return f'a string must be in quotes: {name}"…"'
