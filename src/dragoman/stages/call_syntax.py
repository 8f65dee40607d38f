"""What every form of writing calls into text is: patterns for its head, and a machine that reads on from there."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from dragoman.framing.jsonscan import IN_TEXT, BraceCounter, validate_object
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


_SPACE = r"\s{1,4}"
_NAME = r"([^\s\[\]{}]{1,128})"
_TAIL = re.compile(r"\s{0,4}\]")
_TAIL_BEGUN = re.compile(r"\s{0,4}")


class _Bracket:
    __slots__ = ("_arguments", "_braces", "_head", "_held", "_name", "_pieces")

    def __init__(self, head: re.Match[str], tools: Tools) -> None:
        self._head = head[0]
        self._name = head[1]
        self._pieces: list[str] = []  # of the arguments
        self._braces = BraceCounter(IN_TEXT)
        self._held = ""  # what may end the call
        self._arguments: str | None = None

    def feed(self, text: str) -> str | None:
        if self._braces.depth or not self._pieces:
            end = self._braces.advance(text, 0)
            self._pieces.append(text[:end])
            text = text[end:]
            if self._braces.depth:
                return None
        text, self._held = self._held + text, ""
        tail = _TAIL.match(text)
        if tail is not None:
            self._arguments = validate_object("".join(self._pieces))
            self._held = tail[0]
            return text[tail.end() :]
        if _TAIL_BEGUN.fullmatch(text):
            self._held = text
            return None
        return text

    def finish(self) -> None:
        return

    def calls(self) -> Sequence[Call] | None:
        return None if self._arguments is None else ((self._name, self._arguments),)

    def taken(self) -> str:
        return "".join((self._head, *self._pieces, self._held))


BRACKET = CallSyntax(
    head=re.compile(rf"\[Called{_SPACE}{_NAME}{_SPACE}with{_SPACE}args:\s{{0,4}}(?=\{{)"),
    prefix=re.compile(prefix_pattern(r"\[", *"Called", _SPACE, _NAME, _SPACE, *"with", _SPACE, *"args:", r"\s{1,4}")),
    read=_Bracket,
)
