"""What a handler and its client may rely on, from the first byte of a request to the end of its reply."""

import asyncio
import socket

import pytest

from dragoman.net.http_request import HttpRequest
from dragoman.net.inbound import ClientConnection
from dragoman.net.server import BodyTooLarge
from dragoman.net.sink import SinkPhase
from dragoman.net.socket_sink import SocketSink
from fakes.loops import on_both_loops
from net.raw_client import GET, Witness, connect_raw, limits, serving
from waiting import wait_until_async

POST = b"POST /first HTTP/1.1\r\nHost: gateway\r\n"


def get(path: bytes, *fields: bytes) -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\n" + b"".join(f + b"\r\n" for f in (b"Host: gateway", *fields)) + b"\r\n"


async def stream_words(request: HttpRequest, sink: SocketSink) -> None:
    sink.begin(200, [(b"content-type", b"text/event-stream")])
    for word in (b"one", b"two", b"three"):
        await sink.send(word)
    sink.end()


@on_both_loops
async def test_a_connection_serves_one_request_after_the_other() -> None:
    witness = Witness()
    async with serving(witness) as server, connect_raw(server) as client:
        for _ in range(3):
            client.send(POST + b"Content-Length: 4\r\n\r\nbody")
            reply = await client.reply()
            assert (reply.status, reply.body) == (200, b"/first")
            assert b"connection" not in reply.headers
        assert server.connections == 1
    assert witness.bodies == [b"body"] * 3


@on_both_loops
async def test_pipelined_requests_are_answered_in_order_one_at_a_time() -> None:
    running: list[str] = []

    async def slow_first(request: HttpRequest, sink: SocketSink) -> None:
        running.append(request.path)
        assert len(running) == 1
        await asyncio.sleep(0.05 if request.path == "/a" else 0)
        running.clear()
        sink.respond(200, [], request.path.encode() + await request.body())

    async with serving(slow_first) as server, connect_raw(server) as client:
        with_body = POST.replace(b"/first", b"/b") + b"Content-Length: 2\r\n\r\nxy"
        in_chunks = POST.replace(b"/first", b"/c") + b"Transfer-Encoding: chunked\r\n\r\n1\r\nz\r\n0\r\n\r\n"
        client.send(get(b"/a") + with_body + in_chunks + get(b"/d") * 500)
        bodies = [(await client.reply()).body for _ in range(503)]
        assert bodies == [b"/a", b"/bxy", b"/cz"] + [b"/d"] * 500


@on_both_loops
async def test_a_flood_of_pipelined_requests_is_not_read_ahead() -> None:
    async def never(request: HttpRequest, sink: SocketSink) -> None:
        await asyncio.sleep(30)

    async with serving(never) as server, connect_raw(server) as client:
        client.writer.transport.set_write_buffer_limits(high=0)
        client.send(GET)
        flood = GET * 200_000
        client.send(flood)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.writer.drain(), 0.3)


@on_both_loops
async def test_of_a_client_without_a_key_little_is_kept_of_what_follows_a_request() -> None:
    replying = asyncio.Event()

    async def wait(request: HttpRequest, sink: SocketSink) -> None:
        if request.path == "/known":
            request.mark_authenticated("key")
        await replying.wait()
        sink.respond(200, [], b"")

    async with serving(wait) as server, connect_raw(server) as stranger, connect_raw(server) as known:
        following = get(b"/next", b"x-long: " + b"x" * 20_000) * 8
        known.send(get(b"/known"))
        stranger.send(get(b"/stranger"))
        await asyncio.sleep(0.1)
        known.send(following)
        stranger.send(following)
        await wait_until_async(lambda: sum(count_unread(one) for one in server._service.connections) > 64 * 1024)
        await asyncio.sleep(0.1)
        assert sorted(count_unread(one) > 64 * 1024 for one in server._service.connections) == [False, True]
        replying.set()
        assert (await stranger.reply()).headers[b"connection"] == b"close"
        assert [(await known.reply()).status for _ in range(9)] == [200] * 9


def count_unread(connection: object) -> int:
    assert isinstance(connection, ClientConnection)
    return len(connection._unread)


@on_both_loops
async def test_connection_close_is_honoured() -> None:
    async with serving(Witness()) as server, connect_raw(server) as client:
        client.send(get(b"/a", b"Connection: keep-alive, Close") + GET)
        assert (await client.reply()).headers[b"connection"] == b"close"
        assert await client.wait_closed()


@on_both_loops
async def test_http_1_0_gets_a_stream_that_ends_with_the_connection() -> None:
    async with serving(stream_words) as server, connect_raw(server) as client:
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        reply = await client.reply()
        assert reply.body == b"onetwothree"
        assert b"transfer-encoding" not in reply.headers
        assert reply.headers[b"connection"] == b"close"


@on_both_loops
async def test_a_streamed_reply_is_chunked_as_sent_and_leaves_the_connection_usable() -> None:
    async with serving(stream_words) as server, connect_raw(server) as client:
        for _ in range(2):
            client.send(GET)
            status, headers = await client.head()
            assert (status, headers[b"transfer-encoding"]) == (200, b"chunked")
            assert [piece async for piece in client.chunks()] == [b"one", b"two", b"three"]


@on_both_loops
async def test_the_head_of_a_stream_goes_out_with_the_first_bytes() -> None:
    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        sink.begin(200, [])
        assert sink.phase < SinkPhase.SENT
        await asyncio.sleep(0.05)
        await sink.send(b"first")
        assert sink.phase >= SinkPhase.SENT
        sink.end(b"last")

    async with serving(handler) as server:
        reader = socket.create_connection(("127.0.0.1", server.port))
        reader.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(reader, GET)
        first = await loop.sock_recv(reader, 4096)
        assert first.endswith((b"5\r\nfirst\r\n", b"5\r\nfirst\r\n4\r\nlast\r\n0\r\n\r\n"))
        reader.close()


@on_both_loops
async def test_a_stream_without_any_byte_is_still_a_whole_reply() -> None:
    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        sink.begin(200, [(b"x-a", b"b")])
        await sink.send(b"")
        sink.end()

    async with serving(handler) as server, connect_raw(server) as client:
        client.send(GET + GET)
        for _ in range(2):
            reply = await client.reply()
            assert (reply.status, reply.headers[b"x-a"], reply.body) == (200, b"b", b"")


@on_both_loops
async def test_head_gets_the_headers_of_get_and_no_body() -> None:
    async with serving(Witness()) as server, connect_raw(server) as client:
        client.send(b"HEAD /first HTTP/1.1\r\nHost: gateway\r\n\r\n" + GET)
        assert (await client.reply(bodiless=True)).headers[b"content-length"] == b"6"
        assert (await client.reply()).body == b"/first"


@on_both_loops
async def test_head_of_a_stream_gets_no_chunks() -> None:
    async with serving(stream_words) as server, connect_raw(server) as client:
        client.send(b"HEAD /first HTTP/1.1\r\nHost: gateway\r\n\r\n" + GET)
        assert (await client.reply(bodiless=True)).headers[b"transfer-encoding"] == b"chunked"
        assert (await client.reply()).body == b"onetwothree"


@on_both_loops
async def test_no_content_has_neither_body_nor_length() -> None:
    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        sink.respond(204, [], b"")

    async with serving(handler) as server, connect_raw(server) as client:
        client.send(GET + GET)
        for _ in range(2):
            assert (await client.reply()).headers == {}


@on_both_loops
async def test_an_unusual_status_is_sent_as_it_is() -> None:
    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        sink.respond(529, [], b"overloaded")

    async with serving(handler) as server, connect_raw(server) as client:
        client.send(GET)
        assert (await client.reply()).status == 529


@pytest.mark.parametrize("evil", [b"a\r\nx-evil: 1", b"a\nx-evil: 1", b"a\rb", b"a\0b", b"a\r\n\r\n<script>"])
@on_both_loops
async def test_a_reply_header_cannot_break_out_of_its_line(evil: bytes) -> None:
    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        headers = [(b"x-good", b"1"), (b"x-bad", evil), (evil, b"1"), (b"content-length", b"7"), (b"connection", b"x")]
        sink.respond(200, headers, b"whole")

    async with serving(handler) as server, connect_raw(server) as client:
        client.send(GET)
        reply = await client.reply()
        assert reply.headers == {b"x-good": b"1", b"content-length": b"5"}
        assert reply.body == b"whole"


@on_both_loops
async def test_expect_100_continue_is_answered_when_the_handler_wants_the_body() -> None:
    witness = Witness()
    async with serving(witness) as server, connect_raw(server) as client:
        client.send(POST + b"Expect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert (await client.reply()).status == 100
        client.send(b"body")
        assert (await client.reply()).status == 200
    assert witness.bodies == [b"body"]


@on_both_loops
async def test_a_refusal_before_the_body_spares_the_client_from_sending_it() -> None:
    async def refuse(request: HttpRequest, sink: SocketSink) -> None:
        sink.respond(401, [], b"no")

    async with serving(refuse) as server, connect_raw(server) as client:
        client.send(POST + b"Expect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        reply = await client.reply()
        assert (reply.status, reply.headers[b"connection"]) == (401, b"close")
        assert await client.wait_closed()


@on_both_loops
async def test_a_client_that_is_still_sending_its_body_gets_to_read_the_refusal() -> None:
    async def refuse(request: HttpRequest, sink: SocketSink) -> None:
        sink.respond(401, [], b"no")

    async with serving(refuse, limits(linger_s=2)) as server, connect_raw(server) as client:
        client.send(POST + b"Content-Length: 20000000\r\n\r\n" + b"x" * 19_999_000 + GET * 20)
        assert (await client.reply()).status == 401
        assert await client.wait_closed()


@on_both_loops
async def test_a_body_that_came_whole_lets_an_early_reply_keep_the_connection() -> None:
    async def ignore_body(request: HttpRequest, sink: SocketSink) -> None:
        sink.respond(401, [], b"no")

    async with serving(ignore_body) as server, connect_raw(server) as client:
        client.send(POST + b"Content-Length: 4\r\n\r\nbody" + GET)
        assert b"connection" not in (await client.reply()).headers
        assert (await client.reply()).status == 401


@on_both_loops
async def test_the_body_may_be_read_twice() -> None:
    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        sink.respond(200, [], await request.body() + await request.body())

    async with serving(handler) as server, connect_raw(server) as client:
        client.send(POST + b"Content-Length: 2\r\n\r\n")
        await asyncio.sleep(0.02)
        client.send(b"ab")
        assert (await client.reply()).body == b"abab"


@on_both_loops
async def test_a_declared_body_that_is_too_large_is_known_before_it_is_read() -> None:
    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        with pytest.raises(BodyTooLarge):
            await request.body()
        sink.respond(413, [], b"in the words of the protocol")

    async with serving(handler, limits(max_body_bytes=1000)) as server, connect_raw(server) as client:
        client.send(POST + b"Content-Length: 1001\r\n\r\n")
        assert (await client.reply()).body == b"in the words of the protocol"
        assert await client.wait_closed()


@on_both_loops
async def test_a_large_body_arrives_whole() -> None:
    body = bytes(range(256)) * 40_000

    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        await asyncio.sleep(0.05)
        sink.respond(200, [], await request.body())

    async with serving(handler) as server, connect_raw(server) as client:
        client.send(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body + GET)
        assert (await client.reply()).body == body
        assert (await client.reply()).body == b""
