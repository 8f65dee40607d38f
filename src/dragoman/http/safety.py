"""Whom we listen to: Host and Origin are checked, so that no web page reaches a gateway on this machine."""

import ipaddress
from urllib.parse import urlsplit

from dragoman.net.headers import Headers

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Doorkeeper:
    """Refuses hosts and origins that are not ours. Off loopback, a name may be anything: the key alone decides."""

    def __init__(self, bound_to: str, allowed: tuple[str, ...]) -> None:
        self._any_host = not is_loopback(bound_to)
        self._hosts = LOCAL_NAMES | {bound_to.lower()} | {name.lower() for name in allowed}

    def objection(self, headers: Headers) -> tuple[int, str] | None:
        """The status and the reason why this request is not served; None where it may pass."""
        host = _name((headers.get(b"host") or b"").decode("latin-1"))
        if not self._any_host and host not in self._hosts:
            return 421, f"This gateway does not answer for the host {host!r}; server.allowed_hosts adds names."
        origin = headers.get(b"origin")
        if origin is None:
            return None
        name = (urlsplit(origin.decode("latin-1")).hostname or "").lower()
        if name not in self._hosts and not (self._any_host and name == host):
            return (
                403,
                f"Requests from the web origin {name or 'null'!r} are not served; server.allowed_hosts adds names.",
            )
        return None


def _name(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
