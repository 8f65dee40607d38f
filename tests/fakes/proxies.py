"""Small HTTP, HTTPS and SOCKS5 proxies on the loopback that record their requests."""

import asyncio
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class FakeProxy:
    """Connects everything to 127.0.0.1, at the requested port."""

    def __init__(
        self, serve: Callable[["FakeProxy"], Serve], *, secret: bytes | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._tls = tls
        self.requests: list[bytes] = []
        self.secret = secret
        self._serve = serve(self)
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._welcome, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            return
        finally:
            writer.close()


def http(proxy: FakeProxy) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        proxy.requests.append(head)
        method, target, _ = head.split(b" ", 2)
        if proxy.secret is not None and b"proxy-authorization: " + proxy.secret + b"\r\n" not in head:
            writer.write(b"HTTP/1.1 407 Who are you\r\ncontent-length: 0\r\n\r\n")
        elif method == b"CONNECT":
            writer.write(b"HTTP/1.1 200 Go on\r\n\r\n")
            await lead(reader, writer, int(target.rpartition(b":")[2]), b"")
        else:
            authority = target.removeprefix(b"http://").partition(b"/")[0]
            await lead(reader, writer, int(authority.rpartition(b":")[2]), head)

    return serve


def socks5(proxy: FakeProxy) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        methods = await reader.readexactly((await reader.readexactly(2))[1])
        method = 0 if proxy.secret is None else 2
        writer.write(bytes((5, method if method in methods else 255)))
        if method not in methods:
            return
        if proxy.secret is not None:
            user = await reader.readexactly((await reader.readexactly(2))[1])
            password = await reader.readexactly((await reader.readexactly(1))[0])
            welcome = user + b":" + password == proxy.secret
            writer.write(b"\x01\x00" if welcome else b"\x01\x01")
            if not welcome:
                return
        kind = (await reader.readexactly(4))[3]
        proxy.requests.append(await _address(reader, kind))
        port = int.from_bytes(await reader.readexactly(2), "big")
        if proxy.requests[-1] == b"forbidden.test":
            writer.write(b"\x05\x02\x00\x01" + bytes(6))
            return
        writer.write(b"\x05\x00\x00\x03\x04fake" + bytes(2))
        await lead(reader, writer, port, b"")

    return serve


async def _address(reader: asyncio.StreamReader, kind: int) -> bytes:
    if kind == 3:
        return await reader.readexactly((await reader.readexactly(1))[0])
    return str(ipaddress.ip_address(await reader.readexactly(4 if kind == 1 else 16))).encode()


async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, first: bytes) -> None:
    there, here = await asyncio.open_connection("127.0.0.1", port)
    here.write(first)
    try:
        await asyncio.gather(_copy(reader, here), _copy(there, writer))
    finally:
        here.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()
    sink.close()
