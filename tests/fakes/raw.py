"""A server that breaks the rules: each connection plays a script of bytes, pauses, cuts and resets."""

import asyncio
import re
import socket
import ssl
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self


@dataclass(frozen=True)
class Request:
    """Wait until a whole request has come."""


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Until:
    """Wait until the test sets the event."""

    event: asyncio.Event


@dataclass(frozen=True)
class Reset:
    """Close with RST."""


@dataclass(frozen=True)
class HalfClose:
    """Send FIN, and keep reading."""


@dataclass(frozen=True)
class Hold:
    """Keep the connection open until the other side closes it."""


@dataclass(frozen=True)
class Flood:
    """Send this for ever."""

    data: bytes


Step = bytes | Request | Pause | Until | Reset | HalfClose | Hold | Flood
Script = tuple[Step, ...]


def bytewise(data: bytes, pause_s: float = 0.0005) -> Iterable[Step]:
    """Every byte in a packet of its own."""
    for at in range(len(data)):
        yield data[at : at + 1]
        yield Pause(pause_s)


@dataclass
class Visit:
    """One connection as the server saw it."""

    received: bytearray = field(default_factory=bytearray)
    requests: list[bytes] = field(default_factory=list)
    sent: int = 0
    alpn: str | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class RawServer:
    """Plays one script per connection, the last one for all that follow; at its end a connection is closed."""

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        self.scripts = scripts
        self.visits: list[Visit] = []
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._welcome, "127.0.0.1", 0, ssl=self._tls, backlog=2048)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self.port}"

    @property
    def requests(self) -> list[bytes]:
        return [request for visit in self.visits for request in visit.requests]

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self.scripts[min(len(self.visits), len(self.scripts) - 1)]
        visit = Visit()
        self.visits.append(visit)
        tls = writer.get_extra_info("ssl_object")
        visit.alpn = tls.selected_alpn_protocol() if tls else None
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await _play(script, visit, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            return
        finally:
            visit.gone.set()
            writer.close()


async def _play(script: Script, visit: Visit, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for step in script:
        match step:
            case bytes():
                await _send(step, visit, writer)
            case Request():
                visit.requests.append(await _request(reader, visit))
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Until(event):
                await event.wait()
            case Reset():
                reset(writer)
                return
            case HalfClose():
                writer.write_eof()
            case Hold():
                while data := await reader.read(1 << 16):
                    visit.received += data
                return
            case Flood(data):
                while True:
                    await _send(data, visit, writer)


async def _send(data: bytes, visit: Visit, writer: asyncio.StreamWriter) -> None:
    # uvloop has an exception of its own for writing to a closed transport.
    if writer.is_closing():
        raise ConnectionResetError
    writer.write(data)
    visit.sent += len(data)
    await writer.drain()


async def _request(reader: asyncio.StreamReader, visit: Visit) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    request = head + await reader.readexactly(int(length[1]) if length else 0)
    visit.received += request
    return request


def reset(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
