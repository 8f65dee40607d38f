"""Whatever the framing and wherever the network cuts, the body arrives whole, or its loss is an error."""

import pytest

from dragoman.net.client import ConnectionLost, HttpClient, HttpResponse, InvalidResponse, OutgoingRequest
from fakes.loops import on_both_loops
from fakes.raw import HalfClose, Hold, Pause, RawServer, Request, Reset, Script, bytewise

BODY = "data: größe 👋\n\n".encode() * 3

SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n"
    + BODY[:5]
    + b"\r\n%X;note=x\r\n" % len(BODY[5:])
    + BODY[5:]
    + b"\r\n0\r\nx-trailer: y\r\n\r\n"
)
TO_THE_END = b"HTTP/1.1 200 OK\r\nX-Empty:\r\n\r\n" + BODY
FRAMINGS = {"sized": SIZED, "chunked": CHUNKED, "to-the-end": TO_THE_END}
framings = pytest.mark.parametrize("framing", FRAMINGS)


async def ask(client: HttpClient, server: RawServer, method: str = "GET") -> HttpResponse:
    return await client.send(OutgoingRequest(method, server.url + "/v1", ()), head_timeout_s=60)


async def fetch(client: HttpClient, server: RawServer) -> bytes:
    return await (await ask(client, server)).read(1 << 20, 60)


@framings
@on_both_loops
async def test_a_body_survives_every_single_cut(framing: str) -> None:
    wire = FRAMINGS[framing]
    scripts: list[Script] = [(Request(), wire[:cut], Pause(0.001), wire[cut:]) for cut in range(1, len(wire))]
    async with RawServer(*scripts) as server:
        for _ in scripts:
            client = HttpClient()
            assert await fetch(client, server) == BODY
            await client.close()


@framings
@on_both_loops
async def test_a_body_survives_byte_by_byte(client: HttpClient, framing: str) -> None:
    async with RawServer((Request(), *bytewise(FRAMINGS[framing]))) as server:
        assert await fetch(client, server) == BODY


@framings
@on_both_loops
async def test_an_end_at_any_byte_is_lost_unless_the_close_is_the_end(framing: str) -> None:
    wire = FRAMINGS[framing]
    head_end = wire.index(b"\r\n\r\n") + 4
    scripts: list[Script] = [(Request(), wire[:cut]) for cut in range(len(wire))]
    async with RawServer(*scripts) as server:
        for cut in range(len(wire)):
            client = HttpClient()
            if framing == "to-the-end" and cut >= head_end:
                assert await fetch(client, server) == wire[head_end:cut]
            else:
                with pytest.raises(ConnectionLost) as caught:
                    await fetch(client, server)
                assert caught.value.sent
                assert caught.value.received == (cut > 0)
            await client.close()


@framings
@on_both_loops
async def test_a_reset_in_the_body_is_lost_after_what_came_before_it(client: HttpClient, framing: str) -> None:
    wire = FRAMINGS[framing]
    cut = wire.index(BODY[:5]) + 5
    async with RawServer((Request(), wire[:cut], Pause(0.05), Reset())) as server:
        answer = await ask(client, server)
        assert await answer.chunk(60) == BODY[:5]
        with pytest.raises(ConnectionLost, match="broke the connection in the middle") as caught:
            await answer.chunk(60)
        assert caught.value.received
        answer.close()


@on_both_loops
async def test_a_short_body_gives_its_bytes_before_the_loss(client: HttpClient) -> None:
    async with RawServer((Request(), b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort")) as server:
        answer = await ask(client, server)
        assert await answer.chunk(60) == b"short"
        with pytest.raises(ConnectionLost):
            await answer.chunk(60)


@on_both_loops
async def test_a_half_closed_server_ends_a_body_that_runs_to_the_end(client: HttpClient) -> None:
    async with RawServer((Request(), TO_THE_END, HalfClose(), Hold())) as server:
        assert await fetch(client, server) == BODY


@on_both_loops
async def test_all_pieces_of_one_read_are_one_chunk(client: HttpClient) -> None:
    many = b"".join(b"1\r\n%c\r\n" % letter for letter in b"abcdef")
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    async with RawServer((Request(), head, Pause(0.02), many, Pause(0.02), b"0\r\n\r\n", Hold())) as server:
        answer = await ask(client, server)
        assert await answer.chunk(60) == b"abcdef"
        assert await answer.chunk(60) == b""
        assert await answer.chunk(60) == b""


@on_both_loops
async def test_interim_responses_are_skipped(client: HttpClient) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with RawServer((Request(), interim, Pause(0.01), SIZED, Hold())) as server:
        answer = await ask(client, server)
        assert answer.status == 200
        assert list(answer.headers) == [(b"content-length", b"%d" % len(BODY))]
        assert await answer.read(1000, 60) == BODY


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    ],
)
@on_both_loops
async def test_an_answer_without_a_body_ends_at_once_and_the_connection_serves_again(
    client: HttpClient, wire: bytes
) -> None:
    async with RawServer((Request(), wire, Request(), wire, Hold())) as server:
        assert await fetch(client, server) == b""
        assert await fetch(client, server) == b""
        assert len(server.visits) == 1


@on_both_loops
async def test_an_answer_to_head_has_no_body_whatever_it_declares(client: HttpClient) -> None:
    async with RawServer((Request(), b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n", Hold())) as server:
        answer = await ask(client, server, "HEAD")
        assert answer.headers.get(b"content-length") == b"99"
        assert await answer.chunk(60) == b""


MALFORMED = {
    "html": b"<html>hello</html>",
    "no version": b"HTTP 200 OK\r\n\r\n",
    "bare line feeds": b"HTTP/1.1 200 OK\ncontent-length: 0\n\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    "length and chunked": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "gzip transfer": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "folded": b"HTTP/1.1 200 OK\r\nx: a\r\n b\r\n\r\n",
    "switch": b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nx",
    "bad chunk size": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
    "large head": b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000 + b"\r\n\r\n",
    "large head and body": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx: " + b"a" * 70_000 + b"\r\n\r\nok",
    "many fields": b"HTTP/1.1 200 OK\r\n" + b"x-field: 1234567890\r\n" * 5000 + b"\r\n",
    "endless head": b"HTTP/1.1 200 OK\r\nx: " + b"a" * 300_000,
    "endless interim": b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
    "endless trailer": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: " + b"a" * 300_000,
    "endless extension": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;" + b"a" * 300_000,
}


@pytest.mark.parametrize("case", MALFORMED)
@on_both_loops
async def test_a_malformed_answer_is_corrupt(client: HttpClient, case: str) -> None:
    async with RawServer((Request(), MALFORMED[case], Hold())) as server:
        with pytest.raises(InvalidResponse) as caught:
            await fetch(client, server)
        assert caught.value.received
        assert str(server.port) in str(caught.value)
        await server.visits[0].gone.wait()
