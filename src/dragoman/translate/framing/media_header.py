"""Read the header of a media file: its kind, the size of an image, the duration of a recording, the pages of a PDF.

Only headers are read, so the cost does not grow with the file. No input makes these functions raise.
"""

import re
from enum import Enum

_PNG = b"\x89PNG\r\n\x1a\n"
_GIFS = (b"GIF87a", b"GIF89a")
_AUDIO = (b"ID3", b"OggS", b"fLaC", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"\xff\xf1", b"\xff\xf9")
# Markers of a JPEG that give its size: every start of frame.
_FRAMES = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)))
_LINEARIZED = re.compile(rb"/Linearized\b.{0,200}?/N\s+(\d{1,6})\b", re.DOTALL)
_PAGE_TREE = re.compile(rb"/Count\s+(\d{1,6})\b")

Size = tuple[int, int]


class Media(Enum):
    IMAGE = "image"
    PDF = "pdf"
    AUDIO = "audio"
    UNKNOWN = "unknown"


def media_kind(head: bytes) -> Media:
    """Return the kind by the file's magic bytes."""
    if head.startswith((_PNG, *_GIFS, b"\xff\xd8\xff")) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP"):
        return Media.IMAGE
    if head.startswith(b"%PDF"):
        return Media.PDF
    if head.startswith(_AUDIO) or (head[:4] == b"RIFF" and head[8:12] == b"WAVE") or head[4:8] == b"ftyp":
        return Media.AUDIO
    return Media.UNKNOWN


def image_size(head: bytes) -> Size | None:
    """Return width and height in pixels of a PNG, JPEG, GIF or WebP; None if they cannot be determined."""
    size: Size | None = None
    if head.startswith(_PNG):
        size = (_read_big_endian(head, 16, 4), _read_big_endian(head, 20, 4))
    elif head.startswith(_GIFS):
        size = (_read_little_endian(head, 6, 2), _read_little_endian(head, 8, 2))
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        size = _webp_size(head)
    elif head.startswith(b"\xff\xd8"):
        size = _jpeg_size(head)
    return size if size is not None and min(size) > 0 else None


def wav_seconds(head: bytes, size: int) -> float | None:
    """Return the duration of a WAV file of `size` bytes; None if it is not a WAV file or lacks the rate."""
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE" or head[12:16] != b"fmt ":
        return None
    bytes_per_second = _read_little_endian(head, 28, 4)
    return size / bytes_per_second if bytes_per_second > 0 else None


def pdf_pages(head: bytes, tail: bytes) -> int | None:
    """Return the number of pages, from the beginning or the end of a PDF; None if neither contains it."""
    linearized = _LINEARIZED.search(head[:2048])
    if linearized is not None:
        return int(linearized[1])
    counts = [int(count) for part in (head, tail) for count in _PAGE_TREE.findall(part)]
    return max(counts, default=None)


def _jpeg_size(head: bytes) -> Size | None:
    at = 2
    while at + 9 <= len(head):
        if head[at] != 0xFF:
            return None
        marker = head[at + 1]
        if marker in _FRAMES:
            return _read_big_endian(head, at + 7, 2), _read_big_endian(head, at + 5, 2)
        if marker == 0xFF:  # fill
            at += 1
        elif 0xD0 <= marker <= 0xD8 or marker == 0x01:  # no segment follows
            at += 2
        else:
            at += 2 + max(2, _read_big_endian(head, at + 2, 2))
    return None


def _webp_size(head: bytes) -> Size | None:
    match head[12:16]:
        case b"VP8X":
            return 1 + _read_little_endian(head, 24, 3), 1 + _read_little_endian(head, 27, 3)
        case b"VP8L" if len(head) >= 25:
            bits = _read_little_endian(head, 21, 4)
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            return _read_little_endian(head, 26, 2) & 0x3FFF, _read_little_endian(head, 28, 2) & 0x3FFF
    return None


def _read_big_endian(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "big")


def _read_little_endian(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")
