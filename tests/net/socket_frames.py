"""The bytes of WebSocket frames: those that a client sends, right or wrong, and those that a server has sent."""

import struct

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
LAST = 0x80
MASKED = 0x80
KEY = b"\x0f\xf0\x55\xaa"
HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: gateway\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def frame(opcode: int, payload: bytes = b"", *, bits: int = LAST) -> bytes:
    """Return a masked frame; `bits` are those above the opcode."""
    head = struct.pack("!B", bits | opcode)
    if len(payload) < 126:
        head += struct.pack("!B", MASKED | len(payload))
    elif len(payload) < 1 << 16:
        head += struct.pack("!BH", MASKED | 126, len(payload))
    else:
        head += struct.pack("!BQ", MASKED | 127, len(payload))
    key = KEY * (len(payload) // 4 + 1)
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(key[: len(payload)], "big")
    return head + KEY + masked.to_bytes(len(payload), "big")


def close(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, struct.pack("!H", code) + reason)


def read_frames(data: bytes) -> list[tuple[int, bytes]]:
    """Return opcode and payload of each whole frame of a server, which masks none of them."""
    found, at = [], 0
    while at < len(data):
        first, length = data[at], data[at + 1]
        at += 2
        assert first & LAST
        assert length < MASKED
        if length >= 126:
            size = 2 if length == 126 else 8
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        found.append((first & 0x0F, data[at : at + length]))
        assert len(found[-1][1]) == length
        at += length
    return found


def close_code(data: bytes) -> int:
    """Return the code of the close frame that a server has sent last."""
    opcode, payload = read_frames(data)[-1]
    assert opcode == CLOSE
    return int.from_bytes(payload[:2], "big")
