"""Tools as a client names them come in; names that an upstream accepts go out, each pointing back to one tool only."""

import hashlib
import re
from collections.abc import Iterable

from msgspec import Struct

from dragoman.hub.ports import ToolLimits

_LEGAL = re.compile(r"[A-Za-z0-9_-]+")
_BAD = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST_CHARACTERS = 8


class ToolId(Struct, frozen=True):
    """What a client calls a tool. A function and a custom tool of the same name are two tools."""

    name: str
    namespace: str | None = None
    custom: bool = False


class ToolMap(Struct, frozen=True):
    """The tools that the upstream knows under another name or in another form, by the name that it knows."""

    tools: dict[str, ToolId] = {}
    wrapped: frozenset[str] = frozenset()  # custom tools that the upstream sees as functions of one string
    kinds: dict[tuple[str | None, str], bool] = {}  # namespace and name of tools sent as they are -> whether custom

    def __bool__(self) -> bool:
        return bool(self.tools or self.kinds)


def assign_names(offered: Iterable[ToolId], remembered: Iterable[ToolId], limits: ToolLimits) -> dict[ToolId, str]:
    """A name for every tool: those offered choose before those that only the history mentions."""
    names: dict[ToolId, str] = {}
    taken: dict[str | None, set[str]] = {}
    for tools in (offered, remembered):
        _assign([tool for tool in dict.fromkeys(tools) if tool not in names], names, taken, limits)
    return names


def _assign(
    tools: list[ToolId], names: dict[ToolId, str], taken: dict[str | None, set[str]], limits: ToolLimits
) -> None:
    # Names that can stay come first, so that no alias or flattened name takes the place of one.
    flat = not limits.namespaces
    for tool in sorted(tools, key=lambda tool: (flat and tool.namespace is not None) or not _fits(tool.name, limits)):
        used = taken.setdefault(None if flat else tool.namespace, set())
        wanted = f"{tool.namespace}__{tool.name}" if flat and tool.namespace is not None else tool.name
        if wanted in used or not _fits(wanted, limits):
            wanted = _alias(tool, wanted, limits, used)
        names[tool] = wanted
        used.add(wanted)


def _fits(name: str, limits: ToolLimits) -> bool:
    legal = len(name) <= limits.name_max and _LEGAL.fullmatch(name) is not None
    return legal and (name[0].isalpha() or not limits.letter_first)


def _alias(tool: ToolId, wanted: str, limits: ToolLimits, taken: set[str]) -> str:
    """The beginning of the name, for the model to read, and a digest of the whole, for it to be unique."""
    prefix = _BAD.sub("_", wanted)
    if limits.letter_first and not prefix[:1].isalpha():
        prefix = f"t_{prefix}"
    prefix = prefix[: limits.name_max - _DIGEST_CHARACTERS - 1]
    identity = f"{tool.namespace or ''}\0{tool.name}\0{tool.custom}"
    for salt in range(len(taken) + 1):
        digest = hashlib.sha256(f"{identity}\0{salt}".encode(errors="surrogatepass")).hexdigest()
        alias = f"{prefix}_{digest[:_DIGEST_CHARACTERS]}"
        if alias not in taken:
            break
    return alias
