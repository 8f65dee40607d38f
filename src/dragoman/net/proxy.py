"""Connect through HTTP and SOCKS5 proxies."""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar, cast

from dragoman.config.proxies import Proxy

P = TypeVar("P", bound=asyncio.Protocol)

_REPLY_LIMIT = 16 << 10

_SOCKS_ERRORS = {
    1: "general failure",
    2: "not allowed by its rules",
    3: "network unreachable",
    4: "host unreachable",
    5: "connection refused",
    6: "time to live expired",
    7: "command not supported",
    8: "address type not supported",
}


class ProxyRefused(Exception):
    """The proxy refused or failed; the message contains no secret."""


async def connect_to_proxy(proxy: Proxy, context: ssl.SSLContext | None, protocol: Callable[[], P]) -> P:
    """Connect to the proxy itself, over TLS if its URL says so."""
    loop = asyncio.get_running_loop()
    try:
        _, made = await loop.create_connection(
            protocol, proxy.host, proxy.port, ssl=context if proxy.uses_tls else None
        )
    except ssl.SSLCertVerificationError as error:
        raise ProxyRefused(f"the proxy's certificate is refused: {error.verify_message}") from error
    except ssl.SSLError as error:
        raise ProxyRefused(f"TLS with the proxy failed ({error.reason or 'handshake'})") from error
    return made


async def open_tunnel(proxy: Proxy, context: ssl.SSLContext | None, host: str, port: int) -> asyncio.Transport:
    """Open a tunnel through the proxy; the next byte on it is the destination's."""
    handshake = await connect_to_proxy(proxy, context, _Handshake)
    try:
        if proxy.kind in ("http", "https"):
            await _request_http_tunnel(handshake, proxy, host, port)
        else:
            await _request_socks_tunnel(handshake, proxy, host, port)
        return handshake.hand_over()
    except BaseException:
        handshake.transport.abort()
        raise


class _Handshake(asyncio.Protocol):
    """The exchange with the proxy before the tunnel is open."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait_for_data(self) -> None:
        if self._closed:
            raise ProxyRefused("the proxy closed the connection")
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    async def read_exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            await self._wait_for_data()
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    async def read_until(self, mark: bytes) -> bytes:
        start = 0
        while (found := self._buffer.find(mark, start)) < 0:
            if len(self._buffer) > _REPLY_LIMIT:
                raise ProxyRefused("the proxy's reply is too large")
            start = max(0, len(self._buffer) - len(mark) + 1)
            await self._wait_for_data()
        return await self.read_exactly(found + len(mark))

    def hand_over(self) -> asyncio.Transport:
        if self._closed:
            raise ProxyRefused("the proxy closed the connection")
        if self._buffer:
            raise ProxyRefused("the proxy sent bytes before any were sent to the destination")
        return self.transport


async def _request_http_tunnel(handshake: _Handshake, proxy: Proxy, host: str, port: int) -> None:
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {authority} HTTP/1.1".encode(), f"host: {authority}".encode()]
    secret = proxy.authorization()
    if secret is not None:
        lines.append(b"proxy-authorization: " + secret)
    handshake.transport.write(b"\r\n".join(lines) + b"\r\n\r\n")
    reply = await handshake.read_until(b"\r\n\r\n")
    version, _, rest = reply.partition(b" ")
    if not version.startswith(b"HTTP/1."):
        raise ProxyRefused("the proxy does not speak HTTP/1")
    status = rest[:3]
    if status == b"407":
        raise ProxyRefused("the proxy asks for other credentials (407)")
    if not (status.isdigit() and status.startswith(b"2")):
        raise ProxyRefused(f"the proxy answered {status.decode('latin-1')!r} to CONNECT")


async def _request_socks_tunnel(handshake: _Handshake, proxy: Proxy, host: str, port: int) -> None:
    await _socks_login(handshake, proxy)
    address = await _socks_address(proxy, host, port)
    handshake.transport.write(b"\x05\x01\x00" + address + port.to_bytes(2, "big"))
    version, reply, _, kind = await handshake.read_exactly(4)
    if version != 5:
        raise ProxyRefused("the proxy does not speak SOCKS5")
    if reply != 0:
        raise ProxyRefused(f"the proxy says: {_SOCKS_ERRORS.get(reply, f'error {reply}')}")
    match kind:
        case 1:
            await handshake.read_exactly(4 + 2)
        case 3:
            await handshake.read_exactly((await handshake.read_exactly(1))[0] + 2)
        case 4:
            await handshake.read_exactly(16 + 2)
        case _:
            raise ProxyRefused("the proxy's SOCKS5 reply is malformed")


async def _socks_login(handshake: _Handshake, proxy: Proxy) -> None:
    handshake.transport.write(b"\x05\x01\x00" if proxy.user is None else b"\x05\x02\x00\x02")
    version, method = await handshake.read_exactly(2)
    if version != 5:
        raise ProxyRefused("the proxy does not speak SOCKS5")
    if method == 0:
        return
    if method != 2 or proxy.user is None:
        raise ProxyRefused("the proxy asks for other credentials")
    user, password = proxy.user.encode(), proxy.password.encode()
    handshake.transport.write(bytes((1, len(user))) + user + bytes((len(password),)) + password)
    _, refused = await handshake.read_exactly(2)
    if refused:
        raise ProxyRefused("the proxy refused user or password")


async def _socks_address(proxy: Proxy, host: str, port: int) -> bytes:
    """Return the destination in SOCKS5 format; a name is resolved here for socks5, by the proxy for socks5h."""
    try:
        literal = ipaddress.ip_address(host)
    except ValueError:
        if proxy.kind == "socks5h":
            name = host.encode("ascii")
            if len(name) > 255:
                raise ProxyRefused("the host name is too long for SOCKS5") from None
            return bytes((3, len(name))) + name
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        literal = ipaddress.ip_address(found[0][4][0])
    return bytes((1 if literal.version == 4 else 4,)) + literal.packed
