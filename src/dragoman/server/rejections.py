"""Reject requests before they reach a handler: a foreign Host or Origin, no valid key, or not readable.

Responses to wrong keys are delayed, per address, and logged as one line per minute. A key is always checked first, and
a right one is served at once: people who share an address with an attacker, behind one NAT or one reverse proxy, are
not locked out. Only the address of the connection counts, no header.
"""

import asyncio
import ipaddress
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache

from dragoman.config.settings import is_loopback
from dragoman.net.errors import BodyTooLarge, BufferBudgetExceeded, RequestRejected
from dragoman.net.headers import JSON, Header, Headers
from dragoman.net.http_request import HttpRequest
from dragoman.proxy.reply_bounds import no_room_failure
from dragoman.proxy.response_headers import id_headers
from dragoman.server.routes import client_at, plain_path
from dragoman.translate.framing.redaction import redact_path
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.protocols import PROTOCOLS, find_presented_keys

log = logging.getLogger(__name__)

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
# As RFC 6454 serialises an origin: scheme "://" host [":" port], with an IPv6 address in brackets.
_ORIGIN = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://(?:\[([0-9A-Fa-f:.]+)\]|([^\s/?#@:\[\]]*))(?::[0-9]{0,5})?/?")
_SHOWN_CHARACTERS = 80

FREE_FAILURES = 10  # of one address at once: a person who tries old keys notices nothing
INTERVAL_S = 0.2  # seconds between two failures, from then on
MAX_DELAY_S = 5.0  # of one answer
MAX_ADDRESSES = 4096
LOG_EVERY_S = 60.0
MAX_LOGGED_ADDRESSES = 1000
TRANSPORT_KINDS = {413: Kind.TOO_LARGE, 408: Kind.REQUEST_TIMEOUT, 500: Kind.BUG, 503: Kind.OVERLOADED}


class HostCheck:
    """Rejects unknown hosts and web origins. Any host name is accepted if the gateway is not bound to loopback."""

    def __init__(self, bound_to: str, allowed: tuple[str, ...]) -> None:
        self._any_host = not is_loopback(bound_to)
        self._hosts = LOCAL_NAMES | {bound_to.lower()} | {name.lower() for name in allowed}

    def find_error(self, headers: Headers) -> tuple[int, Failure] | None:
        """Return the status and the failure for a request that is rejected; None if it is accepted."""
        host = host_name(headers.get(b"host") or b"")
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


@lru_cache(maxsize=64)
def host_name(header: bytes) -> str:
    """Return a Host header without its port."""
    host = header.decode("latin-1")
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def port_of(header: bytes) -> str:
    """Return the port in a Host header; empty if it names none."""
    return header.decode("latin-1").rpartition("]")[2].partition(":")[2]


def _origin_name(origin: bytes) -> str | None:
    """Return the host name of an Origin header; None if it is malformed."""
    match = _ORIGIN.fullmatch(origin)
    if match is None:
        return None
    return (match[1] or match[2] or b"").decode("latin-1").lower()


class AuthBackoff:
    """Counts the rejected requests of this process. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: OrderedDict[str, float] = OrderedDict()  # address -> when its next failure costs no wait
        self._rejected = 0
        self._addresses: set[str] = set()
        self._summary: asyncio.TimerHandle | None = None

    async def reject(self, address: str, path: str, *, had_key: bool) -> None:
        """Record a request without a valid key, and wait until its response may be sent."""
        source = _source_of(address)
        self._log(source, path)
        if had_key:
            delay_s = self.delay(source)
            if delay_s > 0:
                await asyncio.sleep(delay_s)

    def delay(self, source: str) -> float:
        """Record a wrong key, and return the delay of its response in seconds."""
        now = self._clock()
        free_s = FREE_FAILURES * INTERVAL_S
        due = min(max(self._due.pop(source, now), now) + INTERVAL_S, now + free_s + MAX_DELAY_S)
        self._due[source] = due
        if len(self._due) > MAX_ADDRESSES:
            self._due.popitem(last=False)
        return max(0.0, due - now - free_s)

    def close(self) -> None:
        """Log the requests that are counted but not logged yet."""
        if self._summary is not None:
            self._summary.cancel()
            self._summarise()
        if self._summary is not None:
            self._summary.cancel()

    def _log(self, source: str, path: str) -> None:
        if self._summary is None:
            shown = redact_path(path)
            log.info("%s: rejected a request from %s without a valid API key; further ones are counted", shown, source)
            self._summary = asyncio.get_running_loop().call_later(LOG_EVERY_S, self._summarise)
            return
        self._rejected += 1
        if len(self._addresses) < MAX_LOGGED_ADDRESSES:
            self._addresses.add(source)

    def _summarise(self) -> None:
        """Log one line for all requests rejected since the last line; stop the timer if there were none."""
        self._summary = None
        if not self._rejected:
            return
        addresses = sorted(self._addresses)
        shown = ", ".join(addresses[:3]) + (f" and {len(addresses) - 3} more" if len(addresses) > 3 else "")
        log.warning("rejected %d more requests without a valid API key, from %s", self._rejected, shown)
        self._rejected = 0
        self._addresses.clear()
        self._summary = asyncio.get_running_loop().call_later(LOG_EVERY_S, self._summarise)


def _source_of(address: str) -> str:
    """Return what counts as one address: for IPv6 its /64 network, which one customer usually gets."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address or "a local socket"
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if not parsed.is_loopback else str(parsed)


def find_keys(request: HttpRequest) -> tuple[bytes, ...]:
    """Return the keys that a request carries. They are not remembered: a revoked key would stay in memory."""
    return find_presented_keys(request.headers.get, request.query)


def key_failure(request: HttpRequest) -> Failure:
    """Return what is wrong with the key of a request that is not authenticated."""
    if not find_keys(request):
        return Failure(Kind.AUTH, "No API key was given: send it as a bearer token or in x-api-key.")
    return Failure(Kind.AUTH, "The API key is not valid here; `dragoman keys create` makes one.")


def transport_failure(rejected: RequestRejected) -> Failure:
    """Return the failure of a request that could not be read."""
    if isinstance(rejected, BufferBudgetExceeded):
        return no_room_failure()
    if isinstance(rejected, BodyTooLarge):
        return Failure(Kind.TOO_LARGE, f"{rejected.message} (server.max_body_mb)")
    kind = Kind.REQUEST_TIMEOUT if rejected.status == 408 else Kind.BAD_REQUEST
    return Failure(kind, rejected.message)


def render_transport_error(path: str, status: int, message: str) -> tuple[list[Header], bytes]:
    """Return headers and body of an error that the server itself sends, in the protocol of the path."""
    client = client_at("GET", plain_path(path), PROTOCOLS, lambda name: None)
    failure = Failure(TRANSPORT_KINDS.get(status, Kind.BAD_REQUEST), message)
    request_id = "req_" + secrets.token_hex(12)
    head = [JSON, *id_headers(client, request_id, [])]
    if status == 503:
        head.append((b"retry-after", b"1"))
    return head, client.render_error(failure, request_id).body
