"""Replace the setting to cache a whole request by a cache breakpoint on its last part.

Messages has one setting for it; other protocols have only breakpoints on parts, and all of them on those of a user.
"""

from msgspec.structs import replace

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Cache, Document, Image, Part, Request, Role, Text, ToolResult

HERE = "the breakpoint is set on the last part that can have one"
NOWHERE = "no part of this request can have a cache breakpoint"


def place_cache_breakpoint(request: Request, ledger: Ledger) -> Request:
    """Return the request with the breakpoint on the last part of a user that can have one."""
    cache = request.cache
    if cache is None:
        return request
    turns = list(request.turns)
    for index in reversed(range(len(turns))):
        parts = _mark_last(turns[index].parts, cache) if turns[index].role is Role.USER else None
        if parts is not None:
            ledger.note_approximated(cache.at, HERE)
            turns[index] = replace(turns[index], parts=parts)
            return replace(request, turns=tuple(turns), cache=None)
    ledger.note_dropped(cache.at, NOWHERE)
    return replace(request, cache=None)


def _mark_last(parts: tuple[Part, ...], cache: Cache) -> tuple[Part, ...] | None:
    """Return the parts with a breakpoint on the last one that can have it; None if none can."""
    for index in reversed(range(len(parts))):
        marked = _mark(parts[index], cache)
        if marked is not None:
            return (*parts[:index], marked, *parts[index + 1 :])
    return None


def _mark(part: Part, cache: Cache) -> Part | None:
    match part:
        case Text(text="") | Document(source=""):
            return None
        case Text() | Image() | Document():
            return part if part.cache is not None else replace(part, cache=cache)
        case ToolResult():
            content = _mark_last(part.content, cache)
            return None if content is None else part if part.cache is not None else replace(part, content=content)
        case _:
            return None
