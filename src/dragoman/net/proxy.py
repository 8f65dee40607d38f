"""A proxy's URL and a destination come in; a transport that leads through the proxy to it goes out."""

import asyncio
import base64
import ipaddress
import socket
from functools import lru_cache
from typing import Literal, cast
from urllib.parse import unquote, urlsplit

import msgspec

Kind = Literal["http", "socks5", "socks5h"]

_PORTS: dict[str, int] = {"http": 80, "socks5": 1080, "socks5h": 1080}
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
    """The proxy would not lead us on; the message holds no secret."""


class Proxy(msgspec.Struct, frozen=True):
    kind: Kind
    host: str
    port: int
    user: str | None
    password: str

    @property
    def where(self) -> str:
        return f"proxy [{self.host}]:{self.port}" if ":" in self.host else f"proxy {self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"Proxy({self.kind}, {self.where})"

    def forwards(self, scheme: str) -> bool:
        """Whether requests are sent to the proxy itself, with the whole URL in the request line."""
        return self.kind == "http" and scheme == "http"

    def authorization(self) -> bytes | None:
        """The proxy-authorization header's value."""
        if self.user is None:
            return None
        return b"Basic " + base64.b64encode(f"{self.user}:{self.password}".encode())


@lru_cache(maxsize=64)
def parse_proxy(url: str) -> Proxy:
    """Take a proxy's URL apart; ValueError, which never quotes it, if it is none."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("a proxy must be http://, socks5:// or socks5h:// with a host")
    try:
        port = parts.port or _PORTS[parts.scheme]
    except ValueError:
        raise ValueError("a proxy's port must be a number below 65536") from None
    user = None if parts.username is None else unquote(parts.username)
    password = unquote(parts.password or "")
    if max(len((user or "").encode()), len(password.encode())) > 255:
        raise ValueError("a proxy's user and password must be at most 255 bytes each")
    return Proxy(cast(Kind, parts.scheme), parts.hostname, port, user, password)


async def open_tunnel(proxy: Proxy, host: str, port: int) -> asyncio.Transport:
    """A connection through the proxy, on which the next byte is the destination's."""
    loop = asyncio.get_running_loop()
    _, talk = await loop.create_connection(_Talk, proxy.host, proxy.port)
    try:
        if proxy.kind == "http":
            await _ask_http(talk, proxy, host, port)
        else:
            await _ask_socks(talk, proxy, host, port)
        return talk.hand_over()
    except BaseException:
        talk.transport.abort()
        raise


class _Talk(asyncio.Protocol):
    """The few questions and answers before the proxy leads on."""

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

    async def _more(self) -> None:
        if self._closed:
            raise ProxyRefused("the proxy closed the connection")
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    async def exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            await self._more()
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    async def until(self, mark: bytes) -> bytes:
        start = 0
        while (found := self._buffer.find(mark, start)) < 0:
            if len(self._buffer) > _REPLY_LIMIT:
                raise ProxyRefused("the proxy's reply is too large")
            start = max(0, len(self._buffer) - len(mark) + 1)
            await self._more()
        return await self.exactly(found + len(mark))

    def hand_over(self) -> asyncio.Transport:
        if self._closed:
            raise ProxyRefused("the proxy closed the connection")
        if self._buffer:
            raise ProxyRefused("the proxy sent bytes before the destination was asked anything")
        return self.transport


async def _ask_http(talk: _Talk, proxy: Proxy, host: str, port: int) -> None:
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {authority} HTTP/1.1".encode(), f"host: {authority}".encode()]
    secret = proxy.authorization()
    if secret is not None:
        lines.append(b"proxy-authorization: " + secret)
    talk.transport.write(b"\r\n".join(lines) + b"\r\n\r\n")
    reply = await talk.until(b"\r\n\r\n")
    version, _, rest = reply.partition(b" ")
    if not version.startswith(b"HTTP/1."):
        raise ProxyRefused("the proxy does not speak HTTP/1")
    status = rest[:3]
    if status == b"407":
        raise ProxyRefused("the proxy asks for other credentials (407)")
    if not (status.isdigit() and status.startswith(b"2")):
        raise ProxyRefused(f"the proxy answered {status.decode('latin-1')!r} to CONNECT")


async def _ask_socks(talk: _Talk, proxy: Proxy, host: str, port: int) -> None:
    await _socks_login(talk, proxy)
    address = await _socks_address(proxy, host, port)
    talk.transport.write(b"\x05\x01\x00" + address + port.to_bytes(2, "big"))
    version, reply, _, kind = await talk.exactly(4)
    if version != 5:
        raise ProxyRefused("the proxy does not speak SOCKS5")
    if reply != 0:
        raise ProxyRefused(f"the proxy says: {_SOCKS_ERRORS.get(reply, f'error {reply}')}")
    match kind:
        case 1:
            await talk.exactly(4 + 2)
        case 3:
            await talk.exactly((await talk.exactly(1))[0] + 2)
        case 4:
            await talk.exactly(16 + 2)
        case _:
            raise ProxyRefused("the proxy's SOCKS5 reply is malformed")


async def _socks_login(talk: _Talk, proxy: Proxy) -> None:
    talk.transport.write(b"\x05\x01\x00" if proxy.user is None else b"\x05\x02\x00\x02")
    version, method = await talk.exactly(2)
    if version != 5:
        raise ProxyRefused("the proxy does not speak SOCKS5")
    if method == 0:
        return
    if method != 2 or proxy.user is None:
        raise ProxyRefused("the proxy asks for other credentials")
    user, password = proxy.user.encode(), proxy.password.encode()
    talk.transport.write(bytes((1, len(user))) + user + bytes((len(password),)) + password)
    _, refused = await talk.exactly(2)
    if refused:
        raise ProxyRefused("the proxy refused user or password")


async def _socks_address(proxy: Proxy, host: str, port: int) -> bytes:
    """The destination as SOCKS5 writes it; a name is resolved here for socks5, by the proxy for socks5h."""
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
