"""Connections are reused while they are good, replaced when stale, and closed at once on request."""

import asyncio
import resource
import socket

import pytest

from dragoman.net.client import (
    DIRECT,
    ConnectionLost,
    DialOptions,
    HttpClient,
    HttpResponse,
    OutgoingRequest,
    SizeLimitExceeded,
    UpstreamTimeout,
)
from dragoman.net.dial import connect, parse_url
from dragoman.net.outbound import UpstreamConnection
from dragoman.net.write_batch import WriteBatch
from fakes.loops import on_both_loops
from fakes.raw import Flood, HalfClose, Hold, Pause, RawServer, Request, Reset, Script
from waiting import wait_until_async

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def ask(client: HttpClient, server: RawServer, dial: DialOptions = DIRECT) -> HttpResponse:
    return await client.send(OutgoingRequest("POST", server.url, (), b"{}"), dial, head_timeout_s=60)


async def fetch(client: HttpClient, server: RawServer, dial: DialOptions = DIRECT) -> bytes:
    return await (await ask(client, server, dial)).read(100, 60)


@on_both_loops
async def test_one_connection_serves_one_request_after_another(client: HttpClient) -> None:
    async with RawServer((Request(), OK) * 3 + (Hold(),)) as server:
        for _ in range(3):
            assert await fetch(client, server) == b"ok"
        assert len(server.visits) == 1


@on_both_loops
async def test_the_connection_that_was_used_last_is_taken_first(client: HttpClient) -> None:
    async with RawServer((Request(), OK, Request(), OK, Hold())) as server:
        first, second = await ask(client, server), await ask(client, server)
        await first.read(9, 60)
        await second.read(9, 60)
        await fetch(client, server)
        assert [len(visit.requests) for visit in server.visits] == [1, 2]


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        OK + b"x",
    ],
    ids=["close", "http/1.0", "second answer", "stray byte"],
)
@on_both_loops
async def test_a_connection_that_ends_or_sends_too_much_is_not_reused(client: HttpClient, wire: bytes) -> None:
    async with RawServer((Request(), wire, Hold())) as server:
        assert await fetch(client, server) == b"ok"
        assert await fetch(client, server) == b"ok"
        assert len(server.visits) == 2
        await asyncio.gather(*(visit.gone.wait() for visit in server.visits))


@on_both_loops
async def test_bytes_on_an_idle_connection_make_it_unusable(client: HttpClient) -> None:
    late = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
    async with RawServer((Request(), OK, Pause(0.02), late, Hold()), (Request(), OK, Hold())) as server:
        assert await fetch(client, server) == b"ok"
        await asyncio.wait_for(server.visits[0].gone.wait(), 60)
        assert await fetch(client, server) == b"ok"
        assert len(server.visits) == 2


ENDS = pytest.mark.parametrize("end", [(), (Reset(),), (HalfClose(), Hold())], ids=["close", "reset", "half-close"])


async def look(client: HttpClient, server: RawServer) -> bytes:
    return await (await client.send(OutgoingRequest("GET", server.url, ()), DIRECT, head_timeout_s=60)).read(100, 60)


@ENDS
@on_both_loops
async def test_a_stale_connection_is_replaced_unnoticed_for_what_changes_nothing(
    client: HttpClient, end: Script
) -> None:
    async with RawServer((Request(), OK, Request(), *end), (Request(), OK, Hold())) as server:
        assert await look(client, server) == b"ok"
        assert await look(client, server) == b"ok"
        assert [len(visit.requests) for visit in server.visits] == [2, 1]


@ENDS
@on_both_loops
async def test_a_request_that_an_upstream_may_have_read_is_never_repeated_by_itself(
    client: HttpClient, end: Script
) -> None:
    async with RawServer((Request(), OK, Request(), *end), (Request(), OK, Hold())) as server:
        assert await fetch(client, server) == b"ok"
        with pytest.raises(ConnectionLost) as caught:
            await fetch(client, server)
        assert (caught.value.sent, caught.value.received, caught.value.stale) == (True, False, True)
        assert [len(visit.requests) for visit in server.visits] == [2]
        assert await fetch(client, server) == b"ok"
        assert [len(visit.requests) for visit in server.visits] == [2, 1]


@on_both_loops
async def test_after_a_stale_connection_the_other_idle_ones_are_not_tried_either(client: HttpClient) -> None:
    old = (Request(), OK, Request())
    async with RawServer(old, old, (Request(), OK, Hold())) as server:
        first, second = await ask(client, server), await ask(client, server)
        await first.read(9, 60)
        await second.read(9, 60)
        with pytest.raises(ConnectionLost):
            await fetch(client, server)
        assert await fetch(client, server) == b"ok"
        assert [len(visit.requests) for visit in server.visits] == [1, 2, 1]


@on_both_loops
async def test_a_fresh_connection_in_place_of_a_stale_one_may_fail_and_that_is_all(client: HttpClient) -> None:
    async with RawServer((Request(), OK, Request()), (Request(),), (Request(), OK)) as server:
        assert await look(client, server) == b"ok"
        with pytest.raises(ConnectionLost) as caught:
            await look(client, server)
        assert (caught.value.sent, caught.value.received, caught.value.stale) == (True, False, False)
        assert len(server.visits) == 2


@on_both_loops
async def test_a_reused_connection_that_breaks_after_a_byte_is_lost(client: HttpClient) -> None:
    async with RawServer((Request(), OK, Request(), b"H"), (Request(), OK)) as server:
        assert await fetch(client, server) == b"ok"
        with pytest.raises(ConnectionLost) as caught:
            await fetch(client, server)
        assert caught.value.received
        assert len(server.visits) == 1


@pytest.mark.parametrize("end", [(), (Reset(),)], ids=["close", "reset"])
@on_both_loops
async def test_a_fresh_connection_closed_before_the_answer_is_lost(client: HttpClient, end: Script) -> None:
    async with RawServer((Request(), *end)) as server:
        with pytest.raises(ConnectionLost, match="before it answered") as caught:
            await fetch(client, server)
        assert (caught.value.sent, caught.value.received) == (True, False)
        assert len(server.visits) == 1


@pytest.mark.parametrize("end", [(), (Reset(),)], ids=["close", "reset"])
@on_both_loops
async def test_a_server_that_accepts_and_closes_is_lost_at_once(client: HttpClient, end: Script) -> None:
    async with RawServer(end) as server:
        outcomes = await asyncio.gather(*(fetch(client, server) for _ in range(100)), return_exceptions=True)
        assert all(isinstance(lost, ConnectionLost) and not lost.received for lost in outcomes)


@on_both_loops
async def test_a_connection_closed_between_its_making_and_its_first_use_is_lost() -> None:
    gone: list[UpstreamConnection] = []
    async with RawServer(()) as server:
        fresh = UpstreamConnection(asyncio.get_running_loop(), "upstream.test:80", WriteBatch(), gone.append)
        await connect(parse_url(server.url), DIRECT, fresh)
        await wait_until_async(lambda: gone == [fresh])
        with pytest.raises(ConnectionLost, match="at once") as caught:
            fresh.begin("GET", b"GET / HTTP/1.1\r\n\r\n", b"")
        assert caught.value.sent is False


@on_both_loops
async def test_a_closed_port_is_lost_before_anything_is_sent(client: HttpClient) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}: Connection refused") as caught:
            await client.send(OutgoingRequest("GET", f"http://127.0.0.1:{port}/?key=sk-fake", ()), head_timeout_s=60)
    assert (caught.value.sent, caught.value.received) == (False, False)
    assert "sk-fake" not in str(caught.value)


@on_both_loops
async def test_idle_connections_expire() -> None:
    client = HttpClient(idle_s=0.05)
    async with RawServer((Request(), OK, Hold())) as server:
        assert await fetch(client, server) == b"ok"
        await asyncio.wait_for(server.visits[0].gone.wait(), 60)
        assert await fetch(client, server) == b"ok"
        assert len(server.visits) == 2
    await client.close()


@on_both_loops
async def test_a_connection_that_is_not_to_be_kept_is_closed_after_its_request(client: HttpClient) -> None:
    async with RawServer((Request(), OK, Hold())) as server:
        for visits in (1, 2):
            assert await fetch(client, server, DialOptions(keeps_connections=False)) == b"ok"
            await asyncio.wait_for(server.visits[-1].gone.wait(), 60)
            assert len(server.visits) == visits


@on_both_loops
async def test_close_in_mid_stream_closes_the_upstream_at_once(client: HttpClient) -> None:
    async with RawServer((Request(), STREAM, b"2\r\nok\r\n", Hold())) as server:
        answer = await ask(client, server)
        assert await answer.chunk(60) == b"ok"
        answer.close()
        answer.close()
        await asyncio.wait_for(server.visits[0].gone.wait(), 60)
        with pytest.raises(ConnectionLost):
            await answer.chunk(60)


@on_both_loops
async def test_a_cancelled_send_closes_the_upstream_at_once(client: HttpClient) -> None:
    async with RawServer((Request(), Hold())) as server:
        sending = asyncio.create_task(ask(client, server))
        await wait_until_async(lambda: len(server.requests) == 1)
        sending.cancel()
        await asyncio.wait_for(server.visits[0].gone.wait(), 60)
        with pytest.raises(asyncio.CancelledError):
            await sending


@on_both_loops
async def test_close_after_the_whole_body_arrived_keeps_the_connection(client: HttpClient) -> None:
    async with RawServer((Request(), OK, Request(), OK, Hold())) as server:
        (await ask(client, server)).close()
        assert await fetch(client, server) == b"ok"
        assert len(server.visits) == 1


@on_both_loops
async def test_a_body_beyond_the_limit_is_refused_and_its_connection_dropped(client: HttpClient) -> None:
    async with RawServer((Request(), b"HTTP/1.1 200 OK\r\n\r\n", Flood(b"x" * 1000))) as server:
        with pytest.raises(SizeLimitExceeded):
            await (await ask(client, server)).read(5000, 60)
        await asyncio.wait_for(server.visits[0].gone.wait(), 60)


@on_both_loops
async def test_an_answer_before_the_request_was_read_spoils_the_connection(client: HttpClient) -> None:
    big = b"x" * (16 << 20)
    async with RawServer((OK, Pause(0.05), Hold()), (Request(), OK, Hold())) as server:
        answer = await client.send(OutgoingRequest("POST", server.url, (), big), head_timeout_s=60)
        assert await answer.read(9, 60) == b"ok"
        assert await fetch(client, server) == b"ok"
        assert len(server.visits) == 2


@on_both_loops
async def test_the_limit_per_host_makes_the_next_request_wait_its_turn() -> None:
    client = HttpClient(max_per_host=1)
    async with RawServer((Request(), OK, Request(), OK, Hold())) as server:
        first = await ask(client, server)
        second = asyncio.create_task(fetch(client, server))
        await asyncio.sleep(0.02)
        assert len(server.requests) == 1
        assert await first.read(9, 60) == b"ok"
        assert await second == b"ok"
        assert len(server.visits) == 1
    await client.close()


@on_both_loops
async def test_a_stale_connection_at_the_limit_still_lets_everyone_through() -> None:
    client = HttpClient(max_per_host=1)
    async with RawServer((Request(), OK, Request()), (*(Request(), OK) * 9, Hold())) as server:
        assert await fetch(client, server) == b"ok"
        assert await asyncio.gather(*(look(client, server) for _ in range(5))) == [b"ok"] * 5
        assert [len(visit.requests) for visit in server.visits] == [2, 5]
    await client.close()


@on_both_loops
async def test_a_turn_given_to_one_who_left_goes_to_the_next() -> None:
    client = HttpClient(max_per_host=1)
    async with RawServer((*(Request(), OK) * 9, Hold())) as server:
        first = await ask(client, server)
        leaving = asyncio.create_task(fetch(client, server))
        staying = asyncio.create_task(fetch(client, server))
        await asyncio.sleep(0.01)
        first.close()
        leaving.cancel()
        assert await staying == b"ok"
    await client.close()


@on_both_loops
async def test_an_origin_without_connections_is_forgotten() -> None:
    client = HttpClient(idle_s=0.02)
    async with RawServer((Request(), OK, Hold())) as server:
        await fetch(client, server)
        assert len(client._pools) == 1
        await wait_until_async(lambda: client._pools == {})
        await asyncio.wait_for(server.visits[0].gone.wait(), 60)
    with pytest.raises(ConnectionLost):
        await fetch(client, server)
    assert client._pools == {}


@on_both_loops
async def test_waiting_for_a_turn_ends_with_the_connect_timeout() -> None:
    client = HttpClient(max_per_host=1)
    async with RawServer((Request(), STREAM, Hold())) as server:
        first = await ask(client, server, DialOptions(connect_timeout_s=0.5))
        with pytest.raises(UpstreamTimeout) as caught:
            await ask(client, server, DialOptions(connect_timeout_s=0.5))
        assert caught.value.phase == "connect"
        first.close()
    await client.close()


@on_both_loops
async def test_closing_the_client_fails_what_is_open_and_refuses_what_comes() -> None:
    client = HttpClient()
    async with RawServer((Request(), STREAM, Hold())) as server:
        answer = await ask(client, server)
        waiting = asyncio.create_task(answer.chunk(60))
        await asyncio.sleep(0.01)
        await client.close()
        with pytest.raises(ConnectionLost, match="closed by us"):
            await waiting
        await asyncio.wait_for(server.visits[0].gone.wait(), 60)
        with pytest.raises(ConnectionLost, match="the client is closed"):
            await ask(client, server)


@on_both_loops
async def test_small_writes_are_not_held_back(client: HttpClient) -> None:
    async with RawServer((Request(), STREAM, Hold())) as server:
        answer = await ask(client, server)
        assert answer._connection is not None
        assert answer._connection._transport is not None
        sock = answer._connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        answer.close()


@on_both_loops
@pytest.mark.rest
async def test_a_thousand_streams_run_at_once(client: HttpClient) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    go_on = Pause(0.2)
    async with RawServer((Request(), STREAM, b"2\r\nhe\r\n", go_on, b"3\r\nllo\r\n0\r\n\r\n", Hold())) as server:
        answers = await asyncio.gather(*(ask(client, server) for _ in range(1000)))
        bodies = await asyncio.gather(*(answer.read(100, 60) for answer in answers))
        assert bodies == [b"hello"] * 1000
        assert len(server.visits) == 1000
