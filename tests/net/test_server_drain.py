"""A server that is asked to stop lets every request finish, and then stops."""

import asyncio
import socket

from dragoman.net.http_request import HttpRequest
from dragoman.net.server import ConnectionLimits, Server
from dragoman.net.service import ConnectionService
from dragoman.net.socket_sink import SocketSink
from fakes.loops import on_both_loops
from net.raw_client import GET, PATIENCE_S, Witness, connect_raw, limits, render, serving
from proxy.in_memory import MemoryWire, make_request, make_sink


async def slow_stream(request: HttpRequest, sink: SocketSink) -> None:
    sink.begin(200, [])
    for number in range(10):
        await sink.send(b"%d" % number)
        await asyncio.sleep(0.03)
    sink.end()


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


@on_both_loops
async def test_streams_in_flight_finish_and_the_listener_is_gone() -> None:
    async with serving(slow_stream) as server, connect_raw(server) as client:
        client.send(GET)
        await client.head()
        draining = asyncio.create_task(server.drain(PATIENCE_S))
        async with asyncio.timeout(PATIENCE_S):
            while await listens(server.port):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert b"".join([piece async for piece in client.chunks()]) == b"0123456789"
        assert await client.wait_closed()
        await asyncio.wait_for(draining, PATIENCE_S)
        assert server.connections == 0


@on_both_loops
async def test_a_reply_that_begins_while_draining_says_that_the_connection_closes() -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        entered.set()
        await go_on.wait()
        sink.respond(200, [], b"late")

    async with serving(handler) as server, connect_raw(server) as client:
        client.send(GET)
        await entered.wait()
        draining = asyncio.create_task(server.drain(PATIENCE_S))
        await asyncio.sleep(0.05)
        go_on.set()
        reply = await client.reply()
        assert (reply.body, reply.headers[b"connection"]) == (b"late", b"close")
        await asyncio.wait_for(draining, PATIENCE_S)


@on_both_loops
async def test_idle_connections_are_closed_at_once() -> None:
    async with serving(Witness(), limits(keep_alive_s=2 * PATIENCE_S)) as server, connect_raw(server) as client:
        client.send(GET)
        await client.reply()
        started = asyncio.get_running_loop().time()
        await server.drain(PATIENCE_S)
        assert asyncio.get_running_loop().time() - started < PATIENCE_S / 2
        assert await client.wait_closed()


@on_both_loops
async def test_after_the_grace_handlers_are_cancelled_and_may_send_a_last_error() -> None:
    async def endless(request: HttpRequest, sink: SocketSink) -> None:
        sink.begin(200, [])
        try:
            while True:
                await sink.send(b"tick ")
                await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            assert not sink.reader_gone
            await sink.send(b"error: shutting down")
            sink.end()
            raise

    async with serving(endless) as server, connect_raw(server) as client:
        client.send(GET)
        await client.head()
        started = asyncio.get_running_loop().time()
        await server.drain(0.1)
        assert 0.05 < asyncio.get_running_loop().time() - started < PATIENCE_S / 2
        body = b"".join([piece async for piece in client.chunks()])
        assert body.endswith(b"error: shutting down")


@on_both_loops
async def test_a_handler_cancelled_before_its_first_byte_becomes_503() -> None:
    entered = asyncio.Event()

    async def never(request: HttpRequest, sink: SocketSink) -> None:
        entered.set()
        await asyncio.sleep(30)

    async with serving(never) as server, connect_raw(server) as client:
        client.send(GET)
        await entered.wait()
        await server.drain(0.05)
        assert (await client.reply()).status == 503


@on_both_loops
async def test_draining_waits_for_what_handlers_do_after_their_reply() -> None:
    rows: list[str] = []

    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        sink.respond(200, [], b"done")
        await asyncio.sleep(0.1)
        rows.append("usage")

    async with serving(handler) as server, connect_raw(server) as client:
        client.send(GET)
        await client.reply()
        await server.drain(PATIENCE_S)
        assert rows == ["usage"]


@on_both_loops
async def test_a_request_that_is_cancelled_before_its_task_starts_has_ended() -> None:
    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        raise AssertionError("the task has not started")

    service = ConnectionService(handler, limits(), render)
    service.draining = True
    request, sink = make_request(budget=service.budget), make_sink(MemoryWire())
    request.buffered.hold(1_000_000)
    service.begin(request, sink)
    service.cancel(sink)
    await asyncio.wait_for(service.empty.wait(), PATIENCE_S)
    assert not service.requests
    assert request.buffered.held == 0


@on_both_loops
async def test_a_client_that_reads_nothing_cannot_hold_up_the_end() -> None:
    async def endless(request: HttpRequest, sink: SocketSink) -> None:
        sink.begin(200, [])
        while True:
            await sink.send(b"x" * 65536)

    async with serving(endless, limits(write_idle_timeout_s=2 * PATIENCE_S)) as server:
        deaf = socket.create_connection(("127.0.0.1", server.port))
        deaf.sendall(GET)
        await asyncio.sleep(0.1)
        started = asyncio.get_running_loop().time()
        await server.drain(0.1)
        assert asyncio.get_running_loop().time() - started < PATIENCE_S / 2
        assert server.connections == 0
        deaf.close()


@on_both_loops
async def test_closing_ends_everything_now() -> None:
    entered, ended = asyncio.Event(), asyncio.Event()

    async def never(request: HttpRequest, sink: SocketSink) -> None:
        entered.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    server = Server(never, ConnectionLimits(), render)
    await server.start("127.0.0.1", 0)
    async with connect_raw(server) as client:
        client.send(GET)
        await entered.wait()
        await asyncio.wait_for(server.close(), PATIENCE_S)
        assert ended.is_set()
        assert await client.wait_closed()


@on_both_loops
async def test_a_bound_socket_can_be_handed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Server(Witness(), ConnectionLimits(), render)
        await server.start("ignored", 0, sock=listening.dup())
        assert server.port == listening.getsockname()[1]
        async with connect_raw(server) as client:
            client.send(GET)
            assert (await client.reply()).status == 200
        await server.close()
