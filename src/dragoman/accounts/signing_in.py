"""What a login obtained comes in; a credential file of our own goes out."""

from pathlib import Path

from dragoman.accounts import atomic
from dragoman.accounts.json_table import Table, encoded


class LoginFailed(Exception):
    """Nobody was signed in; the message says why and what to do."""


def store(path: Path, table: Table) -> None:
    """Whatever was there is replaced: the person has just asked for it."""
    while not atomic.replace(path, encoded(table), atomic.content_of(path)):
        pass
