"""Web addresses: their spellings, the domains that a request allows, and where an address comes from."""

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from urllib.parse import quote, unquote

from msgspec import Struct

from dragoman.config.urls import split_url
from dragoman.hub.request import Document, Part, Request, Role, Text, ToolCall, ToolResult, UrlSources
from dragoman.passes.earlier_uses import ReadUses
from dragoman.passes.server_tools import write_result

_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^/?#]*)(.*)", re.DOTALL)
_HOST = re.compile(r"[A-Za-z0-9._-]*(?::\d*)?")


def to_ascii(url: str) -> str:
    """Return the address with its host in punycode and other letters percent-encoded.

    One that is ASCII already stays as it is. Raises ValueError, without quoting the address.
    """
    if url.isascii():
        return url
    parts = _PARTS.fullmatch(url)
    if parts is None:
        raise ValueError("a URL must be http:// or https:// with a host")
    scheme, host, rest = parts.groups()
    try:
        encoded = host if host.isascii() else _encode_host(host)
        return scheme + encoded + "".join(letter if letter.isascii() else quote(letter) for letter in rest)
    except UnicodeError:
        raise ValueError("its host name or its letters cannot be encoded") from None


def list_spellings(url: str) -> tuple[str, ...]:
    """Return the ways in which the same address may be written."""
    try:
        encoded = to_ascii(url)
    except ValueError:
        return (url,)
    return tuple(dict.fromkeys((url, encoded, _to_letters(encoded))))


def _encode_host(host: str) -> str:
    """Raises UnicodeError, also where a letter becomes a delimiter of addresses."""
    name, colon, port = host.partition(":")
    encoded = name.encode("idna").decode("ascii") + colon + port
    if not _HOST.fullmatch(encoded):
        raise UnicodeError("not a host name")
    return encoded


def _to_letters(url: str) -> str:
    parts = _PARTS.fullmatch(url)
    if parts is None:
        return url
    scheme, host, rest = parts.groups()
    try:
        return scheme + (host.encode("ascii").decode("idna") if "xn--" in host.lower() else host) + unquote(rest)
    except UnicodeError:
        return url


class DomainRules(Struct, frozen=True):
    """The domains of one tool declaration; at most one of the two lists is given."""

    allowed: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()

    def permits(self, url: str) -> bool:
        if self.allowed and not _matches_any(url, self.allowed):
            return False
        return not _matches_any(url, self.blocked)


def _matches_any(url: str, entries: Iterable[str]) -> bool:
    try:
        parts = split_url(url)
        host = parts.hostname
    except ValueError:
        return False
    return host is not None and any(_matches(_normalise_host(host), parts.path, entry) for entry in entries)


def _matches(host: str, path: str, entry: str) -> bool:
    """Match a host or its subdomains; an entry with a path also needs the path to begin like that."""
    address = entry.strip().partition("://")[2] or entry.strip()
    domain, slash, prefix = address.partition("/")
    domain = _normalise_host(domain.removeprefix("*."))
    if not domain or not (host == domain or host.endswith(f".{domain}")):
        return False
    prefix = prefix.rstrip("/*")
    return not slash or not prefix or path == f"/{prefix}" or path.startswith(f"/{prefix}/")


def _normalise_host(host: str) -> str:
    """Return a host name in lower case and punycode, so that both spellings of a name are equal."""
    host = host.rstrip(".").lower()
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        return host


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
