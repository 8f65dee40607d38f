"""Small media files with real headers, and padding to any size."""

import struct
import zlib


def png(width: int, height: int, size: int = 0) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return data + bytes(range(256)) * ((max(0, size - len(data)) + 255) // 256)


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(400)


def jpeg(width: int, height: int, preview: int = 0) -> bytes:
    """With a preview of so many bytes before the size."""
    segments = b""
    while preview > 0:
        length = min(preview, 60_000)
        segments += b"\xff\xe1" + struct.pack(">H", length + 2) + bytes(length)
        preview -= length
    frame = b"\xff\xc2" + struct.pack(">HBHHB", 11, 8, height, width, 1) + bytes(300)
    return b"\xff\xd8\xff\xe0" + struct.pack(">H", 16) + bytes(14) + segments + frame


def webp(width: int, height: int, kind: bytes = b"VP8X") -> bytes:
    match kind:
        case b"VP8X":
            body = bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
        case b"VP8L":
            body = b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little")
        case _:
            body = bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", width, height)
    return b"RIFF" + bytes(4) + b"WEBP" + kind + bytes(4) + body + bytes(300)


def wav(seconds: float, bytes_per_second: int = 32_000) -> bytes:
    head = b"RIFF" + bytes(4) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16_000, bytes_per_second, 2, 16)
    return head + b"data" + bytes(4) + bytes(int(seconds * bytes_per_second))


def pdf(pages: int, size: int = 0) -> bytes:
    tree = b"2 0 obj << /Type /Pages /Kids [] /Count %d >> endobj\ntrailer" % pages
    return b"%PDF-1.7\n" + bytes(range(1, 255)) * (size // 254 + 1) + tree
