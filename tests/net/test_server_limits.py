"""No client can pin memory or a connection: everything it may do is bounded in bytes and in time."""

import asyncio
import pathlib
import socket

import pytest

from dragoman.net.http_request import HttpRequest
from dragoman.net.server import BodyTimeout
from dragoman.net.socket_sink import SocketSink
from fakes.loops import on_both_loops, on_uvloop_first
from net.raw_client import GET, PATIENCE_S, Received, Witness, connect_raw, limits, serving
from waiting import wait_until_async

POST = b"POST /first HTTP/1.1\r\nHost: gateway\r\n"


def resident_bytes() -> int:
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096


async def never(request: HttpRequest, sink: SocketSink) -> None:
    await asyncio.sleep(PATIENCE_S)


@on_uvloop_first
async def test_a_slow_header_is_closed_in_time_however_it_drips() -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()  # the time begins with the connection, not with its first byte
    async with serving(Witness(), limits(header_timeout_s=0.3)) as server, connect_raw(server) as client:
        client.send(GET[:-2])

        async def drip() -> None:
            for byte in b"X-A: " + b"a" * 1000:
                client.send(bytes([byte]))
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        reply = await client.reply()
        assert (reply.status, reply.headers[b"x-path"]) == (408, b"/first")
        assert loop.time() - started > 0.29
        dripping.cancel()
        assert await client.wait_closed()


@on_uvloop_first
async def test_a_slow_header_on_a_kept_connection_is_closed_in_time() -> None:
    loop = asyncio.get_running_loop()
    async with serving(Witness(), limits(header_timeout_s=0.8)) as server, connect_raw(server) as client:
        client.send(GET)
        await client.reply()
        await asyncio.sleep(0.05)
        client.send(b"GET / HT")
        started = loop.time()
        assert (await client.reply()).status == 408
        assert loop.time() - started > 0.79


@on_both_loops
async def test_a_connection_that_sends_nothing_is_closed_without_a_response() -> None:
    async with serving(Witness(), limits(header_timeout_s=0.1)) as server, connect_raw(server) as client:
        assert await client.wait_closed()
        await wait_until_async(lambda: server.connections == 0)


@on_uvloop_first
async def test_an_idle_connection_is_closed_after_its_keep_alive_time() -> None:
    loop = asyncio.get_running_loop()
    async with serving(Witness(), limits(keep_alive_s=1)) as server, connect_raw(server) as client:
        for _ in range(4):
            await asyncio.sleep(0.3)
            started = loop.time()
            client.send(GET)
            assert (await client.reply()).status == 200
        assert await client.wait_closed()
        assert loop.time() - started > 0.99


@pytest.mark.parametrize("endless", [b"a" * 65536, b"X-A: " + b"b" * 1000 + b"\r\n", b"/"])
@on_uvloop_first
async def test_an_endless_header_is_refused_in_bounded_memory(endless: bytes) -> None:
    async with serving(Witness()) as server, connect_raw(server) as client:
        before = resident_bytes()
        client.send(b"GET /" if endless == b"/" else GET[:-2] + b"X-Long: ")
        flood = endless * max(1, 65536 // len(endless))
        for _ in range(200):
            client.send(flood)
            await client.writer.drain()
        assert (await client.reply()).status == 431
        assert resident_bytes() - before < 8 * 1024 * 1024


@on_both_loops
async def test_a_header_of_exactly_the_limit_passes_and_one_byte_more_does_not() -> None:
    def pad_head(size: int) -> bytes:
        return GET[:-2] + b"X-A: " + b"a" * (size - len(GET) - 7) + b"\r\n\r\n"

    assert len(pad_head(2000)) == 2000
    async with serving(Witness(), limits(max_header_bytes=2000)) as server:
        for size, status in ((2000, 200), (2001, 431)):
            for cut in (2001, 500):
                async with connect_raw(server) as client:
                    await client.send_cut(pad_head(size), cut)
                    assert (await client.reply()).status == status


@on_both_loops
async def test_a_hundred_fields_pass_and_one_more_does_not() -> None:
    async with serving(Witness()) as server:
        for count, status in ((99, 200), (100, 431)):
            async with connect_raw(server) as client:
                client.send(GET[:-2] + b"X-A: b\r\n" * count + b"\r\n")
                assert (await client.reply()).status == status


@pytest.mark.parametrize("declared", [True, False])
@on_both_loops
async def test_a_body_over_the_limit_gets_413_even_from_a_client_that_sends_it_all_first(declared: bool) -> None:
    size = 3_000_000
    framing = b"Content-Length: %d\r\n\r\n" % size if declared else b"Transfer-Encoding: chunked\r\n\r\n"
    body = b"x" * size if declared else (b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * 92
    settings = limits(max_body_bytes=1_000_000)
    async with serving(Witness(), settings) as server, connect_raw(server) as client:
        client.send(POST + framing)
        client.send(body)
        await client.writer.drain()
        reply = await client.reply()
        assert (reply.status, reply.headers[b"connection"]) == (413, b"close")
        assert await client.wait_closed()


@on_both_loops
async def test_a_body_of_exactly_the_limit_passes() -> None:
    async with serving(Witness(), limits(max_body_bytes=10)) as server, connect_raw(server) as client:
        client.send(POST + b"Content-Length: 10\r\n\r\n0123456789")
        assert (await client.reply()).status == 200
        client.send(POST + b"Transfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n")
        assert (await client.reply()).status == 200
        client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n9\r\n012345678\r\n2\r\n")
        assert (await client.reply()).status == 413


@on_uvloop_first
async def test_a_gap_in_the_body_times_out_but_a_slow_steady_body_does_not() -> None:
    settings = limits(body_gap_timeout_s=1)
    async with serving(Witness(), settings) as server, connect_raw(server) as client:
        client.send(POST + b"Content-Length: 6\r\n\r\n")
        for _ in range(6):
            await asyncio.sleep(0.2)
            client.send(b"x")
        assert (await client.reply()).status == 200
        client.send(POST + b"Content-Length: 6\r\n\r\nxx")
        reply = await client.reply()
        assert (reply.status, reply.headers[b"connection"]) == (408, b"close")
        assert await client.wait_closed()


@on_both_loops
async def test_the_handler_may_word_the_body_timeout_itself() -> None:
    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        try:
            await request.body()
        except BodyTimeout:
            sink.respond(408, [], b"in the words of the protocol")

    async with serving(handler, limits(body_gap_timeout_s=0.1)) as server, connect_raw(server) as client:
        client.send(POST + b"Content-Length: 6\r\n\r\nxx")
        assert (await client.reply()).body == b"in the words of the protocol"


@on_both_loops
async def test_a_body_that_the_handler_does_not_read_is_not_read_ahead() -> None:
    async with serving(never, limits(body_gap_timeout_s=0.1)) as server, connect_raw(server) as client:
        client.writer.transport.set_write_buffer_limits(high=0)
        client.send(POST + b"Content-Length: 20000000\r\n\r\n" + b"x" * 20_000_000)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.writer.drain(), 0.3)


def connect_without_reading(port: int, buffer_bytes: int = 4096) -> socket.socket:
    """Send a request over a socket with a small receive buffer; the caller does not read from it."""
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    deaf.connect(("127.0.0.1", port))
    deaf.sendall(GET)
    return deaf


@on_uvloop_first
async def test_a_client_that_does_not_read_holds_the_sender_back_and_is_dropped_in_the_end() -> None:
    loop = asyncio.get_running_loop()
    sent = 0
    over: asyncio.Future[float] = loop.create_future()

    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        nonlocal sent
        sink.begin(200, [])
        try:
            while True:
                await sink.send(b"x" * 16384)
                sent += 16384
        finally:
            over.set_result(loop.time())

    async with serving(handler, limits(write_idle_timeout_s=0.5)) as server:
        before = resident_bytes()
        started = loop.time()
        deaf = connect_without_reading(server.port)
        held_at = -1
        while held_at != sent or not sent:
            held_at = sent
            assert held_at < 1024 * 1024
            await asyncio.sleep(0.1)
        assert resident_bytes() - before < 2 * 1024 * 1024
        assert await asyncio.wait_for(over, PATIENCE_S) - started > 0.45
        assert sent < 1024 * 1024
        await wait_until_async(lambda: server.connections == 0)
        deaf.close()


@on_both_loops
async def test_a_client_that_stops_reading_and_then_leaves_cancels_its_handler_at_once() -> None:
    loop = asyncio.get_running_loop()
    cancelled: asyncio.Future[None] = loop.create_future()

    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        sink.begin(200, [])
        try:
            while True:
                await sink.send(b"x" * 16384)
        finally:
            cancelled.set_result(None)

    async with serving(handler, limits(write_idle_timeout_s=2 * PATIENCE_S)) as server:
        deaf = connect_without_reading(server.port)
        await asyncio.sleep(0.1)
        deaf.shutdown(socket.SHUT_WR)
        await asyncio.wait_for(cancelled, PATIENCE_S)  # which is less than the time of one who does not read
        await wait_until_async(lambda: server.connections == 0)
        deaf.close()


@on_uvloop_first
async def test_a_client_that_reads_slowly_but_steadily_is_kept() -> None:
    total = 1024 * 1024

    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        sink.respond(200, [], b"x" * total)

    loop = asyncio.get_running_loop()
    settings = limits(write_idle_timeout_s=1, keep_alive_s=0.5)
    async with serving(handler, settings) as server:
        slow = connect_without_reading(server.port, 32768)
        slow.setblocking(False)
        received = 0
        started = loop.time()
        while received < total:
            piece = await asyncio.wait_for(loop.sock_recv(slow, 1 << 17), PATIENCE_S)
            assert piece, "dropped although it was reading"
            received += len(piece)
            await asyncio.sleep(0.06)
        assert loop.time() - started > 1.1
        slow.close()


@pytest.mark.parametrize("size", [30_000, 20_000_000])
@on_both_loops
async def test_a_finished_reply_that_is_not_read_does_not_keep_its_connection(size: int) -> None:
    served = asyncio.Event()

    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        sink.respond(200, [], b"x" * size)
        served.set()

    settings = limits(write_idle_timeout_s=0.2, keep_alive_s=0.2)
    async with serving(handler, settings) as server:
        deaf = connect_without_reading(server.port)
        await asyncio.wait_for(served.wait(), PATIENCE_S)
        await wait_until_async(lambda: server.connections == 0)
        deaf.close()


@on_uvloop_first
async def test_pipelined_replies_that_are_not_read_stop_the_next_handler() -> None:
    served = 0

    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        nonlocal served
        served += 1
        sink.respond(200, [], b"x" * 1_000_000)

    async with serving(handler, limits()) as server, connect_raw(server) as client:
        client.pause_reading()
        for _ in range(50):
            client.send(GET * 2)
            await asyncio.sleep(0.004)
        assert served < 20
        client.resume_reading()
        replies: list[Received] = [await client.reply() for _ in range(100)]
        assert {len(reply.body) for reply in replies} == {1_000_000}


@on_uvloop_first
async def test_an_idle_connection_costs_little_memory() -> None:
    streaming = 0

    async def stream_one(request: HttpRequest, sink: SocketSink) -> None:
        nonlocal streaming
        sink.begin(200, [])
        await sink.send(b"first")
        streaming += 1
        await asyncio.sleep(PATIENCE_S)

    async with serving(stream_one, limits()) as server:
        before = resident_bytes()
        peers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
        for peer in peers:
            peer.sendall(GET)
        await wait_until_async(lambda: streaming == 200)
        assert (resident_bytes() - before) / 200 < 30_000
        for peer in peers:
            peer.close()
