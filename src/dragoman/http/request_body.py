"""Read the body of a request, decompressed, and the call that a model request makes."""

from functools import partial

from dragoman.config.settings import Server
from dragoman.flow.call import Call
from dragoman.flow.offload import LARGE_BYTES, run_off_loop
from dragoman.flow.request_record import RequestRecord
from dragoman.flow.runtime import Runtime
from dragoman.framing.jsonscan import exceeds_value_count
from dragoman.http.routes import RoutedRequest
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


async def read_call(request: RoutedRequest, name: str, record: RequestRecord, runtime: Runtime) -> Call:
    """Return the call of a request to the protocol of this name; raises as `read_body` does."""
    exchange = request.exchange
    body, most = await read_body(exchange, record, runtime.config.server), runtime.config.server.max_body_values
    if len(body) > most and await run_off_loop(len(body), partial(exceeds_value_count, body, most)):
        message = f"The body holds more than {most} JSON values (server.max_body_values): shorten the conversation."
        raise RequestError(Failure(Kind.TOO_LARGE, message))
    protocol = runtime.protocols[name]
    assert protocol.client is not None
    written_in = protocol.client.body_protocol(body)
    other = None if written_in is None else runtime.protocols[written_in].client
    parse = None if other is None else other.parse
    if len(body) <= LARGE_BYTES:
        return Call(protocol, body, exchange, request, record, parse)
    # It looks through the body for the model.
    return await run_off_loop(len(body), partial(Call, protocol, body, exchange, request, record, parse))


def _unpack(encoding: bytes, body: bytes, limit: int) -> bytes:
    try:
        return decompress(encoding, body, limit)
    except SizeLimitExceeded:
        message = f"The decompressed body exceeds the limit of {limit} bytes (server.max_body_mb)."
        raise RequestError(Failure(Kind.TOO_LARGE, message)) from None
    except InvalidEncoding as bad:
        raise RequestError(Failure(Kind.BAD_REQUEST, f"The body cannot be decompressed: {bad}")) from None
