"""Both ways of accepting connections: by the event loop, and by ourselves where descriptors may run out."""

import socket
import sys

import pytest

from fakes.loops import on_both_loops
from net.raw_client import GET, PATIENCE_S, Witness, connect_raw, limits, serving
from waiting import wait_until_async

# With more connections than there are descriptors, the server accepts them itself.
WAYS = pytest.mark.parametrize("max_connections", [100, sys.maxsize // 4])


@WAYS
@on_both_loops
async def test_connections_are_accepted(max_connections: int) -> None:
    async with serving(Witness(), limits(max_connections=max_connections)) as server:
        for _ in range(40):
            async with connect_raw(server) as client:
                client.send(GET)
                assert (await client.reply()).status == 200
        await wait_until_async(lambda: server.connections == 0)


@WAYS
@on_both_loops
async def test_queued_connections_are_answered_before_the_server_ends(max_connections: int) -> None:
    async with serving(Witness(), limits(max_connections=max_connections)) as server:
        peers = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) for _ in range(50)]
        for peer in peers:
            peer.sendall(GET)  # nothing of this is accepted yet, because the event loop does not turn
        await server.drain(PATIENCE_S)
        for peer in peers:
            reply = peer.recv(65536)
            assert reply.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in reply
            peer.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
