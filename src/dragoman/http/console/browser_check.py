"""Decide whether a request comes from the console's own page, over a connection that is private."""

import ipaddress

from msgspec import Struct

from dragoman.config.settings import Config, is_loopback
from dragoman.http.host_check import LOCAL_NAMES, host_name
from dragoman.hub.failure import Failure, Kind
from dragoman.net.exchange import Exchange

SITE = b"sec-fetch-site"
FORWARDED_PROTO = b"x-forwarded-proto"
READING = ("GET", "HEAD")
WITHOUT_BODY = (*READING, "DELETE")

NO_TLS = (
    "The console needs TLS where other machines can reach it. Put a reverse proxy with TLS in front that sets "
    "x-forwarded-proto, and name its address in console.trusted_proxies; or open the console on this machine."
)
OTHER_SITE = (
    "Another site sent this request, so it is refused. Type or paste the address of the console into the browser."
)


class BrowserCheck(Struct, frozen=True):
    """The checks of one configuration."""

    is_local: bool  # the gateway listens where only this machine reaches it
    proxies: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]

    def find_error(self, exchange: Exchange) -> Failure | None:
        """Return why a request may not use a session; None if it may."""
        if exchange.headers.get(SITE) != b"same-origin":
            return Failure(Kind.FORBIDDEN, OTHER_SITE, code="other_site")
        origin = exchange.headers.get(b"origin")
        if origin is None and exchange.method not in READING:
            return Failure(Kind.FORBIDDEN, "The request has no Origin header.", code="other_site")
        if origin is not None and origin != self._origin(exchange):
            return Failure(Kind.FORBIDDEN, OTHER_SITE, code="other_site")
        content_type = exchange.headers.get(b"content-type") or b""
        if exchange.method not in WITHOUT_BODY and content_type.partition(b";")[0].strip() != b"application/json":
            message = "Send the body as JSON, with content-type: application/json."
            return Failure(Kind.BAD_REQUEST, message, code="unsupported_media_type")
        return self.find_exposure(exchange)

    def find_page_error(self, exchange: Exchange) -> Failure | None:
        """Return why a request may not get the page or its files; None if it may."""
        if exchange.headers.get(SITE) not in (None, b"none", b"same-origin"):
            return Failure(Kind.FORBIDDEN, OTHER_SITE, code="other_site")
        return self.find_exposure(exchange)

    def find_exposure(self, exchange: Exchange) -> Failure | None:
        """Return that others could listen, or None."""
        host = host_name((exchange.headers.get(b"host") or b"").decode("latin-1"))
        if self._has_tls(exchange) or (self.is_local and host in LOCAL_NAMES):
            return None
        return Failure(Kind.FORBIDDEN, NO_TLS, code="tls_required")

    def _has_tls(self, exchange: Exchange) -> bool:
        if exchange.headers.get(FORWARDED_PROTO) != b"https":
            return False
        try:
            peer = ipaddress.ip_address(exchange.address.partition("%")[0])
        except ValueError:
            return False
        mapped = peer.ipv4_mapped if isinstance(peer, ipaddress.IPv6Address) else None
        return any((mapped or peer) in network for network in self.proxies)

    def _origin(self, exchange: Exchange) -> bytes:
        scheme = b"https" if self._has_tls(exchange) else b"http"
        return scheme + b"://" + (exchange.headers.get(b"host") or b"")


def make_browser_check(config: Config) -> BrowserCheck:
    networks = tuple(ipaddress.ip_network(text, strict=False) for text in config.console.trusted_proxies)
    return BrowserCheck(is_loopback(config.server.host), networks)
