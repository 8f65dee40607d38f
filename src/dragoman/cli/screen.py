"""Values come in; a table, JSON or plain lines for the terminal go out."""

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
MORE = "…"  # stands for what is left out

_BREAKS = re.compile(r"\s*[\r\n\t]+\s*")

# A model's words must not steer the terminal.
HARMLESS = dict.fromkeys([code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"])


def show_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def show_table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> None:
    """`numbers`: the headings of columns that stand on the right."""
    lines = [headings, *(list(map(flat, row)) for row in rows)]
    widths = [max(columns(line[place]) for line in lines) for place in range(len(headings))]
    for line in lines:
        cells = [
            cell.rjust(width) if heading in numbers else padded(cell, width)
            for heading, cell, width in zip(headings, line, widths, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def remark(text: str) -> None:
    """Something the reader should know that is not the result."""
    click.echo(text, err=True)


def has_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def columns(text: str) -> int:
    """How wide a terminal shows it: Chinese and emoji take two columns each, marks on a letter none."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def padded(text: str, width: int) -> str:
    return text + " " * (width - columns(text))


def shortened(text: str, width: int) -> str:
    if columns(text) <= width:
        return text
    taken = accumulate(map(_columns, text))
    return text[: sum(1 for end in taken if end < width)] + MORE


def harmless(text: str) -> str:
    return text.translate(HARMLESS)


def flat(text: str) -> str:
    """The same in one line, and harmless."""
    return harmless(_BREAKS.sub(" ", text))
