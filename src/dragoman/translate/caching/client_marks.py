"""The cache settings that a client sent: breakpoints and a key."""

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import (
    Cache,
    Document,
    Function,
    Image,
    Part,
    Request,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)

_OFF = "prompt caching is off for this provider"
Note = Callable[[str], None]
_Marked = TypeVar("_Marked", bound=Text | Image | Document | ToolCall | ToolResult | Function)


def remove_cache_settings(request: Request, ledger: Ledger) -> Request:
    """Return a request without breakpoints and key; each is recorded as dropped."""
    if request.cache_key is not None:
        ledger.record_dropped(request.pointer("cache_key"), _OFF)
    return replace(remove_marks(request, lambda at: ledger.record_dropped(at, _OFF)), cache_key=None)


def remove_marks(request: Request, note: Note) -> Request:
    """Return a request without breakpoints; `note` is called with the place of each."""
    if request.cache is not None:
        note(request.cache.at)
    tools = tuple(_strip(tool, note) if isinstance(tool, Function) else tool for tool in request.tools)
    turns = tuple(_strip_turn(turn, note) for turn in request.turns)
    return replace(request, turns=turns, tools=tools, cache=None)


def _strip_turn(turn: Turn, note: Note) -> Turn:
    if not any(is_marked(part) for part in turn.parts):
        return turn
    return replace(turn, parts=tuple(_strip_part(part, note) for part in turn.parts))


def is_marked(part: Part) -> bool:
    """Whether a part has a breakpoint, or one of a tool's result has."""
    if isinstance(part, ToolResult) and any(is_marked(inner) for inner in part.content):
        return True
    return isinstance(part, Text | Image | Document | ToolCall | ToolResult) and part.cache is not None


def _strip_part(part: Part, note: Note) -> Part:
    match part:
        case ToolResult():
            content = tuple(
                _strip(inner, note) if isinstance(inner, Text | Image | Document) else inner for inner in part.content
            )
            return _strip(replace(part, content=content), note)
        case Text() | Image() | Document() | ToolCall():
            return _strip(part, note)
        case _:
            return part


def _strip(marked: _Marked, note: Note) -> _Marked:
    cache: Cache | None = marked.cache
    if cache is None:
        return marked
    note(cache.at)
    return replace(marked, cache=None)
