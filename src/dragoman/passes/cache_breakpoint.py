"""A request that is to be cached up to its end comes in; the same request with a breakpoint on its last part goes out.

Messages has one setting for it; others know breakpoints on parts only, and all of them know those on a user's parts.
"""

from msgspec.structs import replace

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Cache, Document, Image, Part, Request, Role, Text, ToolResult

HERE = "the breakpoint stands on the last part that can bear one"
NOWHERE = "no part of this request can bear a cache breakpoint"


def place_cache_breakpoint(request: Request, ledger: Ledger) -> Request:
    cache = request.cache
    if cache is None:
        return request
    turns = list(request.turns)
    for place in reversed(range(len(turns))):
        parts = _marked(turns[place].parts, cache) if turns[place].role is Role.USER else None
        if parts is not None:
            ledger.note_approximated(cache.at, HERE)
            turns[place] = replace(turns[place], parts=parts)
            return replace(request, turns=tuple(turns), cache=None)
    ledger.note_dropped(cache.at, NOWHERE)
    return replace(request, cache=None)


def _marked(parts: tuple[Part, ...], cache: Cache) -> tuple[Part, ...] | None:
    """With the last that can bear a breakpoint marked, unless it has one; None where none can."""
    for place in reversed(range(len(parts))):
        marked = _bearing(parts[place], cache)
        if marked is not None:
            return (*parts[:place], marked, *parts[place + 1 :])
    return None


def _bearing(part: Part, cache: Cache) -> Part | None:
    match part:
        case Text(text="") | Document(source=""):
            return None
        case Text() | Image() | Document():
            return part if part.cache is not None else replace(part, cache=cache)
        case ToolResult():
            content = _marked(part.content, cache)
            return None if content is None else part if part.cache is not None else replace(part, content=content)
        case _:
            return None
