"""`stream_to`: the sink gets every byte in order, none after it pauses, and errors are raised as by `chunk`."""

import asyncio
import gzip
import time
from contextvars import ContextVar

import pytest

from dragoman.net import outbound
from dragoman.net.client import ConnectionLost, HttpClient, HttpResponse, OutgoingRequest, UpstreamTimeout
from dragoman.net.encoding import PIECE
from fakes.loops import on_both_loops
from fakes.raw import Flood, Hold, Pause, RawServer, Request, Reset, Until, bytewise
from waiting import wait_until_async

STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
HELLO = b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"


class Collector:
    """A sink that keeps what it gets, and has enough after so many pieces."""

    def __init__(self, most: int = 1000, patience_s: float = 60.0) -> None:
        self.pieces: list[bytes] = []
        self._most = most
        self._patience_s = patience_s

    def __call__(self, piece: bytes) -> float | None:
        self.pieces.append(piece)
        return self._patience_s if len(self.pieces) < self._most else None

    @property
    def content(self) -> bytes:
        return b"".join(self.pieces)


async def ask(client: HttpClient, server: RawServer) -> HttpResponse:
    return await client.send(OutgoingRequest("GET", server.url, ()), head_timeout_s=60)


@on_both_loops
async def test_a_body_is_streamed_to_its_end_and_its_connection_is_reused(client: HttpClient) -> None:
    script = (Request(), STREAM, *bytewise(HELLO, 0.001), Request(), STREAM + HELLO, Hold())
    async with RawServer(script) as server:
        for _ in range(2):
            collector = Collector()
            assert await (await ask(client, server)).stream_to(collector, 60)
            assert collector.content == b"hello"
        assert len(server.visits) == 1


@on_both_loops
async def test_what_comes_in_one_read_is_one_piece(client: HttpClient) -> None:
    go_on = asyncio.Event()
    async with RawServer(
        (Request(), STREAM, Pause(0.02), b"1\r\na\r\n1\r\nb\r\n", Until(go_on), HELLO, Hold())
    ) as server:
        collector = Collector()
        streaming = asyncio.ensure_future((await ask(client, server)).stream_to(collector, 60))
        await wait_until_async(lambda: bool(collector.pieces))
        go_on.set()
        assert await streaming
        assert collector.pieces == [b"ab", b"hello"]


@on_both_loops
async def test_a_sink_that_has_enough_gets_no_more_until_it_is_streamed_to_again(client: HttpClient) -> None:
    go_on = asyncio.Event()
    async with RawServer((Request(), STREAM, Pause(0.02), b"1\r\na\r\n", Until(go_on), HELLO, Hold())) as server:
        answer = await ask(client, server)
        first, second = Collector(most=1), Collector()
        assert not await answer.stream_to(first, 60)
        go_on.set()
        await asyncio.sleep(0.2)
        assert first.content == b"a"
        assert await answer.stream_to(second, 60)
        assert second.content == b"hello"


@on_both_loops
async def test_a_fast_upstream_is_paused_once_the_sink_has_enough(client: HttpClient) -> None:
    piece = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    async with RawServer((Request(), STREAM, Flood(piece))) as server:
        answer = await ask(client, server)
        assert not await answer.stream_to(Collector(most=3), 60)
        before = -1
        while server.visits[0].sent != before:
            before = server.visits[0].sent
            await asyncio.sleep(0.1)
        assert answer._connection is not None
        assert answer._connection.buffered <= (128 + 256) << 10
        assert not await answer.stream_to(Collector(most=30), 60)
        assert server.visits[0].sent > before
        answer.close()


@on_both_loops
async def test_bytes_before_a_break_reach_the_sink_before_the_break_is_reported(client: HttpClient) -> None:
    go_on = asyncio.Event()
    async with RawServer((Request(), STREAM, Pause(0.02), b"3\r\nhel\r\n", Until(go_on), Reset())) as server:
        collector = Collector()
        streaming = asyncio.ensure_future((await ask(client, server)).stream_to(collector, 60))
        await wait_until_async(lambda: bool(collector.pieces))
        go_on.set()
        with pytest.raises(ConnectionLost, match="in the middle"):
            await streaming
        assert collector.content == b"hel"


@on_both_loops
async def test_bytes_before_a_broken_frame_of_the_same_read_reach_the_sink(client: HttpClient) -> None:
    async with RawServer((Request(), STREAM, Pause(0.02), b"3\r\nhel\r\nnonsense\r\n", Hold())) as server:
        collector = Collector()
        with pytest.raises(ConnectionLost, match="not valid HTTP"):
            await (await ask(client, server)).stream_to(collector, 60)
        assert collector.content == b"hel"


@on_both_loops
async def test_a_pause_is_reported_after_the_time_that_the_sink_allows(client: HttpClient) -> None:
    go_on = asyncio.Event()
    async with RawServer((Request(), STREAM, b"1\r\na\r\n", Until(go_on), HELLO, Hold())) as server:
        answer = await ask(client, server)
        collector = Collector(patience_s=0.05)
        began = time.monotonic()
        with pytest.raises(UpstreamTimeout) as caught:
            await answer.stream_to(collector, 60)
        assert caught.value.phase == "idle"
        assert time.monotonic() - began < 60
        go_on.set()
        assert await answer.stream_to(collector, 60)
        assert collector.content == b"ahello"


@on_both_loops
async def test_what_a_sink_raises_is_raised_to_the_caller_of_stream_to(client: HttpClient) -> None:
    def raise_error(piece: bytes) -> float | None:
        raise ZeroDivisionError

    async with RawServer((Request(), STREAM, Pause(0.02), HELLO, Hold())) as server:
        answer = await ask(client, server)
        with pytest.raises(ZeroDivisionError):
            await answer.stream_to(raise_error, 60)
        answer.close()


@on_both_loops
async def test_a_sink_runs_in_the_context_of_the_caller(client: HttpClient) -> None:
    context: ContextVar[str] = ContextVar("context", default="none")
    seen = []

    def sink(piece: bytes) -> float:
        seen.append(context.get())
        return 60.0

    async def stream_to(name: str) -> None:
        context.set(name)
        assert await (await ask(client, server)).stream_to(sink, 60)

    script = (Request(), STREAM, Pause(0.02), HELLO, Request(), STREAM, Pause(0.02), HELLO, Hold())
    async with RawServer(script) as server:
        for name in ("one's", "another's"):
            await asyncio.create_task(stream_to(name))
        assert len(server.visits) == 1
    assert seen == ["one's", "another's"]


@on_both_loops
async def test_bytes_that_come_after_streaming_was_cancelled_are_kept(client: HttpClient) -> None:
    go_on = asyncio.Event()
    async with RawServer((Request(), STREAM, Until(go_on), HELLO, Hold())) as server:
        answer = await ask(client, server)
        collector = Collector()
        streaming = asyncio.ensure_future(answer.stream_to(collector, 60))
        await asyncio.sleep(0.02)
        streaming.cancel()
        await asyncio.wait((streaming,))
        go_on.set()
        assert await answer.read(100, 60) == b"hello"
        assert collector.pieces == []


@on_both_loops
async def test_a_compressed_body_is_streamed_decompressed(client: HttpClient) -> None:
    packed = gzip.compress(b"hello" * 100)
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    async with RawServer((Request(), head, *bytewise(packed, 0.001), Hold())) as server:
        collector = Collector()
        assert await (await ask(client, server)).stream_to(collector, 60)
        assert collector.content == b"hello" * 100


@on_both_loops
async def test_a_closed_response_streams_nothing(client: HttpClient) -> None:
    async with RawServer((Request(), STREAM, Hold())) as server:
        answer = await ask(client, server)
        answer.close()
        with pytest.raises(ConnectionLost, match="closed by us"):
            await answer.stream_to(Collector(), 60)


class CostlyCollector(Collector):
    """A sink for which the clock says that each piece takes 3 ms."""

    def __init__(self, clock: "Clock") -> None:
        super().__init__()
        self._clock = clock

    def __call__(self, piece: bytes) -> float | None:
        self._clock.now += 0.003
        return super().__call__(piece)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@on_both_loops
async def test_fast_streams_share_the_turns_of_the_loop(client: HttpClient) -> None:
    """None of them waits for the whole of another, and what is slower than they are waits for two of their reads."""
    flood = b"".join(b"4000\r\n%b\r\n" % (bytes([number]) * 0x4000) for number in range(32))
    content = b"".join(bytes([number]) * 0x4000 for number in range(32))
    go_on, clock = asyncio.Event(), Clock()
    outbound._turns.of_this_loop().clock = clock
    async with RawServer((Request(), STREAM + b"1\r\n!\r\n", Until(go_on), flood + b"0\r\n\r\n", Hold())) as server:
        collectors = [CostlyCollector(clock) for _ in range(20)]
        answers = [await ask(client, server) for _ in collectors]
        pairs = zip(answers, collectors, strict=True)
        streams = [asyncio.ensure_future(answer.stream_to(collector, 60)) for answer, collector in pairs]
        await wait_until_async(lambda: all(collector.pieces for collector in collectors))
        go_on.set()
        longest, now = 0.0, clock.now
        while not all(stream.done() for stream in streams):
            await asyncio.sleep(0)
            longest, now = max(longest, clock.now - now), clock.now
        assert all([await stream for stream in streams])
    assert all(collector.content == b"!" + content for collector in collectors)
    assert longest < 0.01


@on_both_loops
async def test_few_bytes_that_unpack_to_megabytes_are_streamed_in_pieces_with_pauses(client: HttpClient) -> None:
    content = b"data: word\n\n" * 200_000
    packed, turns = gzip.compress(content), 0
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    async with RawServer((Request(), head + packed, Hold())) as server:
        collector = Collector()
        streaming = asyncio.ensure_future((await ask(client, server)).stream_to(collector, 60))
        while not streaming.done():
            await asyncio.sleep(0)
            turns += bool(collector.pieces)
        assert await streaming
    assert collector.content == content
    assert max(map(len, collector.pieces)) <= PIECE
    assert turns >= len(collector.pieces) - 1
