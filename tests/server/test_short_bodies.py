"""Bodies that are never long: refused as soon as they are known to be longer, and not waited for."""

from dragoman.net.http_request import HttpRequest
from dragoman.net.socket_sink import SocketSink
from dragoman.server.routes import read_short_body
from dragoman.translate.hub.failure import RequestError
from net.raw_client import connect_raw, serving

HEAD = b"POST /console/session HTTP/1.1\r\nHost: gateway\r\n"
ROWS = [
    (b"content-length: 10\r\n\r\n0123456789", b"0123456789"),
    (b"content-length: 0\r\n\r\n", b""),
    (b"transfer-encoding: chunked\r\n\r\n5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n", b"0123456789"),
    (b"content-length: 11\r\n\r\n", b"too_large"),  # nothing of it was sent
    (b"content-length: 30000000\r\nexpect: 100-continue\r\n\r\n", b"too_large"),
    (b"transfer-encoding: chunked\r\n\r\nb\r\n01234567890\r\n", b"too_large"),  # more was to come
    (b"content-length: 10\r\n\r\n01234", b"request_timeout"),
    (b"transfer-encoding: chunked\r\n\r\n5\r\n01234\r\n", b"request_timeout"),
]


async def answer(request: HttpRequest, sink: SocketSink) -> None:
    timeout_s = 0.05 if request.headers.get(b"x-ends") == b"never" else 60.0
    try:
        sink.respond(200, [], await read_short_body(request, 10, timeout_s))
    except RequestError as refused:
        sink.respond(400, [], refused.failure.kind.value.encode())


async def test_a_short_body_is_read_and_a_long_or_late_one_is_not_waited_for() -> None:
    async with serving(answer) as server:
        for rest, expected in ROWS:
            ends = b"x-ends: never\r\n" if expected == b"request_timeout" else b""
            async with connect_raw(server) as client:
                client.send(HEAD + ends + rest)
                assert (await client.reply()).body == expected, rest
