"""Give calls back as the client has declared its tools, whatever name or kind the upstream knows them by.

It undoes what `passes/lower_tools` did: names and namespaces return, and the input of a custom tool that travelled as
`{"input": "…"}` streams as the raw text that it is. A custom tool that an upstream calls as a function is unwrapped
likewise, and a function that it calls as a custom tool is a function again.
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from dragoman.framing.jsontext import StringProperty
from dragoman.hub.events import CallBlock, Closed, Delta, Event, Opened
from dragoman.passes.lower_tools import INPUT
from dragoman.passes.tool_names import ToolMap
from dragoman.stages.held_end import PendingCallEnd


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
