"""Open a connection to the origin of a URL, directly or through a proxy, with TLS where needed."""

import asyncio
import os
import re
import socket
import ssl
from asyncio.sslproto import _SSLProtocolTransport
from functools import lru_cache
from typing import TypeVar

import msgspec

from dragoman.config.proxies import EnvironmentProxies, Proxy, parse_proxy
from dragoman.config.urls import split_url
from dragoman.net.errors import ConnectionLost, UpstreamTimeout
from dragoman.net.proxy import ProxyRefused, connect_to_proxy, open_tunnel
from dragoman.translate.hub.failure import describe_cause

P = TypeVar("P", bound=asyncio.Protocol)

_PRINTABLE = re.compile(r"[!-~]+")
_PORTS = {"http": 80, "https": 443}
_LONGEST_KEPT_QUERY = 32  # characters: `?alt=sse`, `?api-version=2024-10-21`


class DialOptions(msgspec.Struct, frozen=True, cache_hash=True):
    """How to connect to an origin."""

    proxy: str | None = None
    ca_file: str | None = None  # trusted in addition to the system's, for the origin and the proxy
    connect_timeout_s: float = 10.0
    address: str | None = None  # connect to this instead of resolving; TLS and `host` use the URL's name
    environment_proxies: EnvironmentProxies | None = None  # used where `proxy` is not set
    keeps_connections: bool = True  # for later requests; else each is closed after its request
    socket_path: str | None = None  # connect to this Unix socket instead of the URL's host

    def __repr__(self) -> str:
        # The proxy's URL may hold a password.
        proxy = None if self.proxy is None else "..."
        return f"Dial(proxy={proxy!r}, ca_file={self.ca_file!r}, address={self.address!r})"

    def forwarder(self, scheme: str) -> Proxy | None:
        """Return the proxy that forwards plain HTTP; None if there is none, or if `address` requires a tunnel."""
        if self.proxy is None or self.address is not None:
            return None
        proxy = parse_proxy(self.proxy)
        return proxy if proxy.forwards(scheme) else None


class ParsedUrl(msgspec.Struct, frozen=True, cache_hash=True):
    """A parsed URL. The query of the path may contain secrets; `where` is safe to log."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def where(self) -> str:
        return f"{self.bracketed}:{self.port}"

    @property
    def authority(self) -> str:
        """Return the value of the Host header, with the port unless it is the default of the scheme."""
        return self.bracketed if self.port == _PORTS[self.scheme] else self.where

    @property
    def bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def __repr__(self) -> str:
        return f"Target({self.scheme}://{self.where})"


def may_hold_secret(url: str) -> bool:
    """Return whether a URL has so long a query that it may be a signature or a key: it is not remembered."""
    at = url.find("?")
    return at >= 0 and len(url) - at > _LONGEST_KEPT_QUERY


def parse_url(url: str) -> ParsedUrl:
    """Parse a URL; raises ValueError, without quoting the URL, if it cannot be requested."""
    return _parse_url(url) if "?" in url and may_hold_secret(url) else _find_parsed_url(url)


def _parse_url(url: str) -> ParsedUrl:
    # urlsplit would silently drop line breaks and tabs and so change the URL.
    if not _PRINTABLE.fullmatch(url):
        raise ValueError("a URL must be printable ASCII without spaces")
    parts = split_url(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("a URL must be http:// or https:// with a host")
    if parts.username is not None:
        raise ValueError("a URL must not hold credentials; they belong in a header")
    path = parts.path or "/"
    if parts.query:
        path += "?" + parts.query
    try:
        port = parts.port
    except ValueError:
        raise ValueError("a URL's port must be a number below 65536") from None
    return ParsedUrl(parts.scheme, parts.hostname, _PORTS[parts.scheme] if port is None else port, path)


_find_parsed_url = lru_cache(maxsize=512)(_parse_url)


@lru_cache(maxsize=512)
def apply_environment_proxies(dial: DialOptions, scheme: str, host: str, port: int) -> DialOptions:
    """Return the options for one origin, with the proxy that the environment sets for it."""
    proxy = None if dial.environment_proxies is None else dial.environment_proxies.proxy_for(scheme, host, port)
    return msgspec.structs.replace(dial, proxy=dial.proxy or proxy, environment_proxies=None)


@lru_cache(maxsize=64)
def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Return TLS settings that also trust the CA file; raises ValueError if the file cannot be used."""
    try:
        context = ssl.create_default_context()
        if ca_file is not None:
            context.load_verify_locations(ca_file)
    except OSError as error:
        raise ValueError(f"the CA file {ca_file} cannot be used: {_describe_error(error)}") from error
    context.set_alpn_protocols(["http/1.1"])
    return context


async def connect(target: ParsedUrl, dial: DialOptions, protocol: P) -> P:
    """Open the connection, with TLS and through a proxy where needed; raises ConnectionLost or UpstreamTimeout."""
    try:
        async with asyncio.timeout(dial.connect_timeout_s):
            await _open(target, dial, protocol)
    except TimeoutError:
        raise UpstreamTimeout("connect", f"{_route(target, dial)}: no connection in time") from None
    except ssl.SSLCertVerificationError as error:
        raise _unreachable(target, dial, f"certificate refused: {error.verify_message}") from error
    except ssl.SSLError as error:
        raise _unreachable(target, dial, f"TLS failed ({error.reason or 'handshake'})") from error
    except ProxyRefused as error:
        raise _unreachable(target, dial, str(error)) from error
    except OSError as error:
        raise _unreachable(target, dial, _describe_error(error)) from error
    return protocol


async def _open(target: ParsedUrl, dial: DialOptions, protocol: asyncio.Protocol) -> None:
    loop = asyncio.get_running_loop()
    proxy = None if dial.proxy is None else parse_proxy(dial.proxy)
    secured = target.scheme == "https" or (proxy is not None and proxy.uses_tls)
    context = tls_context(dial.ca_file) if secured else None
    if dial.socket_path is not None:
        await loop.create_unix_connection(lambda: protocol, dial.socket_path)
    elif proxy is None:
        name = target.host if context else None
        await loop.create_connection(
            lambda: protocol, dial.address or target.host, target.port, ssl=context, server_hostname=name
        )
    elif dial.forwarder(target.scheme) is not None:
        await connect_to_proxy(proxy, context, lambda: protocol)
    else:
        transport = await open_tunnel(proxy, context, dial.address or target.host, target.port)
        await _attach_protocol(transport, target, context, protocol)


async def _attach_protocol(
    transport: asyncio.Transport, target: ParsedUrl, context: ssl.SSLContext | None, protocol: asyncio.Protocol
) -> None:
    try:
        if context is not None and target.scheme == "https":
            protocol.connection_made(await _secure(transport, protocol, context, target.host))
        else:
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
    except BaseException:
        transport.abort()
        raise


async def _secure(
    transport: asyncio.Transport, protocol: asyncio.Protocol, context: ssl.SSLContext, name: str
) -> asyncio.Transport:
    if isinstance(transport, _SSLProtocolTransport):
        # asyncio before 3.11.8 calls it with a wrong signature when TLS inside TLS fails, which hides the cause.
        transport._force_close = lambda _: transport.abort()  # type: ignore[attr-defined]
    loop = asyncio.get_running_loop()
    secured = await loop.start_tls(transport, protocol, context, server_hostname=name)
    if secured is None:
        raise ConnectionResetError("closed in the TLS handshake")
    return secured


def _describe_error(error: OSError) -> str:
    # asyncio rewrites strerror, and a resolver's error numbers are not the system's.
    if isinstance(error, socket.gaierror) or not error.errno:
        return describe_cause(error)
    return os.strerror(error.errno)


def _route(target: ParsedUrl, dial: DialOptions) -> str:
    return target.where if dial.proxy is None else f"{target.where} via {parse_proxy(dial.proxy).where}"


def _unreachable(target: ParsedUrl, dial: DialOptions, reason: str) -> ConnectionLost:
    return ConnectionLost(f"cannot connect to {_route(target, dial)}: {reason}", sent=False, received=False)


def find_bind_error(host: str, port: int) -> str | None:
    """Return why no server can listen at an address of this machine; None if one can."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
    except OSError as error:
        return describe_cause(error)
    return None
