"""Read the body of a call, decompress it, and find what routing needs of it."""

from functools import partial
from typing import TYPE_CHECKING

from dragoman.config.settings import ServerSettings
from dragoman.net.body_threads import SCANNED_BYTES, run_off_loop
from dragoman.net.encoding import decompress
from dragoman.net.errors import InvalidEncoding, SizeLimitExceeded
from dragoman.proxy.call import Call
from dragoman.proxy.runtime import Runtime
from dragoman.translate.framing.jsonscan import exceeds_value_count
from dragoman.translate.hub.failure import Failure, Kind, RequestError

if TYPE_CHECKING:  # imported when such a request comes
    from dragoman.proxy.relay import RelayedCall


async def read_body(call: Call, runtime: Runtime) -> None:
    """Give a call its body; raises RequestError, or as `HttpRequest.body` does.

    After the body's last byte, a client that leaves is only noted until `allow_leaving`.
    """
    server, http = runtime.config.server, call.http
    body = http.arrived_body
    if body is None or call.record.recording is not None or http.headers.get(b"content-encoding"):
        body = await _read_whole(call, server)
    most = server.max_body_values
    if len(body) > most and await run_off_loop(len(body), partial(exceeds_value_count, body, most)):
        message = f"The body holds more than {most} JSON values (server.max_body_values): shorten the conversation."
        raise RequestError(Failure(Kind.TOO_LARGE, message))
    if len(body) <= SCANNED_BYTES:
        body_protocol = call.take_body(body)
    else:  # it looks through the body for the model
        body_protocol = await run_off_loop(len(body), partial(call.take_body, body))
    other = runtime.protocols[body_protocol].client if body_protocol else None
    if other is not None:
        call.take_parser(other.parse)


async def read_relayed_body(call: "RelayedCall", runtime: Runtime) -> None:
    """Give a relayed call its body, a form as far as its model; raises as `read_body` does."""
    if call.is_form:
        await call.begin_form()
    else:
        call.take_json(await _read_whole(call, runtime.config.server))


async def _read_whole(call: Call, server: ServerSettings) -> bytes:
    request, recording = call.http, call.record.recording
    body = request.arrived_body
    if body is None:
        body = await request.body()
    encoding = request.headers.get(b"content-encoding")
    if encoding:
        # However small it is packed, it may unpack to the limit.
        limit = server.max_body_bytes
        body = await run_off_loop(limit, partial(_unpack, encoding, body, limit))
        request.buffered.hold(len(body))
    if recording is not None:
        recording.record_body(body)
    return body


def _unpack(encoding: bytes, body: bytes, limit: int) -> bytes:
    try:
        return decompress(encoding, body, limit)
    except SizeLimitExceeded:
        message = f"The decompressed body exceeds the limit of {limit} bytes (server.max_body_mb)."
        raise RequestError(Failure(Kind.TOO_LARGE, message)) from None
    except InvalidEncoding as bad:
        raise RequestError(Failure(Kind.BAD_REQUEST, f"The body cannot be decompressed: {bad}")) from None
