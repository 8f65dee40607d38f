"""An upstream that sends prepared answers over real sockets and records every request."""

import asyncio
import fcntl
import socket
import struct
import termios
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, repeat
from typing import TypedDict

import msgspec

from fakes.threaded import ThreadedServer
from wire_json import JsonObject


class End(Enum):
    CLEAN = "the body is properly ended"
    CUT = "the connection closes in the middle of the body"
    RESET = "the connection is reset"
    HANG = "nothing more is sent, the connection stays open"


@dataclass(frozen=True)
class Gate:
    """Holds back the bytes of a body from `at` on, and its end, until the event is set."""

    opened: threading.Event
    at: int = 0  # -1: the head is held back, too
    then: "Gate | None" = None  # further on

    async def wait(self, played: int) -> None:
        """Wait until so many bytes may have been sent."""
        while played > self.at and not self.opened.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.002)
        if self.then is not None:
            await self.then.wait(played)


@dataclass(frozen=True)
class Answer:
    body: bytes = b""
    status: int = 200
    content_type: str = "text/event-stream"
    headers: tuple[tuple[str, str], ...] = ()
    cut: int = 0  # bytes per write; 0 = all at once
    floods: bool = False  # after `opening`, the body is repeated until the client disconnects
    opening: bytes = b""
    end: End = End.CLEAN
    pause_s: float = 0.0  # between writes
    delay_s: float = 0.0  # before the head
    chunked: bool = True
    linger_s: float = 0.0  # between the last byte and the end
    headless: bool = False  # not even a status line comes
    signs: int = 0  # signs of life after the head and before the body, each followed by `sign_pause_s`
    sign: bytes = b": alive\n\n"
    sign_pause_s: float = 0.1
    gate: Gate | None = None


class Delivery(TypedDict, total=False):
    """Keywords for an `Answer`: all but its body and their type."""

    status: int
    headers: tuple[tuple[str, str], ...]
    cut: int
    floods: bool
    opening: bytes
    end: End
    pause_s: float
    delay_s: float
    chunked: bool
    linger_s: float
    headless: bool
    signs: int
    sign: bytes
    sign_pause_s: float
    gate: Gate | None


@dataclass
class ReceivedRequest:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    fields: tuple[tuple[str, str], ...] = ()  # the headers as they came, repeated ones too

    @property
    def json(self) -> JsonObject:
        return msgspec.json.decode(self.body, type=JsonObject)


def cuts(answer: Answer) -> Iterable[bytes]:
    size = answer.cut or len(answer.body) or 1
    return (answer.body[at : at + size] for at in range(0, len(answer.body), size))


@dataclass
class FakeUpstream(ThreadedServer):
    """Sends `answers` in order and repeats the last one; or what `choose` returns for a request."""

    answers: list[Answer] = field(default_factory=list)
    choose: Callable[[ReceivedRequest], Answer] | None = None
    intercept: Callable[[ReceivedRequest], Answer | None] | None = (
        None  # comes before `choose` and `answers`; None: as usual
    )
    requests: list[ReceivedRequest] = field(default_factory=list)
    closed: list[float] = field(default_factory=list)  # monotonic times at which a client gave up on an answer
    sent: int = 0
    models: tuple[str, ...] = ()  # what it lists; without any, it has no list
    pages: dict[str, Answer] = field(default_factory=dict)  # what else it has, by path
    keep_alive: bool = True  # whether a connection serves more than one request

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def calls(self) -> list[ReceivedRequest]:
        """Return the requests without those for model lists and for descriptions of models."""
        return [request for request in self.requests if request.method == "POST" and not _asks_about_models(request)]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read(reader)) is not None:
                self.requests.append(request)
                answer = self.intercept(request) if self.intercept is not None else None
                if not await self._play(answer or self._answer(request), reader, writer) or not self.keep_alive:
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            self.closed.append(self._loop.time())
        except asyncio.CancelledError:
            return
        finally:
            writer.close()
        await _drop_traceback(reader, writer)

    def _answer(self, request: ReceivedRequest) -> Answer:
        if _asks_about_models(request):
            return self.pages.get(request.path) or Answer(b"", status=404, content_type="application/json")
        if request.method == "GET":
            return self.pages.get(request.path) or _make_model_list(self.models)
        if self.choose is not None:
            return self.choose(request)
        place = len(self.calls) - 1
        return self.answers[min(place, len(self.answers) - 1)]

    async def _play(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(answer.delay_s)
        if answer.gate is not None:
            await answer.gate.wait(0)
        if answer.headless:
            return await self._end(answer, reader, writer)
        framing = "transfer-encoding: chunked" if answer.chunked else f"content-length: {len(answer.body)}"
        last = () if self.keep_alive else (("connection", "close"),)
        fields = "".join(f"{name}: {value}\r\n" for name, value in (*answer.headers, *last))
        head = f"HTTP/1.1 {answer.status} Status\r\ncontent-type: {answer.content_type}\r\n{fields}{framing}\r\n\r\n"
        writer.write(head.encode())
        for _ in range(answer.signs):
            writer.write(b"%x\r\n%b\r\n" % (len(answer.sign), answer.sign))
            await writer.drain()
            await asyncio.sleep(answer.sign_pause_s)
        played = 0
        for piece in chain((answer.opening or answer.body,), repeat(answer.body)) if answer.floods else cuts(answer):
            played += len(piece)
            if answer.gate is not None:
                await answer.gate.wait(played)
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if answer.chunked else piece)
            await writer.drain()
            self.sent += len(piece)
            await asyncio.sleep(answer.pause_s)
        await asyncio.sleep(answer.linger_s)
        if answer.gate is not None:
            await answer.gate.wait(max(played, answer.gate.at) + 1)
        return await self._end(answer, reader, writer)

    async def _end(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        match answer.end:
            case End.CLEAN:
                writer.write(b"0\r\n\r\n" if answer.chunked else b"")
                await writer.drain()
                return True
            case End.HANG:
                await reader.read()
                self.closed.append(self._loop.time())
            case End.RESET:
                raw = writer.get_extra_info("socket")
                while not writer.is_closing() and _has_undelivered(writer, raw):  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.001)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            case End.CUT:
                await writer.drain()
        return False


async def _drop_traceback(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Break a cycle that would keep bodies: a lost connection keeps its error, whose frames refer to it."""
    if reader.exception() is not None:
        try:
            await writer.wait_closed()
        except OSError as error:
            error.__traceback__ = None


def _has_undelivered(writer: asyncio.StreamWriter, raw: socket.socket) -> bool:
    """Return whether a reset would discard bytes that the other side's system has not received yet."""
    unacknowledged = struct.unpack("i", fcntl.ioctl(raw.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
    return bool(writer.transport.get_write_buffer_size() or unacknowledged)


def _asks_about_models(request: ReceivedRequest) -> bool:
    """Return whether a request goes to the other API of Ollama, LM Studio or llama.cpp."""
    return request.path.startswith(("/api/", "/props"))


def _make_model_list(models: tuple[str, ...]) -> Answer:
    if not models:
        return Answer(b"", status=404, content_type="application/json")
    dated = {"created": 1794700000, "created_at": "2026-11-15T00:00:00Z"}
    data = [{"id": name, "object": "model", "type": "model", "display_name": name, **dated} for name in models]
    body = msgspec.json.encode({"object": "list", "data": data, "has_more": False})
    return Answer(body, content_type="application/json")


async def _read(reader: asyncio.StreamReader) -> ReceivedRequest | None:
    head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
    if not head:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, path, _ = first.split(" ")
    split = (line.partition(":") for line in lines)
    fields = tuple((name.lower(), value.strip()) for name, _, value in split)
    headers = dict(fields)
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return ReceivedRequest(method, path, headers, body, fields)
