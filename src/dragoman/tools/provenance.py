"""Where a web address comes from: a model may fetch only addresses that others have named."""

import re
from collections.abc import Iterable, Iterator
from enum import Enum

from msgspec import Struct

from dragoman.hub.request import Document, Part, Request, Role, Text, ToolCall, ToolResult, UrlSources
from dragoman.passes.server_tools import ReadUses, write_result
from dragoman.tools.addresses import list_spellings

# What may stand before and after an address in prose, Markdown, HTML and JSON.
_BEFORE = r"(?<![A-Za-z0-9._@/-])(?:https?://)?"
_AFTER = r"(?=/?[.,;:!?]*(?:[^!-~]|[<>\"'`()\[\]{}|\\*]|$)|#)"


class Origin(Enum):
    """Who has named an address. What only the model has written is no origin."""

    USER = "user"  # system and developer messages too
    CLIENT_TOOL = "client tool"
    SERVER_TOOL = "server tool"


class ShownText(Struct, frozen=True):
    """A text that the model was shown, in which addresses may stand."""

    text: str
    origin: Origin
    tool: str = ""  # the name that the client knows it by


def list_shown(request: Request, read_uses: ReadUses) -> Iterator[ShownText]:
    """Return the texts of a client's request that the model did not write itself."""
    names = {
        part.id: part.name for turn in request.turns for part in turn.parts if isinstance(part, ToolCall)
    }  # of the client's tools
    for turn in request.turns:
        for part in turn.parts:
            if isinstance(part, ToolResult):
                name = names.get(part.call_id, "")
                yield from (ShownText(text, Origin.CLIENT_TOOL, name) for text in _texts_of(part.content))
            elif turn.role is not Role.ASSISTANT:
                yield from (ShownText(text, Origin.USER) for text in _texts_of((part,)))
        for use in read_uses(turn.parts).values() if turn.role is Role.ASSISTANT else ():
            if use is not None and use.outcome is not None:
                result = write_result(use.id, use.outcome, documents=False, cites=False)
                yield from (ShownText(text, Origin.SERVER_TOOL, use.kind) for text in _texts_of(result.content))


def may_fetch(url: str, shown: Iterable[ShownText], sources: UrlSources) -> bool:
    """Whether the address stands in one of the texts from which the client lets the model fetch."""
    return any(_is_source(text, sources) and is_named(url, text.text) for text in shown)


def _is_source(text: ShownText, sources: UrlSources) -> bool:
    match text.origin:
        case Origin.USER:
            return sources.user_input
        case Origin.CLIENT_TOOL:
            return sources.client_tools.permits(text.tool)
        case Origin.SERVER_TOOL:
            return sources.server_tools.permits(text.tool)


def _texts_of(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Text):
            yield part.text
        elif isinstance(part, Document) and isinstance(part.source, str):
            yield part.source


def is_named(url: str, text: str) -> bool:
    """Whether the address stands in the text by itself, not as the beginning of a longer one.

    The scheme may be missing or differ (a user writes `example.com`), and so may a fragment or the last slash.
    Letters outside ASCII may be encoded or not.
    """
    return any(_stands_in(spelling, text) for spelling in list_spellings(url))


def _stands_in(url: str, text: str) -> bool:
    bare = url.partition("#")[0].rstrip("/")
    scheme, separator, rest = bare.partition("://")
    if separator and scheme in ("http", "https"):
        bare = rest
    if not bare or bare not in text:
        return False
    return re.search(_BEFORE + re.escape(bare) + _AFTER, text) is not None
