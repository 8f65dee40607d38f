"""A client that sends raw bytes, and a server on the loopback to send them to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import cast

import msgspec

from dragoman.net.server import ConnectionLimits, Handler, Header, HttpRequest, Server, SocketSink

PATIENCE_S = 60.0
PATIENT = ConnectionLimits(
    header_timeout_s=PATIENCE_S,
    body_gap_timeout_s=PATIENCE_S,
    keep_alive_s=PATIENCE_S,
    unauthenticated_keep_alive_s=PATIENCE_S,
    body_timeout_s=PATIENCE_S,
    write_idle_timeout_s=PATIENCE_S,
    linger_s=PATIENCE_S,
)
GET = b"GET /first HTTP/1.1\r\nHost: gateway\r\n\r\n"


class Received(msgspec.Struct, frozen=True):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


def render(path: str, status: int, message: str) -> tuple[list[Header], bytes]:
    return [(b"content-type", b"text/plain"), (b"x-path", path.encode("latin-1"))], message.encode()


@contextlib.asynccontextmanager
async def serving(handler: Handler, limits: ConnectionLimits = PATIENT) -> AsyncIterator[Server]:
    server = Server(handler, limits, render)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.close()


def limits(**changes: float) -> ConnectionLimits:
    return msgspec.structs.replace(PATIENT, **changes)


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def pause_reading(self) -> None:
        """Let the server's bytes pile up in the socket."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    @property
    def _transport(self) -> asyncio.Transport:
        return cast(asyncio.Transport, self.writer.transport)  # uvloop's has its methods, but is no subclass

    async def send_cut(self, data: bytes, size: int) -> None:
        for start in range(0, len(data), size):
            self.writer.write(data[start : start + size])
            await asyncio.sleep(0)

    async def head(self) -> tuple[int, dict[bytes, bytes]]:
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        status_line, *lines = raw[:-4].split(b"\r\n")
        fields = dict(line.split(b": ", 1) for line in lines)
        assert len(fields) == len(lines), "a reply header came twice"
        return int(status_line.split(b" ")[1]), fields

    async def reply(self, *, bodiless: bool = False) -> Received:
        status, headers = await self.head()
        if bodiless or status in (100, 204, 304):
            return Received(status, headers, b"")
        if b"content-length" in headers:
            body = await asyncio.wait_for(self.reader.readexactly(int(headers[b"content-length"])), PATIENCE_S)
        elif headers.get(b"transfer-encoding") == b"chunked":
            body = b"".join([piece async for piece in self.chunks()])
        else:
            body = await self.rest()
        return Received(status, headers, body)

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            size = int(await asyncio.wait_for(self.reader.readuntil(b"\r\n"), PATIENCE_S), 16)
            piece = await asyncio.wait_for(self.reader.readexactly(size + 2), PATIENCE_S)
            if size == 0:
                return
            yield piece[:-2]

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), PATIENCE_S)

    async def wait_closed(self) -> bool:
        """Waits for the end of the connection; False if the server sends anything before."""
        try:
            return await self.rest() == b""
        except ConnectionResetError:
            return True


@contextlib.asynccontextmanager
async def connect_raw(server: Server) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


class Witness:
    """A handler that keeps its requests and answers with them."""

    def __init__(self) -> None:
        self.seen: list[HttpRequest] = []
        self.bodies: list[bytes] = []

    async def __call__(self, request: HttpRequest, sink: SocketSink) -> None:
        self.seen.append(request)
        self.bodies.append(await request.body())
        sink.respond(200, [(b"x-saw", request.raw_path)], request.path.encode())

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.seen]
