"""A status and header fields in, the bytes of a reply head out, with no way to break out of a line."""

import logging
from collections.abc import Sequence
from http import HTTPStatus

from dragoman.net.headers import Header

_log = logging.getLogger(__name__)

# Framing and the life of the connection are the transport's own business.
_OWN = frozenset({b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"trailer"})
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii") for status in HTTPStatus}

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def reply_head(status: int, fields: Sequence[Header], framing: bytes) -> bytes:
    """`framing` is the finished lines that the transport adds."""
    lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d Status\r\n" % status]
    lines += [b"%b: %b\r\n" % field for field in fields if field[0] not in _OWN]
    block = b"".join(lines)
    if block.count(b"\n") != len(lines) or block.count(b"\r") != len(lines) or b"\0" in block:
        return reply_head(status, [field for field in fields if _is_clean(field)], framing)
    return block + framing + b"\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def last_chunk(trailers: Sequence[Header]) -> bytes:
    """The end of a chunked reply, with what is known of it only then."""
    return b"0\r\n" + b"".join(b"%b: %b\r\n" % field for field in trailers if _is_clean(field)) + b"\r\n"


def _is_clean(field: Header) -> bool:
    name, value = field
    if any(forbidden in part for part in field for forbidden in (b"\r", b"\n", b"\0")):
        _log.error("reply header %r dropped: a line break or NUL in its %d bytes", name[:64], len(value))
        return False
    return True
