"""The WebSocket clients of the survival cases: floods of tiny frames, and contexts that a connection remembers."""

import json
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from bench.survival.clients import connect
from bench.survival.gateway import KEY, Gateway

CONTINUATION, TEXT, CLOSE, PING = 0x0, 0x1, 0x8, 0x9
LAST, MASKED = 0x80, 0x80
NO_MASK = b"\0\0\0\0"  # a mask that changes nothing
HANDSHAKE = (
    "GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    f"authorization: Bearer {KEY}\r\n\r\n"
)
LANES, LANE_BYTES = 32, 8_000_000
CHAIN, CHAIN_BYTES = 40, 10_000_000
CONNECTIONS, CONNECTION_BYTES = 140, 8_000_000
FLOOD_S = 10.0  # for which a flood that is not stopped is kept up


def frame_head(opcode: int, length: int, bits: int = LAST) -> bytes:
    if length < 126:
        return struct.pack("!BB", bits | opcode, MASKED | length) + NO_MASK
    if length < 1 << 16:
        return struct.pack("!BBH", bits | opcode, MASKED | 126, length) + NO_MASK
    return struct.pack("!BBQ", bits | opcode, MASKED | 127, length) + NO_MASK


def frame(opcode: int, payload: bytes = b"", bits: int = LAST) -> bytes:
    return frame_head(opcode, len(payload), bits) + payload


def make_input(size: int) -> bytes:
    """The end of a request; made before the measurement, because it would delay the stream that is measured."""
    return b', "input": "' + b"z" * size + b'"}'


class WebSocketClient:
    """One connection, without a library that would limit what is sent."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._received = bytearray()
        self._at = 0  # where the next frame begins

    def take(self) -> tuple[int, bytes] | None:
        """Return opcode and payload of the next frame; None at the end of the connection."""
        head = self._read(2)
        if head is None:
            return None
        length = head[1]
        if length >= 126:
            longer = self._read(2 if length == 126 else 8)
            length = int.from_bytes(longer or b"", "big")
        payload = self._read(length)
        return None if payload is None else (head[0] & 0x0F, payload)

    def _read(self, size: int) -> bytes | None:
        while len(self._received) - self._at < size:
            if not self.receive():
                return None
        self._at += size
        return bytes(self._received[self._at - size : self._at])

    def receive(self) -> bool:
        """Read what has come; return False at the end of the connection."""
        try:
            piece = self.sock.recv(1 << 16)
        except ConnectionError:
            return False
        self._received += piece
        return bool(piece)

    def flood(self, data: bytes, seconds: float) -> int:
        """Send what the other side takes in so many seconds, and read what it answers; return how much was sent."""
        view, sent, end = memoryview(data), 0, time.monotonic() + seconds
        while sent < len(data) and time.monotonic() < end:
            readable, writable, _ = select.select([self.sock], [self.sock], [], 0.1)
            if readable and not self.receive():
                return len(data)  # it has closed the connection, and needs no more to say why
            if writable:
                try:
                    sent += self.sock.send(view[sent : sent + (1 << 16)], socket.MSG_DONTWAIT)
                except BlockingIOError:
                    continue
                except ConnectionError:
                    return len(data)
        return sent

    def ask(self, end: bytes, **fields: object) -> dict[str, object]:
        """Send a context that no model answers, with this end; return the last event, or the error."""
        request = {"type": "response.create", "generate": False, "model": "chat/ok", "store": False, **fields}
        start = json.dumps(request).encode()[:-1]
        self.sock.sendall(frame_head(TEXT, len(start) + len(end)) + start)
        self.sock.sendall(end)
        while taken := self.take():
            event: dict[str, object] = json.loads(taken[1]) if taken[0] == TEXT else {}
            if event.get("type") in ("response.completed", "error"):
                return event
        return {}


@contextmanager
def open_socket(gateway: Gateway) -> Iterator[WebSocketClient]:
    with connect(gateway.port) as sock:
        sock.sendall(HANDSHAKE.encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += sock.recv(1)
        yield WebSocketClient(sock)


def flood_socket(opcode: int, count: int) -> Callable[[Gateway], str]:
    """Send so many frames as fast as the gateway takes them, and read why it closes the connection."""
    if opcode == CONTINUATION:
        data = frame(TEXT, b"x", bits=0) + frame(CONTINUATION, b"x", bits=0) * (count - 1)
    else:
        data = frame(opcode) * count

    def run(gateway: Gateway) -> str:
        with open_socket(gateway) as client:
            sent = client.flood(data, FLOOD_S)
            if sent < len(data):
                return f"{sent * 100 // len(data)} % taken in {FLOOD_S:g} s"
            with suppress(OSError):
                client.sock.shutdown(socket.SHUT_WR)
            while taken := client.take():
                if taken[0] == CLOSE:
                    return f"closed with {int.from_bytes(taken[1][:2], 'big')}"
        return "answered to the end"

    return run


def describe(events: list[dict[str, object]]) -> str:
    answered = sum(event.get("type") == "response.completed" for event in events)
    refused = [event.get("status") for event in events if event.get("type") == "error"]
    return f"{answered} answered, {len(refused)} x {', '.join(sorted(set(map(str, refused))))}".removesuffix(", 0 x ")


def fill_lanes() -> Callable[[Gateway], str]:
    end = make_input(LANE_BYTES)

    def run(gateway: Gateway) -> str:
        with open_socket(gateway) as client:
            return describe([client.ask(end, stream_id=f"lane-{number}") for number in range(LANES)])

    return run


def chain_contexts() -> Callable[[Gateway], str]:
    end = make_input(CHAIN_BYTES)

    def run(gateway: Gateway) -> str:
        events: list[dict[str, object]] = []
        with open_socket(gateway) as client:
            previous: object = None
            for _ in range(CHAIN):
                events.append(client.ask(end, previous_response_id=previous))
                answer = events[-1].get("response")
                previous = answer.get("id") if isinstance(answer, dict) else previous
        return describe(events)

    return run


def open_one_by_one() -> Callable[[Gateway], str]:
    end = make_input(CONNECTION_BYTES)

    def run(gateway: Gateway) -> str:
        events: list[dict[str, object]] = []
        for _ in range(CONNECTIONS):
            with open_socket(gateway) as client:
                events.append(client.ask(end))
        return describe(events)

    return run
