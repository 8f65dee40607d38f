"""Read the body of a request, decompressed."""

from functools import partial

from dragoman.config.settings import Server
from dragoman.flow.offload import run_off_loop
from dragoman.flow.request_record import RequestRecord
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.net.encoding import decompress
from dragoman.net.errors import InvalidEncoding, SizeLimitExceeded
from dragoman.net.exchange import Exchange


async def read_body(exchange: Exchange, record: RequestRecord, server: Server) -> bytes:
    """Return the whole body; raises RequestError, or as `Exchange.body` does."""
    body = await exchange.body()
    encoding = exchange.headers.get(b"content-encoding")
    if encoding:
        # However small it is packed, it may unpack to the limit.
        limit = server.max_body_bytes
        body = await run_off_loop(limit, partial(_unpack, encoding, body, limit))
        exchange.buffered.hold(len(body))
    if record.recording is not None:
        record.recording.note_body(body)
    return body


def _unpack(encoding: bytes, body: bytes, limit: int) -> bytes:
    try:
        return decompress(encoding, body, limit)
    except SizeLimitExceeded:
        message = f"The decompressed body exceeds the limit of {limit} bytes (server.max_body_mb)."
        raise RequestError(Failure(Kind.TOO_LARGE, message)) from None
    except InvalidEncoding as bad:
        raise RequestError(Failure(Kind.BAD_REQUEST, f"The body cannot be decompressed: {bad}")) from None
