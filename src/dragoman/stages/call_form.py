"""What every form of writing calls into text is: patterns for its head, and a machine that reads on from there."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from dragoman.hub.request import Json

Call = tuple[str, str]  # name, arguments
Tools = Mapping[str, Json]  # the tools offered: name -> JSON Schema of its arguments


class CallReader(Protocol):
    """Reads on where a head ends."""

    def feed(self, text: str) -> str | None:
        """What follows the calls, or what cannot be part of one; None while there may be more."""

    def finish(self) -> None:
        """There is no more."""

    def calls(self) -> Sequence[Call] | None:
        """At the end: what is called; None where nothing is, and what was read stays text."""

    def taken(self) -> str:
        """All that was read, head included, without what `feed` gave back."""


class CallSyntax(Struct, frozen=True):
    """One way to write calls."""

    head: re.Pattern[str]  # its first group is the name of the first tool
    prefix: re.Pattern[str]  # every beginning of a head
    read: Callable[[re.Match[str], Tools], CallReader]


def prefix_pattern(*parts: str) -> str:
    """A pattern of every beginning of what the parts match one after the other."""
    pattern = ""
    for part in reversed(parts):
        pattern = f"{part}(?:{pattern})?" if pattern else part
    return pattern
