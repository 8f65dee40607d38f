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
HEAD = b"POST / HTTP/1.1\r\nHost: gateway\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % SIZE


class Measure:
    """A handler that notes how much of the body arrived in each turn of the event loop."""

    def __init__(self) -> None:
        self.most_in_one_turn = 0

    async def __call__(self, request: HttpRequest, sink: SocketSink) -> None:
        reading = asyncio.create_task(request.body())
        held = 0
        while request.incoming is not None:
            now = request.incoming.buffered_bytes
            self.most_in_one_turn = max(self.most_in_one_turn, now - held)
            held = now
            await asyncio.sleep(0)
        assert len(await reading) == SIZE
        sink.respond(200, (), b"")


def upload(port: int, replies: list[bytes]) -> None:
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(HEAD + bytes(SIZE))
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
