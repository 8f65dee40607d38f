"""Syntaxes in which models write tool calls into their text: the interface, and two syntaxes.

A syntax has patterns for the head of a call, and a reader for what follows the head.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from dragoman.translate.framing.jsonscan import IN_TEXT, BraceCounter, validate_object
from dragoman.translate.hub.request import Json
from dragoman.translate.passes.adapt_tools import find_reference

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

    def consumed_text(self) -> str:
        """Return the text that was read, including the head, without what `feed` returned."""


class CallSyntax(Struct, frozen=True):
    """One syntax of calls."""

    head: re.Pattern[str]  # its first group is the name of the first tool
    prefix: re.Pattern[str]  # every beginning of a head
    read: Callable[[re.Match[str], Tools], CallReader]


def _prefix_pattern(*parts: str) -> str:
    """Return a pattern that matches every prefix of what the parts match in sequence."""
    pattern = ""
    for part in reversed(parts):
        pattern = f"{part}(?:{pattern})?" if pattern else part
    return pattern


# `[Called f with args: {…}]`

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

    def consumed_text(self) -> str:
        return "".join((self._head, *self._pieces, self._held))


BRACKET = CallSyntax(
    head=re.compile(rf"\[Called{_SPACE}{_NAME}{_SPACE}with{_SPACE}args:\s{{0,4}}(?=\{{)"),
    prefix=re.compile(_prefix_pattern(r"\[", *"Called", _SPACE, _NAME, _SPACE, *"with", _SPACE, *"args:", r"\s{1,4}")),
    read=_Bracket,
)

# `<function_calls><invoke name="f"><parameter name="p">…`: values are raw text without escapes, and a value ends where
# another tag of the syntax follows its closing tag. The last closing tag may be missing, since models often stop before
# it, but a call must be complete.

_CLOSING = "</parameter>"
_GAP = r"\s{0,32}"
_QUOTED_NAME = r'([^"<>]{1,128})'
_CALLS = (*"<function_calls>",)
_INVOKE = (*'<invoke name="', _QUOTED_NAME, *'">')
_PARAMETER = (*'<parameter name="', _QUOTED_NAME, *'">')
_INVOKE_END = (*"</invoke>",)
_CALLS_END = (*"</function_calls>",)


def _any_of(*ways: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(_GAP + "(?:" + "|".join("".join(way) for way in ways) + ")")


def _any_prefix_of(*ways: tuple[str, ...], after: tuple[str, ...] = ()) -> re.Pattern[str]:
    return re.compile("|".join(_prefix_pattern(*after, _GAP, *way) for way in ways))


_NEXT_CALL = _any_of(_INVOKE, _CALLS_END)
_NEXT_CALL_PREFIX = _any_prefix_of(_INVOKE, _CALLS_END)
_NEXT_PARAMETER = _any_of(_PARAMETER, _INVOKE_END)
_NEXT_PARAMETER_PREFIX = _any_prefix_of(_PARAMETER, _INVOKE_END)
_VALUE_END = re.compile(f'{_CLOSING}(?={_GAP}(?:<parameter name="|</invoke>))')
_VALUE_END_PREFIX = _any_prefix_of((*'<parameter name="',), _INVOKE_END, after=(*_CLOSING,))


class _Invokes:
    __slots__ = ("_calls", "_consumed", "_done", "_held", "_key", "_name", "_tools", "_value", "_values")

    def __init__(self, head: re.Match[str], tools: Tools) -> None:
        self._tools = tools
        self._consumed = [head[0]]
        self._held = ""  # an incomplete token
        self._calls: list[Call] | None = []
        self._done = False
        self._name: str | None = head[1]  # None: between two calls
        self._values: dict[str, str] = {}
        self._key: str | None = None  # None: between two parameters
        self._value: list[str] = []

    def feed(self, text: str) -> str | None:
        text, self._held = self._held + text, ""
        at = 0
        while (reached := self._advance(text, at)) is not None:
            at = reached
            if self._done:
                break
        self._consumed.append(text[:at])
        if self._done:
            return text[at:]
        self._held = text[at:]
        return None

    def finish(self) -> None:
        rest, self._held = self._held, ""
        self._consumed.append(rest)
        if self._name is not None or not "</function_calls>".startswith(rest.strip()):
            self._calls = None

    def calls(self) -> Sequence[Call] | None:
        return self._calls

    def consumed_text(self) -> str:
        return "".join((*self._consumed, self._held))

    def _advance(self, text: str, at: int) -> int | None:
        """Return the offset after the next token; None if the token is incomplete."""
        if self._key is not None:
            return self._read_value(self._key, text, at)
        within = self._name is not None
        token = (_NEXT_PARAMETER if within else _NEXT_CALL).match(text, at)
        if token is None:
            if (_NEXT_PARAMETER_PREFIX if within else _NEXT_CALL_PREFIX).fullmatch(text, at):
                return None
            return self._give_up(at)
        if self._name is None:
            return self._begin(token, at)
        if token[1] is not None:
            self._key = token[1]
        else:
            self._end_call(self._name)
        return token.end()

    def _begin(self, token: re.Match[str], at: int) -> int:
        """Begin the next call, or end the list of calls."""
        name = token[1]
        if name is None:
            self._done = True
        elif name not in self._tools:
            return self._give_up(at)
        self._name = name
        return token.end()

    def _end_call(self, name: str) -> None:
        assert self._calls is not None
        # Arguments as JSON. A value is parsed where the schema requires another type than text.
        schema = self._tools[name]
        properties = schema.get("properties") if isinstance(schema, dict) else None
        known = properties if isinstance(properties, dict) else {}
        typed = {key: _convert(text, _allowed_types(known.get(key), schema)) for key, text in self._values.items()}
        self._calls.append((name, msgspec.json.encode(typed).decode()))
        self._name, self._values = None, {}

    def _read_value(self, key: str, text: str, at: int) -> int | None:
        end = text.find(_CLOSING, at)
        if end < 0:
            # The end of the text, without what may be the beginning of a closing tag.
            tail = text.rfind("<", max(at, len(text) - len(_CLOSING) + 1))
            end = tail if tail >= 0 and _CLOSING.startswith(text[tail:]) else len(text)
        if end > at:
            self._value.append(text[at:end])
            return end
        if _VALUE_END.match(text, at):
            self._values[key] = "".join(self._value)
            self._key, self._value = None, []
            return at + len(_CLOSING)
        if at == len(text) or _VALUE_END_PREFIX.fullmatch(text, at):
            return None
        self._value.append(text[at])
        return at + 1

    def _give_up(self, at: int) -> int:
        self._calls, self._done = None, True
        return at


TAGS = CallSyntax(
    head=re.compile("".join((*_CALLS, _GAP, *_INVOKE))),
    prefix=re.compile(_prefix_pattern(*_CALLS, _GAP, *_INVOKE)),
    read=_Invokes,
)


_MAX_HOPS = 8
_JSON_TYPES: dict[type, frozenset[str]] = {
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
    type(None): frozenset({"null"}),
}


def _convert(text: str, kinds: frozenset[str]) -> str | Raw:
    if not kinds or "string" in kinds:
        return text
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text
    return Raw(text.strip().encode()) if _JSON_TYPES.get(type(value), frozenset()) & kinds else text


def _allowed_types(schema: object, root: Json, hops: int = 0) -> frozenset[str]:
    """Return the types that a schema allows, directly, by reference or by alternatives."""
    if not isinstance(schema, dict) or hops > _MAX_HOPS:
        return frozenset()
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(name for name in named if isinstance(name, str))
    if isinstance(reference := schema.get("$ref"), str):
        return _allowed_types(find_reference(reference, root), root, hops + 1)
    choices = schema.get("anyOf") or schema.get("oneOf")
    found = [_allowed_types(choice, root, hops + 1) for choice in choices] if isinstance(choices, list) else []
    return frozenset().union(*found) if all(found) else frozenset()
