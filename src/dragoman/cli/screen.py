"""Values come in; a table, JSON or plain lines for the terminal go out."""

import os
from collections.abc import Sequence
from typing import TextIO

import click
import msgspec

DIM = "\x1b[2m"
PLAIN = "\x1b[0m"
MORE = "…"  # stands for what is left out

# A model's words must not steer the terminal.
HARMLESS = dict.fromkeys([code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"])


def show_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def show_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(line[column]) for line in (headings, *rows)) for column in range(len(headings))]
    for line in (headings, *rows):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def remark(text: str) -> None:
    """Something the reader should know that is not the result."""
    click.echo(text, err=True)


def has_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + MORE


def harmless(text: str) -> str:
    return text.translate(HARMLESS)
