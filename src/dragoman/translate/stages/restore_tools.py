"""Restore the names and kinds that the client gave its tools in the calls of a reply.

This undoes `translate/passes/adapt_tools.py`: names and namespaces are restored, and the input of a custom tool that
was sent as `{"input": "…"}` is streamed as raw text. A custom tool that an upstream calls as a function is
unwrapped likewise, and a function that it calls as a custom tool becomes a function again.
"""

import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from dragoman.translate.hub.events import CallBlock, Closed, Delta, Event, Opened
from dragoman.translate.hub.ports import RunStage
from dragoman.translate.passes.adapt_tools import INPUT, ToolMap
from dragoman.translate.stages.check_calls import PendingCallEnd

_WHITESPACE = " \t\n\r"
_REPLACEMENT = "\ufffd"
_SIMPLE_ESCAPES = {
    '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip
_STOP = re.compile(r'["\\]')
_HEX = re.compile(r"[0-9a-fA-F]{0,4}")
_LOW_ESCAPE = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_LOW_ESCAPE_PREFIX = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?")


class StringProperty:
    """Extract the text of the string in `{"<name>": "…"}` while it streams.

    Text of another form is returned unchanged by `finish`, and `fallback` is true then. Inside the string it is lenient
    with models' mistakes: an escape that JSON does not have is kept unchanged.
    """

    __slots__ = ("_expected", "_open", "_pending", "_raw", "_rest", "complete", "fallback")

    def __init__(self, name: str) -> None:
        self.complete = False
        self.fallback = False
        self._expected = [
            "{",
            msgspec.json.encode(name).decode(),
            ":",
            '"',
        ]  # the tokens that must precede the string's text
        self._open = False
        self._raw: list[str] = []  # all text so far, until its form is certain
        self._rest = ""  # the received part of the next token
        self._pending = ""  # an incomplete escape

    def feed(self, text: str) -> str:
        if self._open:
            return self._unescape(text)
        if self.complete:  # what follows the string is irrelevant
            return ""
        self._raw.append(text)
        return "" if self.fallback else self._read_head(text)

    def finish(self) -> str:
        if self._open:
            self._open = False
            # Of an incomplete escape at the end, only the complete first half of a surrogate pair counts.
            return _REPLACEMENT if len(self._pending) >= 6 else ""
        if self.complete:
            return ""
        self.fallback = True
        raw = "".join(self._raw)
        self._raw.clear()
        return raw

    def _read_head(self, text: str) -> str:
        rest = (self._rest + text).lstrip(_WHITESPACE)
        while rest.startswith(self._expected[0]):
            rest = rest.removeprefix(self._expected.pop(0))
            if not self._expected:
                self._open = True
                self._raw.clear()
                return self._unescape(rest)
            rest = rest.lstrip(_WHITESPACE)
        self._rest = rest
        self.fallback = not self._expected[0].startswith(rest)
        return ""

    def _unescape(self, text: str) -> str:
        text = self._pending + text
        self._pending = ""
        pieces: list[str] = []
        at = 0
        while stop := _STOP.search(text, at):
            pieces.append(text[at : stop.start()])
            if stop[0] == '"':
                self._open = False
                self.complete = True
                return "".join(pieces)
            escape = _read_escape(text, stop.start())
            if escape is None:
                self._pending = text[stop.start() :]
                return "".join(pieces)
            character, at = escape
            pieces.append(character)
        pieces.append(text[at:])
        return "".join(pieces)


def _read_escape(text: str, at: int) -> tuple[str, int] | None:
    """Return the character of the escape at `at` and the offset after it; None if the escape is incomplete."""
    kind = text[at + 1 : at + 2]
    if kind != "u":
        return (_SIMPLE_ESCAPES.get(kind, "\\" + kind), at + 2) if kind else None
    digits = text[at + 2 : at + 6]
    if not _HEX.fullmatch(digits):
        return "\\u", at + 2
    if len(digits) < 4:
        return None
    unit = int(digits, 16)
    if not 0xD800 <= unit < 0xE000:
        return chr(unit), at + 6
    if unit >= 0xDC00:
        return _REPLACEMENT, at + 6
    low = text[at + 6 : at + 12]
    if _LOW_ESCAPE.fullmatch(low):
        return chr(0x10000 + ((unit - 0xD800) << 10) + int(low[2:], 16) - 0xDC00), at + 12
    return None if _LOW_ESCAPE_PREFIX.fullmatch(low) else (_REPLACEMENT, at + 6)


class _Unwrapping:
    """The arguments of one call whose input is extracted."""

    __slots__ = ("input", "tool")

    def __init__(self, tool: str) -> None:
        self.tool = tool
        self.input = StringProperty(INPUT)


class RestoreTools(RunStage):
    __slots__ = ("_map", "_pending_end", "_unwrapping")

    def __init__(self, tool_map: ToolMap) -> None:
        self._map = tool_map
        self._unwrapping: dict[int, _Unwrapping] = {}
        self._pending_end: PendingCallEnd | None = None  # of a call whose input is incomplete

    def feed(self, event: Event) -> Sequence[Event]:
        if self._pending_end is not None:
            return self._feed_pending(self._pending_end, event)
        if not self._unwrapping and type(event) is not Opened:
            return (event,)
        if type(event) is Delta:
            unwrapping = self._unwrapping.get(event.block)
            if unwrapping is None:
                return (event,)
            text = unwrapping.input.feed(event.text)
            return (Delta(event.block, text),) if text else ()
        # Types are compared: a struct's class pattern that does not fit is slow.
        if type(event) is Opened and type(event.what) is CallBlock:
            return (self._open(event, event.what),)
        if type(event) is Closed and event.block in self._unwrapping:
            return self._close(event, self._unwrapping.pop(event.block))
        return (event,)

    def passes(self, block: int) -> bool:
        return self._pending_end is None and block not in self._unwrapping

    def _open(self, event: Opened, call: CallBlock) -> Opened:
        tool = self._map.tools.get(call.name)
        custom = self._map.kinds.get((call.namespace, call.name)) if tool is None else tool.custom
        if custom is None:
            return event
        if custom and not call.custom:
            self._unwrapping[event.block] = _Unwrapping(call.name)
        if tool is None:
            return event if custom == call.custom else replace(event, what=replace(call, custom=custom))
        restored = replace(call, name=tool.name, namespace=tool.namespace, custom=custom)
        return replace(event, what=restored)

    def _close(self, event: Closed, unwrapping: _Unwrapping) -> Sequence[Event]:
        text = _rest(unwrapping.input)
        events = (Delta(event.block, text),) if text else ()
        if unwrapping.input.complete or unwrapping.input.fallback:
            return (*events, event)
        self._pending_end = PendingCallEnd(unwrapping.tool, event, "incomplete input")
        return events

    def _feed_pending(self, pending: PendingCallEnd, event: Event) -> Sequence[Event]:
        events = pending.feed(event)
        if pending.released:
            self._pending_end = None
        return events


def _rest(unwrapping: StringProperty) -> str:
    """Return the rest of the input. Arguments of an unexpected form are searched for an input."""
    text = unwrapping.finish()
    if not unwrapping.fallback:
        return text
    try:
        arguments = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text
    if arguments == {}:
        return ""
    if not isinstance(arguments, dict):
        return text
    found = arguments.get(INPUT)
    if found is None and len(arguments) == 1:  # the upstream has given the only string another name
        found = next(iter(arguments.values()))
    return found if isinstance(found, str) else text
