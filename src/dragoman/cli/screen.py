"""Output for the terminal: tables, JSON and notes, without control characters."""

import os
import re
import unicodedata
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import TextIO

import click
import msgspec

DIM = "\x1b[2m"
PLAIN = "\x1b[0m"
ELLIPSIS = "…"

_BREAKS = re.compile(r"\s*[\r\n\t]+\s*")

# Text from models, clients and upstreams must not contain control sequences.
_CONTROL = dict.fromkeys([code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"])


def show_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def show_table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> None:
    """Print a table; `numbers` are the headings of columns that are aligned to the right."""
    lines = [headings, *(list(map(one_line, row)) for row in rows)]
    widths = [max(width_of(line[index]) for line in lines) for index in range(len(headings))]
    for line in lines:
        cells = [
            cell.rjust(width) if heading in numbers else pad(cell, width)
            for heading, cell, width in zip(headings, line, widths, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def print_note(text: str) -> None:
    """Print to stderr what the reader should know and what is not the result."""
    click.echo(text, err=True)


def has_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def count(number: int, noun: str) -> str:
    """Return "1 request", "2 requests"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def width_of(text: str) -> int:
    """Return how many columns a terminal needs: Chinese and emoji take two each, combining marks none."""
    return len(text) if text.isascii() else sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def pad(text: str, width: int) -> str:
    return text + " " * (width - width_of(text))


def fit(text: str, width: int) -> str:
    """Shorten a text to a width, with an ellipsis where something was cut."""
    if width_of(text) <= width:
        return text
    ends = accumulate(map(_character_width, text))
    return text[: sum(1 for end in ends if end < width)] + ELLIPSIS


def remove_control(text: str) -> str:
    """Return a text without control characters, except line breaks and tabs."""
    return text.translate(_CONTROL)


def one_line(text: str) -> str:
    """Return a text as one line without control characters."""
    return remove_control(_BREAKS.sub(" ", text))
