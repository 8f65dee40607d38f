"""The clients of the survival cases: plain sockets that send prepared bytes."""

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from bench.survival.gateway import KEY

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
