"""Fields that only one protocol has: its own `build` restores them, any other records them in the ledger."""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter

from msgspec import Struct

from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import (
    Ext,
    Foreign,
    Hosted,
    Request,
    Tool,
    ToolChoice,
    ToolResult,
    unescape_key,
)

CACHE_MODE = "prompt_cache_options/mode"  # honoured wherever the gateway would set marks of its own
# Fields of a request that other vendors have as well, but that cannot be translated.
_WHY = {"context_management": "only its own vendor can read back a compacted context: the whole context is sent"}

_UNSET = Request("", "", ())


class Settings(Struct, frozen=True):
    """Settings of a request that a protocol does not have."""

    names: tuple[str, ...]
    read: Callable[[Request], tuple[object, ...]]
    defaults: tuple[object, ...]  # which are no loss
    unset: tuple[object, ...]  # the values of a request that has none of them


def restore(wire: dict[str, object], ext: Ext) -> None:
    """Put unread fields back to their places below `wire`."""
    for pointer, value in ext.items():
        *path, last = map(unescape_key, pointer.split("/"))
        holder: object = wire
        for key in path:
            holder = holder.setdefault(key, {}) if isinstance(holder, dict) else None
        if isinstance(holder, dict):
            holder.setdefault(last, value)


def record_foreign_fields(request: Request, protocol: str, ledger: Ledger, kept: Ext | None = None) -> None:
    """Note every field as dropped that only the client's protocol has, when a request of another protocol is built.

    `kept` are fields of the request itself that the other protocol has as well.
    """
    if request.protocol == protocol:
        return
    if request.vendor.not_a_reply is not None:
        field, what = request.vendor.not_a_reply
        raise BadRequest(f"/{field}", f"{field} requests {what}, which only this API's own vendor can make")
    if request.extras.search_sources:
        ledger.record_approximated(request.pointer("search_sources"), "the upstream's own sources are listed")
    why = f"{protocol} has no such field"
    for pointer in request.ext:
        if pointer != CACHE_MODE and (kept is None or pointer not in kept):
            ledger.record_dropped(f"/{pointer}", _WHY.get(pointer, why))
    foreign: list[Foreign] = []
    for turn in request.turns:
        if turn.ext:
            _record_fields(turn.at, turn.ext, why, ledger)
    for turn in request.turns:
        for part in turn.parts:
            if type(part) is Foreign:  # `isinstance` of a struct that does not fit is slow
                foreign.append(part)
                continue
            if part.ext:
                _record_fields(part.at, part.ext, why, ledger)
            if type(part) is ToolResult:
                for inner in part.content:
                    if type(inner) is Foreign:
                        foreign.append(inner)
                    elif inner.ext:
                        _record_fields(inner.at, inner.ext, why, ledger)
    for tool in request.tools:
        if type(tool) is not Hosted and tool.ext:
            _record_fields(tool.at, tool.ext, why, ledger)
    for own in foreign:
        if not own.is_upstreams:
            ledger.record_dropped(own.at, f"{protocol} has nothing like {own.what!r}")


def _record_fields(at: str, fields: Iterable[str], why: str, ledger: Ledger) -> None:
    for pointer in fields:
        ledger.record_dropped(f"{at}/{pointer}", why)


def list_settings(defaults: Mapping[str, object]) -> Settings:
    """Return settings of a request by their paths, such as `sampling.seed`, each with the default that is no loss."""
    names, read = tuple(path.rpartition(".")[2] for path in defaults), attrgetter(*defaults)
    return Settings(names, read, tuple(defaults.values()), read(_UNSET))


def record_unsupported(request: Request, settings: Settings, why: str, ledger: Ledger) -> None:
    """Note the settings as dropped that the client has set to something else than their defaults."""
    values = settings.read(request)
    if values == settings.unset:  # as nearly always
        return
    for name, value, default in zip(settings.names, values, settings.defaults, strict=True):
        if value is not None and value != default:
            ledger.record_dropped(request.pointer(name), why)


def record_unread_fields(tool: Hosted, protocol: str, ledger: Ledger) -> None:
    """Note the fields of a hosted tool as dropped that its equivalent in another protocol does not have."""
    for pointer in tool.ext:
        ledger.record_dropped(f"{tool.at}/{pointer}", f"{protocol} has no such field")


def is_indispensable(tool: Hosted, choice: ToolChoice | None, others: Iterable[Tool]) -> bool:
    """Return whether a request makes no sense without this tool: it is forced, or it is the only one.

    A tool of an undocumented type is no reason to reject a request, unless it is forced.
    """
    forced = choice is not None and choice.hosted == tool.kind
    return forced or (tool.known and not any(True for _ in others))
