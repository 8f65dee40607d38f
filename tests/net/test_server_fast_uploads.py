"""Clients that upload fast leave the event loop to others between two parts of a body."""

import asyncio
import socket
import threading

from dragoman.net.http_request import HttpRequest
from dragoman.net.socket_sink import SocketSink
from fakes.loops import on_uvloop_first
from net.raw_client import serving

SIZE = 8 << 20
MOST_IN_ONE_TURN = 1 << 20
MOST_OF_CHUNKS_IN_ONE_TURN = 96 << 10  # what takes a few milliseconds; a read of the socket has 128 kB of such content
CHUNK = b"5\r\nhello\r\n"
CHUNKS = 200_000
CHUNKED_HEAD = b"POST / HTTP/1.1\r\nHost: gateway\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
HEAD = b"POST / HTTP/1.1\r\nHost: gateway\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % SIZE


class Measure:
    """A handler that notes how much of the body arrived in each turn of the event loop."""

    def __init__(self, size: int = SIZE) -> None:
        self.most_in_one_turn = 0
        self._size = size

    async def __call__(self, request: HttpRequest, sink: SocketSink) -> None:
        reading = asyncio.create_task(request.body())
        held = 0
        while request.incoming is not None:
            now = request.incoming.buffered_bytes
            self.most_in_one_turn = max(self.most_in_one_turn, now - held)
            held = now
            await asyncio.sleep(0)
        assert len(await reading) == self._size
        sink.respond(200, (), b"")


def upload(port: int, replies: list[bytes], request: bytes = HEAD + bytes(SIZE)) -> None:
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(request)
        replies.append(client.recv(1 << 16))


@on_uvloop_first
async def test_a_body_is_read_in_parts_between_which_others_get_their_turn() -> None:
    measure = Measure()
    async with serving(measure) as server:
        replies: list[bytes] = []
        senders = [threading.Thread(target=upload, args=(server.port, replies)) for _ in range(4)]
        for sender in senders:
            sender.start()
        await asyncio.gather(*(asyncio.to_thread(sender.join) for sender in senders))
    assert [reply[:15] for reply in replies] == [b"HTTP/1.1 200 OK"] * 4
    assert 0 < measure.most_in_one_turn <= MOST_IN_ONE_TURN


@on_uvloop_first
async def test_a_body_in_tiny_chunks_is_read_in_the_turns_that_all_share() -> None:
    measure = Measure(5 * CHUNKS)
    async with serving(measure) as server:
        replies: list[bytes] = []
        request = CHUNKED_HEAD + CHUNK * CHUNKS + b"0\r\n\r\n"
        await asyncio.to_thread(upload, server.port, replies, request)
    assert [reply[:15] for reply in replies] == [b"HTTP/1.1 200 OK"]
    assert 0 < measure.most_in_one_turn <= MOST_OF_CHUNKS_IN_ONE_TURN


@on_uvloop_first
async def test_a_request_that_follows_a_chunked_body_is_served_wherever_it_is_cut() -> None:
    bodies: list[bytes] = []

    async def handle(request: HttpRequest, sink: SocketSink) -> None:
        bodies.append(await request.body())
        sink.respond(200, (), b"")

    first = CHUNKED_HEAD.replace(b"Connection: close\r\n", b"") + CHUNK * 20_000 + b"0\r\n\r\n"
    request = first + CHUNKED_HEAD + CHUNK + b"0\r\n\r\n"
    async with serving(handle) as server:
        for cut in (len(CHUNKED_HEAD), len(first) - 1, len(first), len(first) + 9, len(request)):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(request[:cut])
            await asyncio.sleep(0.05)
            writer.write(request[cut:])
            assert (await reader.read()).count(b"HTTP/1.1 200 OK") == 2
            writer.close()
    assert bodies == [b"hello" * 20_000, b"hello"] * 5
