"""Calls under the names that an upstream knows come in; calls as the client knows its tools go out.

It undoes what `passes/lower_tools` did: names and namespaces return, and the input of a custom tool that
travelled as `{"input": "…"}` streams as the raw text that it is.
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from dragoman.framing.jsontext import StringProperty
from dragoman.hub.events import CallBlock, Closed, Delta, Event, Opened
from dragoman.passes.lower_tools import INPUT
from dragoman.passes.tool_names import ToolMap


class RaiseTools:
    __slots__ = ("_map", "_unwrapping")

    def __init__(self, tool_map: ToolMap) -> None:
        self._map = tool_map
        self._unwrapping: dict[int, StringProperty] = {}

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Delta:
            unwrapping = self._unwrapping.get(event.block)
            if unwrapping is None:
                return (event,)
            text = unwrapping.feed(event.text)
            return (Delta(event.block, text),) if text else ()
        match event:
            case Opened(what=CallBlock()):
                return (self._open(event),)
            case Closed(block=block) if block in self._unwrapping:
                text = _rest(self._unwrapping.pop(block))
                return (Delta(block, text), event) if text else (event,)
            case _:
                return (event,)

    def finish(self) -> Sequence[Event]:
        return ()

    def _open(self, event: Opened) -> Opened:
        call = event.what
        tool = self._map.tools.get(call.name) if isinstance(call, CallBlock) else None
        if tool is None or not isinstance(call, CallBlock):
            return event
        if call.name in self._map.wrapped:
            self._unwrapping[event.block] = StringProperty(INPUT)
        custom = call.custom or tool.custom
        return Opened(event.block, replace(call, name=tool.name, namespace=tool.namespace, custom=custom))


def _rest(unwrapping: StringProperty) -> str:
    """What is left at the end: of arguments in another shape than asked for, the input if they hold one."""
    text = unwrapping.finish()
    if not unwrapping.fallback:
        return text
    try:
        arguments = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    if arguments == {}:
        return ""
    found = arguments.get(INPUT) if isinstance(arguments, dict) else None
    return found if isinstance(found, str) else text
