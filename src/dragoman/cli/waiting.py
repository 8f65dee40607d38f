"""Seconds that are left come in; a terminal is told that we wait for a person, and for how long."""

import sys

import click


class Waiting:
    """Says that it waits: once where nobody watches, counting down on a terminal."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._said = False

    def __enter__(self) -> "Waiting":
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and self._said:
            click.echo("\r\x1b[K", nl=False, err=True)

    def tick(self, left_s: float) -> None:
        if self._live:
            words = f"Waiting for you to confirm it in the browser, {left_s:.0f} s left "
            click.echo(f"\r\x1b[K{words}", nl=False, err=True)
        elif not self._said:
            click.echo("Waiting for your confirmation in the browser.", err=True)
        self._said = True
