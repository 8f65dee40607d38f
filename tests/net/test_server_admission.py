"""Connections that run short: clients without a valid key give way, those with one keep their places."""

import asyncio
import logging
from contextlib import AsyncExitStack
from itertools import count

import pytest

from dragoman.net.http_request import HttpRequest
from dragoman.net.server import Server
from dragoman.net.service import Admission, network_of
from dragoman.net.socket_sink import SocketSink
from fakes.loops import on_both_loops
from net.raw_client import GET, RawClient, Witness, connect_raw, limits, serving
from waiting import wait_until_async

UNAUTHENTICATED = GET.replace(b"/first", b"/health")


class KeyedWitness(Witness):
    """A witness that takes the path /first for a valid key: that of its query, or another one each time."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count()

    async def __call__(self, request: HttpRequest, sink: SocketSink) -> None:
        if request.path == "/first":
            request.mark_authenticated(request.query or str(next(self._numbers)))
        await super().__call__(request, sink)


def abort(client: RawClient) -> None:
    client.writer.transport.abort()


async def open_idle(server: Server, count: int, stack: AsyncExitStack, address: str = "127.0.0.1") -> list[RawClient]:
    clients = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=(address, 0))
        clients.append(RawClient(reader, writer))
        stack.callback(abort, clients[-1])
    return clients


@on_both_loops
async def test_a_connection_too_many_gets_503_and_those_with_a_key_stay() -> None:
    async with serving(KeyedWitness(), limits(max_connections=2)) as server, AsyncExitStack() as stack:
        clients = []
        for _ in range(2):
            clients += await open_idle(server, 1, stack)
            clients[-1].send(GET)
            assert (await clients[-1].reply()).status == 200
        async with connect_raw(server) as third:
            reply = await third.reply()
            assert (reply.status, reply.headers[b"connection"]) == (503, b"close")
            assert await third.wait_closed()
        for client in clients:
            client.send(GET)
            assert (await client.reply()).status == 200


@on_both_loops
async def test_a_connection_without_a_key_is_kept_a_shorter_time_between_requests() -> None:
    settings = limits(unauthenticated_keep_alive_s=0.3)
    async with (
        serving(KeyedWitness(), settings) as server,
        connect_raw(server) as stranger,
        connect_raw(server) as known,
    ):
        known.send(GET)
        assert (await known.reply()).status == 200
        stranger.send(UNAUTHENTICATED)
        assert (await stranger.reply()).status == 200
        assert await stranger.wait_closed()
        await asyncio.sleep(0.5)
        known.send(UNAUTHENTICATED)
        assert (await known.reply()).status == 200


@on_both_loops
async def test_idle_connections_without_a_key_give_way_to_new_ones(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with (
        serving(KeyedWitness(), limits(max_connections=20)) as server,
        connect_raw(server) as known,
        AsyncExitStack() as stack,
    ):
        known.send(GET)
        assert (await known.reply()).status == 200
        await open_idle(server, 60, stack)
        for _ in range(3):
            async with connect_raw(server) as newcomer:
                newcomer.send(GET)
                assert (await newcomer.reply()).status == 200
        known.send(GET)
        assert (await known.reply()).status == 200
        await wait_until_async(lambda: server.connections <= 20)
    assert len([record for record in caplog.records if "too many connections" in record.message]) == 1


@on_both_loops
async def test_connections_with_a_key_may_take_every_place() -> None:
    async with serving(KeyedWitness(), limits(max_connections=20)) as server, AsyncExitStack() as stack:
        await open_idle(server, 60, stack)
        for _ in range(20):
            [client] = await open_idle(server, 1, stack)
            client.send(GET)
            assert (await client.reply()).status == 200
        [one_too_many] = await open_idle(server, 1, stack)
        assert (await one_too_many.reply()).status == 503


@on_both_loops
async def test_a_key_with_very_many_idle_connections_makes_room_for_others() -> None:
    of_one_key = GET.replace(b"/first", b"/first?wide")
    async with serving(KeyedWitness(), limits(max_connections=20)) as server, AsyncExitStack() as stack:
        [other] = await open_idle(server, 1, stack)
        other.send(GET)
        assert (await other.reply()).status == 200
        for _ in range(40):  # each of them gets a place, instead of an earlier one
            [wide] = await open_idle(server, 1, stack)
            wide.send(of_one_key)
            assert (await wide.reply()).status == 200
        for _ in range(10):
            [newcomer] = await open_idle(server, 1, stack)
            newcomer.send(GET)
            assert (await newcomer.reply()).status == 200
        other.send(GET)
        assert (await other.reply()).status == 200
        await wait_until_async(lambda: server.connections <= 20)


@on_both_loops
async def test_an_address_that_floods_pushes_out_its_own_connections_first() -> None:
    async with serving(KeyedWitness(), limits(max_connections=16)) as server, AsyncExitStack() as stack:
        [elsewhere] = await open_idle(server, 1, stack, "127.0.0.2")
        await wait_until_async(lambda: server.connections == 1)
        await open_idle(server, 80, stack)
        await asyncio.sleep(0.1)
        elsewhere.send(GET)
        assert (await elsewhere.reply()).status == 200


@on_both_loops
async def test_half_a_request_that_is_evicted_gets_an_error() -> None:
    async with (
        serving(KeyedWitness(), limits(max_connections=4)) as server,
        connect_raw(server) as half,
        AsyncExitStack() as stack,
    ):
        half.send(b"POST /first HTTP/1.1\r\nHost")
        await asyncio.sleep(0.1)
        await open_idle(server, 8, stack)
        assert (await half.reply()).status == 503


class Place:
    def __init__(self, *, is_idle: bool = True) -> None:
        self.is_idle = is_idle
        self.evicted = False

    def evict(self) -> None:
        self.evicted = True


def test_a_connection_whose_request_is_handled_is_not_evicted() -> None:
    admission = Admission()
    busy, idle, newcomer = Place(is_idle=False), Place(), Place()
    for place in (busy, idle, newcomer):
        admission.add(place, "10.0.0.1")
    assert admission.make_room(newcomer, 2)
    assert (busy.evicted, idle.evicted, newcomer.evicted) == (False, True, False)
    assert not admission.make_room(newcomer, 2)
    assert (busy.evicted, newcomer.evicted) == (False, False)


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("", ""),
        ("a:b", "a:b"),
    ],
)
def test_an_ipv6_client_is_counted_by_its_network(peer: str, network: str) -> None:
    assert network_of(peer) == network
