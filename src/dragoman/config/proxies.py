"""Parse proxy URLs, and choose the proxy for a host from the environment variables."""

import base64
import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, cast
from urllib.parse import unquote

from msgspec import Struct

from dragoman.config.problems import ConfigError, Problem
from dragoman.config.urls import split_url

ProxyKind = Literal["http", "https", "socks5", "socks5h"]

NO_PROXY = "none"  # the value of `proxy` for direct connections, where the environment names a proxy

_PORTS: dict[str, int] = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
_OTHER_NAMES = {"socks": "socks5h"}  # the spelling of desktop environments in ALL_PROXY
_UNSUPPORTED = ("socks4", "socks4a")


class Proxy(Struct, frozen=True):
    kind: ProxyKind
    host: str
    port: int
    user: str | None
    password: str

    @property
    def where(self) -> str:
        return f"proxy [{self.host}]:{self.port}" if ":" in self.host else f"proxy {self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"Proxy({self.kind}, {self.where})"

    @property
    def uses_tls(self) -> bool:
        """Return whether the connection to the proxy itself uses TLS."""
        return self.kind == "https"

    def forwards(self, scheme: str) -> bool:
        """Return whether requests are sent to the proxy itself, with the whole URL in the request line."""
        return self.kind in ("http", "https") and scheme == "http"

    def authorization(self) -> bytes | None:
        """Return the value of the proxy-authorization header."""
        if self.user is None:
            return None
        return b"Basic " + base64.b64encode(f"{self.user}:{self.password}".encode())


def parse_proxy(url: str) -> Proxy:
    """Parse a proxy's URL; raises ValueError, whose message never contains the URL."""
    return _parse_proxy(url) if "@" in url else _find_parsed_proxy(url)  # a password is not remembered


def _parse_proxy(url: str) -> Proxy:
    try:
        parts = split_url(url)
        host = parts.hostname
    except ValueError:
        raise ValueError("the proxy's address is not a valid URL") from None
    kind = _OTHER_NAMES.get(parts.scheme, parts.scheme)
    if kind in _UNSUPPORTED:
        raise ValueError("SOCKS4 is not supported; if the proxy supports SOCKS5, write socks5:// or socks5h://")
    if kind not in _PORTS or not host:
        raise ValueError("a proxy must be http://, https://, socks5:// or socks5h:// with a host")
    try:
        port = parts.port or _PORTS[kind]
    except ValueError:
        raise ValueError("a proxy's port must be a number below 65536") from None
    user = None if parts.username is None else unquote(parts.username)
    password = unquote(parts.password or "")
    if max(len((user or "").encode()), len(password.encode())) > 255:
        raise ValueError("a proxy's user and password must be at most 255 bytes each")
    return Proxy(cast(ProxyKind, kind), host, port, user, password)


_find_parsed_proxy = lru_cache(maxsize=64)(_parse_proxy)


class EnvironmentProxies(Struct, frozen=True):
    """The proxies from the environment, by the scheme of the request, and the hosts that are exempt from them."""

    http: str | None
    https: str | None
    exempt: tuple[str, ...] = ()

    def __repr__(self) -> str:
        # The URLs may contain passwords.
        return (
            f"EnvironmentProxies(http={self.http is not None}, https={self.https is not None}, exempt={self.exempt!r})"
        )

    def proxy_for(self, scheme: str, host: str, port: int) -> str | None:
        """Return the URL of the proxy for a host; None for this machine itself."""
        proxy = self.https if scheme == "https" else self.http
        if proxy is None or is_loopback_name(host) or any(_matches(entry, host, port) for entry in self.exempt):
            return None
        return proxy


def read_proxies(environ: Mapping[str, str]) -> EnvironmentProxies | None:
    """Read HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY as curl does: lower-case names take precedence."""
    fallback = _read_variable(environ, "ALL_PROXY")
    # A CGI server sets HTTP_PROXY from a request header, so a client could choose it.
    http = None if "REQUEST_METHOD" in environ else _read_variable(environ, "HTTP_PROXY")
    found = EnvironmentProxies(
        http or fallback, _read_variable(environ, "HTTPS_PROXY") or fallback, _read_exempt_hosts(environ)
    )
    return None if found.http is None and found.https is None else found


def is_loopback_name(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def _read_variable(environ: Mapping[str, str], variable: str) -> str | None:
    name = variable.lower() if variable.lower() in environ else variable
    text = environ.get(name, "").strip()
    if not text:
        return None
    url = text if "://" in text else f"http://{text}"
    try:
        parse_proxy(url)
    except ValueError as error:
        raise ConfigError([Problem("environment", None, name, str(error))]) from None
    return url


def _read_exempt_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    text = environ.get("no_proxy", environ.get("NO_PROXY", ""))
    return tuple(entry.lower() for entry in text.replace(",", " ").split())


def _matches(entry: str, host: str, port: int) -> bool:
    """Return whether an entry of NO_PROXY matches: `*`, a domain with its subdomains, an address or a network."""
    if entry == "*":
        return True
    name, colon, number = entry.rpartition(":")
    if colon and number.isdigit() and (":" not in name or name.endswith("]")):
        if int(number) != port:
            return False
        entry = name
    entry = entry.strip("[]")
    address = _address(host)
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    domain = entry.removeprefix("*").removeprefix(".")
    return bool(domain) and (host == domain or host.endswith(f".{domain}"))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
