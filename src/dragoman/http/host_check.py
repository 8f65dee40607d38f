"""Check Host and Origin, so that no web page can reach a gateway on the same machine."""

import re

from dragoman.config.settings import is_loopback
from dragoman.hub.failure import Failure, Kind
from dragoman.net.headers import Headers

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
# As RFC 6454 serialises an origin: scheme "://" host [":" port], with an IPv6 address in brackets.
_ORIGIN = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://(?:\[([0-9A-Fa-f:.]+)\]|([^\s/?#@:\[\]]*))(?::[0-9]{0,5})?/?")
_SHOWN_CHARACTERS = 80


class HostCheck:
    """Rejects unknown hosts and web origins. Any host name is accepted if the gateway is not bound to loopback."""

    def __init__(self, bound_to: str, allowed: tuple[str, ...]) -> None:
        self._any_host = not is_loopback(bound_to)
        self._hosts = LOCAL_NAMES | {bound_to.lower()} | {name.lower() for name in allowed}

    def find_error(self, headers: Headers) -> tuple[int, Failure] | None:
        """Return the status and the failure for a request that is rejected; None if it is accepted."""
        host = host_name((headers.get(b"host") or b"").decode("latin-1"))
        if not self._any_host and host not in self._hosts:
            reason = f"This gateway does not answer for the host {host!r}; server.allowed_hosts adds names."
            return 421, Failure(Kind.FORBIDDEN, reason)
        origin = headers.get(b"origin")
        if origin is None:
            return None
        name = "" if origin == b"null" else _origin_name(origin)
        if name is None:
            shown = origin[:_SHOWN_CHARACTERS].decode("latin-1")
            reason = f"The Origin header {shown!r} is malformed: send scheme://host[:port], or leave it out."
            return 400, Failure(Kind.BAD_REQUEST, reason)
        if name not in self._hosts and not (self._any_host and name == host):
            origin_shown = name[:_SHOWN_CHARACTERS] or "null"
            reason = f"Requests from the web origin {origin_shown!r} are not served; server.allowed_hosts adds names."
            return 403, Failure(Kind.FORBIDDEN, reason)
        return None


def host_name(host: str) -> str:
    """Return a Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _origin_name(origin: bytes) -> str | None:
    """Return the host name of an Origin header; None if it is malformed."""
    match = _ORIGIN.fullmatch(origin)
    if match is None:
        return None
    return (match[1] or match[2] or b"").decode("latin-1").lower()
