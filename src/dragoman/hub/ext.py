"""What only one protocol knows: restored by that protocol, told to the ledger by any other."""

from collections.abc import Iterable, Iterator

from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.request import Ext, Foreign, Hosted, Part, Request, Tool, ToolChoice, ToolResult, unescape_key

# A request's fields that other vendors have too, and yet cannot be given.
_WHY = {"context_management": "only its own vendor can read back what it compacts or clears: the context stays whole"}
# By protocol, a field that asks for something other than an answer.
_OTHER_THAN_ANSWERS = {"messages": ("compaction", "a compacted context, which only this API's own vendor can make")}


def restore(wire: dict[str, object], ext: Ext) -> None:
    """Puts unread fields back where they stood below `wire`."""
    for pointer, value in ext.items():
        *path, last = map(unescape_key, pointer.split("/"))
        holder: object = wire
        for key in path:
            holder = holder.setdefault(key, {}) if isinstance(holder, dict) else None
        if isinstance(holder, dict):
            holder.setdefault(last, value)


def note_foreign_fields(request: Request, protocol: str, ledger: Ledger, kept: Ext | None = None) -> None:
    """Tells the ledger every field that only the client's own protocol knows, when another one is built.

    `kept`: fields of the request itself that the other one knows too.
    """
    if request.protocol == protocol:
        return
    field, what = _OTHER_THAN_ANSWERS.get(request.protocol, ("", ""))
    if field in request.ext:
        raise BadRequest(f"/{field}", f"{field} asks for {what}")
    why = f"{protocol} has no such field"
    for at, ext in _holders(request):
        for pointer in ext:
            if at or kept is None or pointer not in kept:
                ledger.note_dropped(f"{at}/{pointer}", why if at else _WHY.get(pointer, why))
    for part in _parts(request):
        if isinstance(part, Foreign):
            ledger.note_dropped(part.at, f"{protocol} has nothing like {part.what!r}")


def note_unread_fields(tool: Hosted, protocol: str, ledger: Ledger) -> None:
    """Tells the ledger what a hosted tool says that its equal in another protocol cannot."""
    for pointer in tool.ext:
        ledger.note_dropped(f"{tool.at}/{pointer}", f"{protocol} has no such field")


def is_indispensable(tool: Hosted, choice: ToolChoice | None, others: Iterable[Tool]) -> bool:
    """Whether a request makes no sense without this tool: it is forced, or there is no other.

    A type that nobody documents is never worth a refusal by itself.
    """
    forced = choice is not None and choice.hosted == tool.kind
    return forced or (tool.known and not any(True for _ in others))


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
