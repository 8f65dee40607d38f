"""A slow consumer holds the upstream back, and an upstream that sends nothing is noticed in time."""

import asyncio
import time

import pytest

from dragoman.net.client import HttpClient, HttpResponse, OutgoingRequest, UpstreamTimeout
from fakes.loops import on_both_loops
from fakes.raw import Flood, Hold, Pause, RawServer, Request, Until, bytewise

STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def ask(client: HttpClient, server: RawServer, head_timeout_s: float = 60) -> HttpResponse:
    return await client.send(OutgoingRequest("GET", server.url, ()), head_timeout_s=head_timeout_s)


@on_both_loops
async def test_a_fast_upstream_is_paused_while_nothing_is_read_and_resumes_afterwards(client: HttpClient) -> None:
    piece = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    async with RawServer((Request(), STREAM, Flood(piece))) as server:
        answer = await ask(client, server)
        visit = server.visits[0]
        before = -1
        while visit.sent != before:
            before = visit.sent
            await asyncio.sleep(0.1)
        assert answer._connection is not None
        # One read of the event loop may come on top of the mark at which reading stops.
        assert 0 < answer._connection.buffered <= (128 + 256) << 10
        taken = 0
        while taken <= before:
            taken += len(await answer.chunk(60))
        assert visit.sent > before
        answer.close()
        await asyncio.wait_for(visit.gone.wait(), 60)


@on_both_loops
async def test_a_paused_stream_loses_no_byte(client: HttpClient) -> None:
    body = bytes(range(256)) * 8192
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with RawServer((Request(), head + body)) as server:
        answer = await ask(client, server)
        pieces = []
        while piece := await answer.chunk(60):
            pieces.append(piece)
            await asyncio.sleep(0.002)
        assert b"".join(pieces) == body


@on_both_loops
async def test_no_head_in_time_is_a_first_timeout_and_the_connection_is_dropped(client: HttpClient) -> None:
    async with RawServer((Request(), *bytewise(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1000, 0.01))) as server:
        began = time.monotonic()
        with pytest.raises(UpstreamTimeout) as caught:
            await ask(client, server, 0.05)
        assert caught.value.phase == "first"
        assert 0.04 < time.monotonic() - began < 60
        assert str(server.port) in str(caught.value)
        await asyncio.wait_for(server.visits[0].gone.wait(), 60)


@on_both_loops
async def test_a_pause_in_the_body_is_an_idle_timeout_after_which_reading_may_continue(client: HttpClient) -> None:
    go_on = asyncio.Event()
    async with RawServer((Request(), STREAM, Until(go_on), b"2\r\nok\r\n0\r\n\r\n", Hold())) as server:
        answer = await ask(client, server)
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(UpstreamTimeout) as caught:
                await answer.chunk(0.05)
            assert caught.value.phase == "idle"
            assert 0.04 < time.monotonic() - began < 60
        go_on.set()
        assert await answer.chunk(60) == b"ok"
        assert await answer.chunk(60) == b""


@on_both_loops
async def test_framing_without_content_does_not_count_as_life(client: HttpClient) -> None:
    async with RawServer((Request(), STREAM, *bytewise(b"1;" + b"x" * 3000, 0.01))) as server:
        answer = await ask(client, server)
        began = time.monotonic()
        with pytest.raises(UpstreamTimeout):
            await answer.chunk(0.1)
        assert time.monotonic() - began < 60
        answer.close()


@on_both_loops
async def test_a_steady_stream_outlives_its_idle_timeout(client: HttpClient) -> None:
    steps = [step for _ in range(15) for step in (b"2\r\nok\r\n", Pause(0.1))]
    async with RawServer((Request(), STREAM, *steps, b"0\r\n\r\n", Hold())) as server:
        answer = await ask(client, server)
        pieces = []
        while piece := await answer.chunk(1):
            pieces.append(piece)
        assert b"".join(pieces) == b"ok" * 15


@on_both_loops
async def test_a_whole_body_has_its_time_however_steadily_it_trickles(client: HttpClient) -> None:
    steps = [step for _ in range(200) for step in (b"2\r\nok\r\n", Pause(0.1))]
    async with RawServer((Request(), STREAM, *steps, b"0\r\n\r\n", Hold())) as server:
        with pytest.raises(UpstreamTimeout):
            await (await ask(client, server)).read(1000, 0.3)


@on_both_loops
async def test_a_long_stream_of_cut_chunk_heads_is_not_taken_for_an_attack(client: HttpClient) -> None:
    extension = b";" + b"x" * 20_000
    steps = [step for _ in range(5) for step in (b"2" + extension, Pause(0.01), b"\r\nok\r\n", Pause(0.01))]
    async with RawServer((Request(), STREAM, *steps, b"0\r\n\r\n", Hold())) as server:
        assert await (await ask(client, server)).read(100, 60) == b"ok" * 5
