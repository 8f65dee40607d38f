"""Syntaxes in which models write tool calls into their text: the interface, and `[Called f with args: {…}]`.

A syntax has patterns for the head of a call, and a reader for what follows the head.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from dragoman.framing.jsonscan import IN_TEXT, BraceCounter, validate_object
from dragoman.hub.request import Json

Call = tuple[str, str]  # name, arguments
Tools = Mapping[str, Json]  # the tools offered: name -> JSON Schema of its arguments


class CallReader(Protocol):
    """Reads the text after the head of a call."""

    def feed(self, text: str) -> str | None:
        """Return the text after the calls, or text that cannot be part of one; None while more text is needed."""

    def finish(self) -> None:
        """Note the end of the text."""

    def calls(self) -> Sequence[Call] | None:
        """Return the calls, at the end; None if there are none, so that `consumed` stays text."""

    def consumed(self) -> str:
        """Return the text that was read, including the head, without what `feed` returned."""


class CallSyntax(Struct, frozen=True):
    """One syntax of calls."""

    head: re.Pattern[str]  # its first group is the name of the first tool
    prefix: re.Pattern[str]  # every beginning of a head
    read: Callable[[re.Match[str], Tools], CallReader]


def prefix_pattern(*parts: str) -> str:
    """Return a pattern that matches every prefix of what the parts match in sequence."""
    pattern = ""
    for part in reversed(parts):
        pattern = f"{part}(?:{pattern})?" if pattern else part
    return pattern


_SPACE = r"\s{1,4}"
_NAME = r"([^\s\[\]{}]{1,128})"
_TAIL = re.compile(r"\s{0,4}\]")
_TAIL_PREFIX = re.compile(r"\s{0,4}")


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
        if _TAIL_PREFIX.fullmatch(text):
            self._held = text
            return None
        return text

    def finish(self) -> None:
        return

    def calls(self) -> Sequence[Call] | None:
        return None if self._arguments is None else ((self._name, self._arguments),)

    def consumed(self) -> str:
        return "".join((self._head, *self._pieces, self._held))


BRACKET = CallSyntax(
    head=re.compile(rf"\[Called{_SPACE}{_NAME}{_SPACE}with{_SPACE}args:\s{{0,4}}(?=\{{)"),
    prefix=re.compile(prefix_pattern(r"\[", *"Called", _SPACE, _NAME, _SPACE, *"with", _SPACE, *"args:", r"\s{1,4}")),
    read=_Bracket,
)
