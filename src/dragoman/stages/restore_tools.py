"""Give calls back as the client has declared its tools, whatever name or kind the upstream knows them by.

It undoes what `passes/adapt_tools` did: names and namespaces return, and the input of a custom tool that travelled as
`{"input": "…"}` streams as the raw text that it is. A custom tool that an upstream calls as a function is unwrapped
likewise, and a function that it calls as a custom tool is a function again.
"""

import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from dragoman.hub.events import CallBlock, Closed, Delta, Event, Opened
from dragoman.passes.adapt_tools import INPUT, ToolMap
from dragoman.stages.check_calls import PendingCallEnd

_WHITESPACE = " \t\n\r"
_REPLACEMENT = "\ufffd"
_SIMPLE_ESCAPES = {
    '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip
_STOP = re.compile(r'["\\]')
_HEX = re.compile(r"[0-9a-fA-F]{0,4}")
_LOW_ESCAPE = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_LOW_ESCAPE_BEGUN = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?")


class StringProperty:
    """Unwraps `{"<name>": "…"}` while it streams.

    Text that has another shape is given back untouched by `finish`, and `fallback` is true then.
    Inside the string it is lenient, as models' JSON demands: an escape that JSON lacks is kept as written.
    """

    __slots__ = ("_due", "_open", "_pending", "_raw", "_rest", "complete", "fallback")

    def __init__(self, name: str) -> None:
        self.complete = False
        self.fallback = False
        self._due = ["{", msgspec.json.encode(name).decode(), ":", '"']  # what must come before the string's text
        self._open = False
        self._raw: list[str] = []  # all there was, until the shape is certain
        self._rest = ""  # of the head: what has come of the next due token
        self._pending = ""  # an escape that may go on

    def feed(self, text: str) -> str:
        if self._open:
            return self._unescape(text)
        if self.complete:  # what follows the string says nothing
            return ""
        self._raw.append(text)
        return "" if self.fallback else self._read_head(text)

    def finish(self) -> str:
        if self._open:
            self._open = False
            # Of an escape cut off by the end only a whole first half of a pair says anything.
            return _REPLACEMENT if len(self._pending) >= 6 else ""
        if self.complete:
            return ""
        self.fallback = True
        raw = "".join(self._raw)
        self._raw.clear()
        return raw

    def _read_head(self, text: str) -> str:
        rest = (self._rest + text).lstrip(_WHITESPACE)
        while rest.startswith(self._due[0]):
            rest = rest.removeprefix(self._due.pop(0))
            if not self._due:
                self._open = True
                self._raw.clear()
                return self._unescape(rest)
            rest = rest.lstrip(_WHITESPACE)
        self._rest = rest
        self.fallback = not self._due[0].startswith(rest)
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
    """The character that the escape at `at` stands for and where the text goes on; None if more is needed."""
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
    return None if _LOW_ESCAPE_BEGUN.fullmatch(low) else (_REPLACEMENT, at + 6)


class _Unwrapping:
    """The arguments of one call, of which the input is wanted."""

    __slots__ = ("input", "tool")

    def __init__(self, tool: str) -> None:
        self.tool = tool
        self.input = StringProperty(INPUT)


class RestoreTools:
    __slots__ = ("_broken", "_map", "_unwrapping")

    def __init__(self, tool_map: ToolMap) -> None:
        self._map = tool_map
        self._unwrapping: dict[int, _Unwrapping] = {}
        self._broken: PendingCallEnd | None = None  # of a call whose input broke off

    def feed(self, event: Event) -> Sequence[Event]:
        if self._broken is not None:
            return self._go_on(self._broken, event)
        if type(event) is Delta:
            unwrapping = self._unwrapping.get(event.block)
            if unwrapping is None:
                return (event,)
            text = unwrapping.input.feed(event.text)
            return (Delta(event.block, text),) if text else ()
        match event:
            case Opened(what=CallBlock() as call):
                return (self._open(event, call),)
            case Closed(block=block) if block in self._unwrapping:
                return self._close(event, self._unwrapping.pop(block))
            case _:
                return (event,)

    def finish(self) -> Sequence[Event]:
        return ()

    def _open(self, event: Opened, call: CallBlock) -> Opened:
        tool = self._map.tools.get(call.name)
        custom = self._map.kinds.get((call.namespace, call.name)) if tool is None else tool.custom
        if custom is None:
            return event
        if custom and not call.custom:
            self._unwrapping[event.block] = _Unwrapping(call.name)
        if tool is None:
            return event if custom == call.custom else Opened(event.block, replace(call, custom=custom))
        return Opened(event.block, replace(call, name=tool.name, namespace=tool.namespace, custom=custom))

    def _close(self, event: Closed, unwrapping: _Unwrapping) -> Sequence[Event]:
        text = _rest(unwrapping.input)
        told = (Delta(event.block, text),) if text else ()
        if unwrapping.input.complete or unwrapping.input.fallback:
            return (*told, event)
        self._broken = PendingCallEnd(unwrapping.tool, event, "input that breaks off")
        return told

    def _go_on(self, broken: PendingCallEnd, event: Event) -> Sequence[Event]:
        told = broken.feed(event)
        if broken.released:
            self._broken = None
        return told


def _rest(unwrapping: StringProperty) -> str:
    """What is left at the end: of arguments in another shape than asked for, the input if they hold one."""
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
    if found is None and len(arguments) == 1:  # the upstream has given the one string a name of its own
        found = next(iter(arguments.values()))
    return found if isinstance(found, str) else text
