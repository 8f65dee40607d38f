"""A request as data comes in; the bytes of its head, checked against injection, go out."""

import re
from functools import lru_cache

import msgspec

from dragoman.config.proxies import Proxy
from dragoman.net.dial import Target, parse_target
from dragoman.net.headers import Header

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

# Framing and hop-by-hop fields are this transport's own: a caller's are left out, never sent twice.
_OURS = frozenset(
    b"accept-encoding connection content-length expect host keep-alive proxy-authorization proxy-connection"
    b" te trailer transfer-encoding upgrade".split()
)
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class Outgoing(msgspec.Struct, frozen=True):
    """One upstream request."""

    method: str
    url: str
    headers: tuple[Header, ...]
    body: bytes = b""

    def __repr__(self) -> str:
        # Headers, query and body hold secrets.
        return f"Outgoing({self.method} {parse_target(self.url)!r}, {len(self.body)} bytes)"


def write_head(out: Outgoing, target: Target, proxy: Proxy | None) -> bytes:
    """The request's head; ValueError, which never quotes a value, if a field would break out of its line."""
    lines = [b"%b: %b\r\n" % field for field in out.headers if not _is_ours(field[0])]
    fields = b"".join(lines)
    if fields.count(b"\n") != len(lines) or fields.count(b"\r") != len(lines) or b"\0" in fields:
        raise ValueError(f"the value of header {_broken(out.headers)} holds a line break or NUL")
    length = b"content-length: %d\r\n" % len(out.body) if out.body or out.method in _WITH_BODY else b""
    return _opening(out.method, target, proxy) + fields + length + b"\r\n"


def _broken(headers: tuple[Header, ...]) -> str:
    return next(name.decode("latin-1") for name, value in headers if any(bad in value for bad in (b"\r", b"\n", b"\0")))


@lru_cache(maxsize=512)
def _opening(method: str, target: Target, proxy: Proxy | None) -> bytes:
    """The request line and the fields that depend only on where it goes."""
    verb = method.encode()
    if not _TOKEN.fullmatch(verb):
        raise ValueError("the method is not a token")
    forwarded = proxy is not None and proxy.forwards(target.scheme)
    path = f"{target.scheme}://{target.authority}{target.path}" if forwarded else target.path
    head = b"%b %b HTTP/1.1\r\nhost: %b\r\naccept-encoding: identity\r\n" % (
        verb,
        path.encode("ascii"),
        target.authority.encode("ascii"),
    )
    secret = proxy.authorization() if proxy is not None and forwarded else None
    return head if secret is None else head + b"proxy-authorization: " + secret + b"\r\n"


@lru_cache(maxsize=1024)
def _is_ours(name: bytes) -> bool:
    """Whether a field of this name is the transport's own; ValueError for what is no name."""
    if not _TOKEN.fullmatch(name) or name.lower() != name:
        raise ValueError("a header name is not a lower-case token")
    return name in _OURS
