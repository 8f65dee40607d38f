"""Spellings of a web address: people write any letters, HTTP and DNS only ASCII."""

import re
from urllib.parse import quote, unquote

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
