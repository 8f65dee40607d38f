"""A handler that fails or a client that leaves costs exactly that request, and each side learns of it at once."""

import asyncio
import logging
import socket
import struct
from contextlib import AsyncExitStack

import pytest

from dragoman.net.http_request import HttpRequest
from dragoman.net.server import ClientDisconnected, ResponseOrderError
from dragoman.net.service import CANCELLED_AT_ONCE
from dragoman.net.socket_sink import SocketSink
from fakes.loops import on_both_loops
from net.raw_client import GET, PATIENCE_S, connect_raw, serving
from waiting import wait_until_async

POST = b"POST /first HTTP/1.1\r\nHost: gateway\r\n"
RESET = struct.pack("ii", 1, 0)


@on_both_loops
async def test_a_failing_handler_costs_one_500_and_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        raise ValueError("sk-fake-secret")

    caplog.set_level(logging.DEBUG)
    async with serving(handler) as server, connect_raw(server) as client:
        client.send(GET + GET)
        for _ in range(2):
            reply = await client.reply()
            assert (reply.status, reply.body) == (500, b"internal error")
    assert "ValueError at" in caplog.text
    assert "sk-fake-secret" not in caplog.text


@on_both_loops
async def test_a_failure_before_the_first_byte_of_a_stream_is_still_a_real_error() -> None:
    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        sink.begin(200, [(b"content-type", b"text/event-stream")])
        raise ValueError

    async with serving(handler) as server, connect_raw(server) as client:
        client.send(GET)
        reply = await client.reply()
        assert (reply.status, reply.headers[b"content-type"]) == (500, b"text/plain")


@on_both_loops
async def test_a_handler_that_forgets_to_reply_costs_a_500() -> None:
    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        await asyncio.sleep(0)

    async with serving(handler) as server, connect_raw(server) as client:
        client.send(GET)
        assert (await client.reply()).status == 500


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@on_both_loops
async def test_a_stream_that_fails_in_the_middle_never_looks_whole(version: bytes) -> None:
    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        sink.begin(200, [])
        await sink.send(b"half")
        await asyncio.sleep(0.05)
        raise ValueError

    async with serving(handler) as server, connect_raw(server) as client:
        client.send(b"GET / HTTP/" + version + b"\r\nHost: gateway\r\n\r\n")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await client.reply()


@pytest.mark.parametrize(
    "misuse",
    ["respond respond", "start start", "send", "finish", "start send respond", "start finish send", "respond start"],
)
@on_both_loops
async def test_a_reply_out_of_order_is_refused_by_name(misuse: str) -> None:
    raised: list[type[BaseException]] = []

    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        try:
            for step in misuse.split():
                match step:
                    case "respond":
                        sink.respond(200, [], b"")
                    case "start":
                        sink.begin(200, [])
                    case "send":
                        await sink.send(b"x")
                    case _:
                        sink.end()
        except ResponseOrderError as error:
            raised.append(type(error))
            raise

    async with serving(handler) as server, connect_raw(server) as client:
        client.send(GET)
        await client.head()
    assert raised == [ResponseOrderError]


@pytest.mark.parametrize("farewell", ["close", "reset", "half-close"])
@pytest.mark.parametrize("moment", ["before the reply", "in the stream", "in the body"])
@on_both_loops
async def test_a_client_that_leaves_cancels_its_handler_at_once(farewell: str, moment: str) -> None:
    cancelled = asyncio.Event()
    entered = asyncio.Event()

    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        entered.set()
        try:
            if moment == "in the body":
                await request.body()
            sink.allow_leaving()
            if moment == "in the stream":
                sink.begin(200, [])
                await sink.send(b"first")
            await asyncio.sleep(2 * PATIENCE_S)
        except asyncio.CancelledError:
            assert sink.reader_gone
            with pytest.raises(ClientDisconnected):
                await request.body() if moment == "in the body" else await sink.send(b"x")
            sink.respond(200, [], b"unheard")
            cancelled.set()
            raise

    async with serving(handler) as server, connect_raw(server) as client:
        client.send(POST + b"Content-Length: 4\r\n\r\nbo" if moment == "in the body" else GET)
        await entered.wait()
        await asyncio.sleep(0.02)
        if farewell == "half-close":
            client.writer.write_eof()
        else:
            if farewell == "reset":
                client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.writer.transport.abort()
        await asyncio.wait_for(cancelled.wait(), PATIENCE_S / 2)
        await wait_until_async(lambda: server.connections == 0)


@on_both_loops
async def test_of_many_clients_that_leave_together_a_few_are_cancelled_in_a_turn() -> None:
    entered, cancelled, count = 0, 0, 100

    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        nonlocal entered, cancelled
        sink.allow_leaving()
        entered += 1
        try:
            await asyncio.sleep(2 * PATIENCE_S)
        except asyncio.CancelledError:
            cancelled += 1
            raise

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(handler))
        clients = [await stack.enter_async_context(connect_raw(server)) for _ in range(count)]
        for client in clients:
            client.send(GET)
        await wait_until_async(lambda: entered == count)
        for client in clients:
            client.writer.transport.abort()
        most = before = 0
        while cancelled < count:
            await asyncio.sleep(0)
            most, before = max(most, cancelled - before), cancelled
        assert most <= 2 * CANCELLED_AT_ONCE
        await wait_until_async(lambda: server.connections == 0)


@on_both_loops
async def test_a_client_that_leaves_after_its_body_is_only_noted_until_the_handler_allows_it() -> None:
    ended: list[str] = []

    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        assert await request.body() == b"body"
        await wait_until_async(lambda: sink.reader_gone)
        if request.path == "/kept":
            sink.on_reader_gone(lambda: ended.append("told"))
            sink.allow_leaving()
        try:
            await asyncio.sleep(0)
            sink.allow_leaving()
            ended.append("went on")
        except ClientDisconnected:
            ended.append("ended")

    async with serving(handler) as server:
        for path in (b"/first", b"/kept"):
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(POST.replace(b"/first", path) + b"Content-Length: 4\r\n\r\nbody")
        await wait_until_async(lambda: sorted(ended) == ["ended", "told", "went on"])
        await wait_until_async(lambda: server.connections == 0)


@on_both_loops
async def test_a_client_that_leaves_after_its_reply_does_not_cancel_what_the_handler_still_does() -> None:
    written = asyncio.Event()

    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        sink.respond(200, [], b"done")
        await asyncio.sleep(0.1)
        written.set()

    async with serving(handler) as server:
        async with connect_raw(server) as client:
            client.send(GET)
            await client.reply()
        await asyncio.wait_for(written.wait(), PATIENCE_S)


@on_both_loops
async def test_the_next_request_does_not_wait_for_what_the_last_handler_still_does() -> None:
    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        sink.respond(200, [], b"done")
        await asyncio.sleep(2 * PATIENCE_S)

    async with serving(handler) as server, connect_raw(server) as client:
        started = asyncio.get_running_loop().time()
        for _ in range(3):
            client.send(GET)
            await client.reply()
        assert asyncio.get_running_loop().time() - started < PATIENCE_S


@on_both_loops
async def test_abort_drops_the_connection() -> None:
    async def handler(request: HttpRequest, sink: SocketSink) -> None:
        sink.abort()
        with pytest.raises(ClientDisconnected):
            await sink.send(b"x")

    async with serving(handler) as server, connect_raw(server) as client:
        client.send(GET)
        assert await client.wait_closed()
