"""The cache settings that a client sent: breakpoints and a key."""

from typing import TypeVar

from msgspec.structs import replace

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Cache, Document, Function, Image, Part, Request, Text, Tool, ToolCall, ToolResult, Turn

_OFF = "prompt caching is off for this provider"
_Marked = TypeVar("_Marked", bound=Text | Image | Document | ToolCall | ToolResult | Function)


def remove_cache_settings(request: Request, ledger: Ledger) -> Request:
    """Return a request without breakpoints and key; each is recorded as dropped."""
    if request.cache_key is not None:
        ledger.note_dropped(request.pointer("cache_key"), _OFF)
    if request.cache is not None:
        ledger.note_dropped(request.cache.at, _OFF)
    tools = tuple(_strip_tool(tool, ledger) for tool in request.tools)
    turns = tuple(_strip_turn(turn, ledger) for turn in request.turns)
    return replace(request, turns=turns, tools=tools, cache=None, cache_key=None)


def _strip_turn(turn: Turn, ledger: Ledger) -> Turn:
    if not any(_has_mark(part) for part in turn.parts):
        return turn
    return replace(turn, parts=tuple(_strip_part(part, ledger) for part in turn.parts))


def _has_mark(part: Part) -> bool:
    if isinstance(part, ToolResult) and any(_has_mark(inner) for inner in part.content):
        return True
    return isinstance(part, Text | Image | Document | ToolCall | ToolResult) and part.cache is not None


def _strip_part(part: Part, ledger: Ledger) -> Part:
    match part:
        case ToolResult():
            content = tuple(
                _strip(inner, ledger) if isinstance(inner, Text | Image | Document) else inner for inner in part.content
            )
            return _strip(replace(part, content=content), ledger)
        case Text() | Image() | Document() | ToolCall():
            return _strip(part, ledger)
        case _:
            return part


def _strip_tool(tool: Tool, ledger: Ledger) -> Tool:
    return _strip(tool, ledger) if isinstance(tool, Function) else tool


def _strip(marked: _Marked, ledger: Ledger) -> _Marked:
    cache: Cache | None = marked.cache
    if cache is None:
        return marked
    ledger.note_dropped(cache.at, _OFF)
    return replace(marked, cache=None)
