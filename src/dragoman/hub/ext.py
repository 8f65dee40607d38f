"""What only one protocol knows: restored by that protocol, told to the ledger by any other."""

from collections.abc import Iterator

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Ext, Foreign, Hosted, Part, Request, ToolResult


def restore(wire: dict[str, object], ext: Ext) -> None:
    """Puts unread fields back where they stood below `wire`."""
    for pointer, value in ext.items():
        *path, last = (token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/"))
        holder: object = wire
        for key in path:
            holder = holder.setdefault(key, {}) if isinstance(holder, dict) else None
        if isinstance(holder, dict):
            holder.setdefault(last, value)


def drop_foreign(request: Request, protocol: str, ledger: Ledger) -> None:
    """Tells the ledger every field that only the client's own protocol knows, when another one is built."""
    if request.protocol == protocol:
        return
    why = f"{protocol} has no such field"
    for at, ext in _holders(request):
        for pointer in ext:
            ledger.dropped(f"{at}/{pointer}", why)
    for part in _parts(request):
        if isinstance(part, Foreign):
            ledger.dropped(part.at, f"{protocol} has nothing like {part.what!r}")


def _holders(request: Request) -> Iterator[tuple[str, Ext]]:
    yield "", request.ext
    for turn in request.turns:
        yield turn.at, turn.ext
    for part in _parts(request):
        if not isinstance(part, Foreign):
            yield part.at, part.ext
    for tool in request.tools:
        if not isinstance(tool, Hosted):
            yield tool.at, tool.ext


def _parts(request: Request) -> Iterator[Part]:
    for turn in request.turns:
        for part in turn.parts:
            yield part
            if isinstance(part, ToolResult):
                yield from part.content
