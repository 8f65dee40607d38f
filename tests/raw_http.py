"""HTTP/1.1 over a plain socket: exactly the given bytes are sent, exactly the received bytes returned."""

import socket
from dataclasses import dataclass

from gateway import KEY


@dataclass
class Answered:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def get(self, name: str) -> str | None:
        return next((value for field, value in self.headers if field == name), None)


def request_bytes(path: str, body: bytes, *fields: str, method: str = "POST", key: str | None = KEY) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json", *fields]
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    if method not in ("GET", "HEAD"):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def dial(port: int, timeout_s: float = 60.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=timeout_s)


def ask(port: int, data: bytes, method: str = "POST") -> Answered:
    """One exchange on a connection of its own."""
    with dial(port) as sock:
        sock.sendall(data)
        return read_answer(sock, method)


def read_answer(sock: socket.socket, method: str = "POST") -> Answered:
    with sock.makefile("rb") as file:
        status = int(file.readline().split()[1])
        headers: list[tuple[str, str]] = []
        while (line := file.readline().strip()) != b"":
            name, _, value = line.decode("latin-1").partition(":")
            headers.append((name.lower(), value.strip()))
        fields = dict(headers)
        if method == "HEAD" or status in (204, 304):
            return Answered(status, headers, b"")
        if fields.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(file.readline(), 16):
                body += file.read(size)
                file.readline()
            file.readline()
            return Answered(status, headers, body)
        return Answered(status, headers, file.read(int(fields.get("content-length", "0"))))


def post(port: int, path: str, body: bytes, *fields: str, key: str | None = KEY) -> Answered:
    return ask(port, request_bytes(path, body, *fields, key=key))


def get(port: int, path: str, *fields: str, method: str = "GET", key: str | None = None) -> Answered:
    return ask(port, request_bytes(path, b"", *fields, method=method, key=key), method)
