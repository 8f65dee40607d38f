"""A request body has a total time: a fixed part, and a part that its bytes earn at the lowest rate we accept."""

import asyncio

import pytest

from dragoman.net.limits import UploadTimer
from dragoman.net.server import ConnectionLimits
from fakes.loops import on_uvloop_first
from net.raw_client import Witness, connect_raw, limits, serving

POST = b"POST /first HTTP/1.1\r\nHost: gateway\r\n"


@pytest.mark.parametrize("chunked", [False, True])
@on_uvloop_first
async def test_a_body_that_trickles_is_refused_in_time_however_steadily_it_comes(chunked: bool) -> None:
    loop = asyncio.get_running_loop()
    settings = limits(body_timeout_s=0.3, min_body_bytes_per_s=1000.0)
    async with serving(Witness(), settings) as server, connect_raw(server) as client:
        framing = b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"Content-Length: 1000\r\n\r\n"
        client.send(POST + framing)
        started = loop.time()

        async def trickle() -> None:
            for _ in range(1000):
                client.send(b"1\r\nx\r\n" if chunked else b"x")
                await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        reply = await client.reply()
        trickling.cancel()
        assert (reply.status, reply.headers[b"connection"]) == (408, b"close")
        assert loop.time() - started > 0.29
        assert await client.wait_closed()


@pytest.mark.parametrize("chunked", [False, True])
@on_uvloop_first
async def test_a_large_body_over_a_slow_line_has_the_time_that_its_bytes_earn(chunked: bool) -> None:
    piece = b"x" * 1000
    loop = asyncio.get_running_loop()
    witness = Witness()
    settings = limits(body_timeout_s=0.4, min_body_bytes_per_s=500.0)
    async with serving(witness, settings) as server, connect_raw(server) as client:
        framing = b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"Content-Length: 8000\r\n\r\n"
        client.send(POST + framing)
        started = loop.time()
        for _ in range(8):
            client.send(b"3e8\r\n" + piece + b"\r\n" if chunked else piece)
            await asyncio.sleep(0.12)
        client.send(b"0\r\n\r\n" if chunked else b"")
        assert (await client.reply()).status == 200
        assert loop.time() - started > 0.8  # twice what a body that earns nothing may take
        assert witness.bodies == [piece * 8]


@pytest.mark.parametrize(
    ("received", "elapsed", "patience"),
    [
        (0, 0.0, 30.0),
        (30, 29.0, 1.0 + 30 / 4096),  # a byte per second
        (40, 40.0, 0.0),
        (4096 * 100, 100.0, 30.0),  # 4 KB/s: the gap is what counts
        (4096 * 100, 129.0, 1.0),
        (32 * 1024 * 1024, 8000.0, 30.0),
    ],
)
def test_how_long_the_next_bytes_may_take(received: int, elapsed: float, patience: float) -> None:
    assert UploadTimer(ConnectionLimits(), 500.0).seconds_left(received, 500.0 + elapsed) == pytest.approx(patience)
