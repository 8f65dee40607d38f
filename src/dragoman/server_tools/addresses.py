"""Web addresses: their spellings, the domains that a request allows, and where an address comes from."""

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from urllib.parse import quote, unquote

from msgspec import Struct

from dragoman.config.urls import split_url
from dragoman.translate.framing.hostnames import decode_host, encode_host
from dragoman.translate.hub.request import Document, Part, Request, Role, Text, ToolCall, ToolResult, UrlSources
from dragoman.translate.passes.earlier_uses import ReadUses
from dragoman.translate.passes.server_tools import write_result

_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^/?#]*)(.*)", re.DOTALL)
_ESCAPES = re.compile(r"(?:%[89A-Fa-f][0-9A-Fa-f])+")  # of bytes outside ASCII
_HOST = re.compile(r"[A-Za-z0-9._-]*(?::\d*)?")


def is_web_address(url: str) -> bool:
    """Whether it is an address of the web. A client may show it as a link: it must not run a script or open a file."""
    return url[:8].lower().startswith(("http://", "https://"))


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
        return scheme + encoded + _encode_letters(rest)
    except UnicodeError:
        raise ValueError("its host name or its letters cannot be encoded") from None


def list_spellings(url: str) -> tuple[str, ...]:
    """Return the ways in which the same address may be written: letters outside ASCII may be encoded or not."""
    parts = _PARTS.fullmatch(url)
    if parts is None:
        return (url,)
    scheme, host, rest = parts.groups()
    letters = _ESCAPES.sub(_decode_letters, rest)
    try:
        encoded = _encode_letters(letters)
    except UnicodeError:
        return (url,)
    lower_case = _ESCAPES.sub(lambda escapes: escapes.group().lower(), encoded)
    hosts, rests = _list_hosts(host), (rest, letters, encoded, lower_case)
    return tuple(dict.fromkeys((url, *(scheme + each + rest for each in hosts for rest in rests))))


def _list_hosts(host: str) -> tuple[str, ...]:
    try:
        if not host.isascii():
            return host, _encode_host(host)
        return (host, decode_host(host)) if "xn--" in host.lower() else (host,)
    except UnicodeError:
        return (host,)


def _encode_letters(rest: str) -> str:
    """Raises UnicodeError for half of a character."""
    return "".join(letter if letter.isascii() else quote(letter) for letter in rest)


def _encode_host(host: str) -> str:
    """Raises UnicodeError, also where a letter becomes a delimiter of addresses."""
    name, colon, port = host.partition(":")
    encoded = encode_host(name) + colon + port
    if not _HOST.fullmatch(encoded):
        raise UnicodeError("not a host name")
    return encoded


def _decode_letters(escapes: re.Match[str]) -> str:
    """Return the letters outside ASCII that percent-encoded bytes stand for, or the bytes as they are written."""
    try:
        return unquote(escapes.group(), errors="strict")
    except UnicodeDecodeError:
        return escapes.group()


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
        return encode_host(host)
    except UnicodeError:
        return host


# What may stand before and after an address in prose, Markdown, HTML and JSON.
_NOT_BEFORE = re.compile(r"[A-Za-z0-9._@/-]")
_SCHEME_BEFORE = re.compile(r"(?<![A-Za-z0-9._@/-])https?://\Z")
_AFTER = re.compile(r"/?[.,;:!?]*+(?:[^!-~]|[<>\"'`()\[\]{}|\\*]|\Z)|/?#")
_LONGEST_SCHEME = len("https://")
MAX_PLACES = 1000  # in one text that are looked at; elsewhere an address counts as not named


class AddressOrigin(Enum):
    """Who has named an address. What only the model has written is no origin."""

    USER = "user"  # system and developer messages too
    CLIENT_TOOL = "client tool"
    SERVER_TOOL = "server tool"


class ShownText(Struct, frozen=True):
    """A text that the model was shown, in which addresses may stand."""

    text: str
    origin: AddressOrigin
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
                yield from (ShownText(text, AddressOrigin.CLIENT_TOOL, name) for text in _texts_of(part.content))
            elif turn.role is not Role.ASSISTANT:
                yield from (ShownText(text, AddressOrigin.USER) for text in _texts_of((part,)))
        for use in read_uses(turn.parts).values() if turn.role is Role.ASSISTANT else ():
            if use is not None and use.outcome is not None:
                result = write_result(use.id, use.outcome, documents=False)
                yield from (ShownText(text, AddressOrigin.SERVER_TOOL, use.kind) for text in _texts_of(result.content))


def find_fetchable(url: str, shown: Iterable[ShownText], sources: UrlSources) -> str | None:
    """Return the address as it stands in one of the texts from which the client lets the model fetch."""
    spellings = list_spellings(url)
    texts = (text.text for text in shown if _is_source(text, sources))
    return next((found for text in texts if (found := _find_spelling(spellings, text)) is not None), None)


def _is_source(text: ShownText, sources: UrlSources) -> bool:
    match text.origin:
        case AddressOrigin.USER:
            return sources.user_input
        case AddressOrigin.CLIENT_TOOL:
            return sources.client_tools.permits(text.tool)
        case AddressOrigin.SERVER_TOOL:
            return sources.server_tools.permits(text.tool)


def _texts_of(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Text):
            yield part.text
        elif isinstance(part, Document) and isinstance(part.source, str):
            yield part.source


def find_named(url: str, text: str) -> str | None:
    """Return the address as it stands in the text by itself, not as the beginning of a longer one; None: it does not.

    A model may write an address in other ways, but is given the one that was there: else it could choose a spelling to
    carry data away. The scheme may be missing in the text or differ, and so may the last slash, a fragment, and whether
    letters outside ASCII are encoded. A scheme that is missing is the model's; a fragment is never sent.
    """
    return _find_spelling(list_spellings(url), text)


def _find_spelling(spellings: Iterable[str], text: str) -> str | None:
    found = (_find_in(spelling, text) for spelling in spellings)
    return next((address for address in found if address is not None), None)


def _find_in(url: str, text: str) -> str | None:
    bare = url.partition("#")[0].removesuffix("/")
    scheme = next((scheme for scheme in ("https://", "http://") if bare.startswith(scheme)), "")
    bare = bare.removeprefix(scheme)
    if not bare[:1].isalnum() and not bare.startswith("["):
        return None
    place = -1
    for _ in range(MAX_PLACES):
        place = text.find(bare, place + 1)
        if place < 0:
            return None
        end = place + len(bare)
        written = _SCHEME_BEFORE.search(text, max(0, place - _LONGEST_SCHEME - 1), place)
        if written is None and place and _NOT_BEFORE.match(text, place - 1):
            continue
        if _AFTER.match(text, end):
            slash = "/" if text.startswith("/", end) else ""
            return (written.group() if written else scheme) + bare + slash
    return None
