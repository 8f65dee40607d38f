"""Writes of one turn of the event loop are sent together at its end; none is lost or delayed further."""

import asyncio

import pytest

from dragoman.net.client import ConnectionLost, HttpClient, OutgoingRequest
from dragoman.net.dial import DialOptions, connect, parse_url
from dragoman.net.http_request import HttpRequest
from dragoman.net.outbound import UpstreamConnection
from dragoman.net.socket_sink import SocketSink
from dragoman.net.write_batch import QUIET_S, WriteBatch
from fakes.loops import on_both_loops
from fakes.raw import Hold, RawServer, Request, Until
from net.raw_client import GET, connect_raw, serving


class Note:
    def __init__(self, sent: list[str], name: str) -> None:
        self._sent = sent
        self._name = name

    def send_now(self) -> None:
        self._sent.append(self._name)


@on_both_loops
async def test_the_first_after_a_lull_is_sent_at_once_and_all_others_in_order_once_the_turn_is_over() -> None:
    sent: list[str] = []
    moments = iter((10.0, 10.0 + QUIET_S / 2, 20.0))
    batch = WriteBatch(lambda: next(moments))
    for name in ("one", "two", "three"):
        batch.add(Note(sent, name))
    assert sent == ["one"]
    await asyncio.sleep(0)
    assert sent == ["one", "two", "three"]
    batch.add(Note(sent, "four"))
    assert sent == ["one", "two", "three", "four"]


@on_both_loops
async def test_what_was_written_just_before_a_break_reaches_the_client() -> None:
    async def break_off(request: HttpRequest, sink: SocketSink) -> None:
        sink.begin(200, [])
        sink.write(b"half a")
        sink.abort()

    async with serving(break_off) as server, connect_raw(server) as client:
        client.send(GET)
        assert b"half a" in await client.reader.read()


@on_both_loops
async def test_a_handler_that_never_waits_learns_at_once_that_the_client_is_too_slow() -> None:
    written = 0

    async def flood(request: HttpRequest, sink: SocketSink) -> None:
        nonlocal written
        sink.begin(200, [])
        while sink.write(b"x" * 4096) and written < 1 << 30:
            written += 4096
        sink.abort()

    async with serving(flood) as server, connect_raw(server) as client:
        client.send(GET)
        await client.reader.read(1)
    assert 0 < written < 64 << 20


class Stuck(WriteBatch):
    """A turn that never ends."""

    def add(self, sender: object) -> None:
        return


@on_both_loops
async def test_a_request_whose_connection_ends_within_its_turn_was_not_sent() -> None:
    go_on = asyncio.Event()
    async with RawServer((Until(go_on),)) as server:
        fresh = UpstreamConnection(asyncio.get_running_loop(), "upstream.test:80", Stuck(), lambda connection: None)
        await connect(parse_url(server.url), DialOptions(), fresh)
        fresh.begin("GET", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"")
        go_on.set()
        await fresh.wait(60)
        with pytest.raises(ConnectionLost) as caught:
            fresh.check_head()
        assert caught.value.sent is False


@on_both_loops
async def test_requests_of_one_turn_each_get_their_own_answer() -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    client = HttpClient()
    async with RawServer((Request(), answer, Hold())) as server:
        outgoing = OutgoingRequest("POST", server.url, (), b"body")
        answers = await asyncio.gather(*(client.send(outgoing, head_timeout_s=60) for _ in range(20)))
        assert [await one.read(10, 60) for one in answers] == [b"ok"] * 20
    await client.close()
