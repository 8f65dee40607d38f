"""The clients of the survival cases: plain sockets that send prepared bytes, and one stream that notes every delay."""

import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from bench.survival.gateway import KEY
from bench.survival.upstream import PACE_S

PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "count": "/v1/messages/count_tokens",
    "gemini": "/v1beta/models/chat/ok:generateContent",
}
METRICS = (
    f"GET /metrics HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n\r\n".encode()
)
START_S = 60.0
EVENT_END = b"\n\n"


def request(kind: str, body: bytes, *fields: str) -> bytes:
    lines = [f"POST {PATHS[kind]} HTTP/1.1", "host: localhost", "content-type: application/json", *fields]
    lines += [f"authorization: Bearer {KEY}", f"content-length: {len(body)}", "connection: close", "", ""]
    return "\r\n".join(lines).encode() + body


def connect(
    port: int, timeout_s: float = 180.0, receive_bytes: int | None = None, source: str | None = None
) -> socket.socket:
    sock = socket.socket()
    sock.settimeout(timeout_s)
    if source is not None:
        sock.bind((source, 0))
    if receive_bytes is not None:  # what the kernel takes in for a reader that has stopped
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.connect(("127.0.0.1", port))
    return sock


def ask(port: int, data: bytes) -> tuple[int, int]:
    """Return the status of the answer and how many bytes came; status 0 where none did."""
    status, size = 0, 0
    try:
        with connect(port) as sock:
            sock.sendall(data)
            while piece := sock.recv(1 << 20):
                status = status or int(piece[9:12])
                size += len(piece)
    except OSError:
        pass
    return status, size


def ask_all(port: int, requests: Sequence[bytes], at_once: int) -> list[int]:
    with ThreadPoolExecutor(at_once) as pool:
        return [status for status, _ in pool.map(lambda data: ask(port, data), requests)]


class Pulse:
    """Another client's stream of one event every 10 ms; `delays` says how late each event came."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._arrivals: list[float] = []
        self._marks: list[int] = []
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        body = (
            b'{"model": "chat/pace", "stream": true, "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}'
        )
        self._sock = connect(self._port)
        self._sock.sendall(request("messages", body))
        self._thread.start()
        patience = time.monotonic() + START_S
        while len(self._arrivals) < 50:
            if time.monotonic() > patience:
                raise TimeoutError("the stream beside the case has not begun")
            time.sleep(0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sock.close()

    def mark(self) -> None:
        """Begin or end the stretch that is measured."""
        self._marks.append(len(self._arrivals))

    def delays(self) -> list[float]:
        """Return how many seconds each event of the stretch came after it was due."""
        offsets = [arrival - number * PACE_S for number, arrival in enumerate(self._arrivals)]
        start, end = self._marks
        best = min(offsets[:start])
        return [offset - best for offset in offsets[start:end]]

    def _read(self) -> None:
        try:
            while piece := self._sock.recv(1 << 16):
                self._arrivals += [time.perf_counter()] * piece.count(EVENT_END)
        except OSError:
            return
