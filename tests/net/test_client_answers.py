"""An encoding that was not requested is decoded, and a wrong declaration of it is an error."""

import gzip
import zlib

import pytest
import zstandard

from dragoman.net.client import HttpClient, InvalidResponse, OutgoingRequest, SizeLimitExceeded
from fakes.loops import on_both_loops
from fakes.raw import Hold, Pause, RawServer, Request, bytewise

PLAIN = "data: größe 👋\n\n".encode() * 20
PACKED = {
    b"gzip": gzip.compress(PLAIN),
    b"deflate": zlib.compress(PLAIN),
    b"zstd": zstandard.compress(PLAIN),
    b"gzip, zstd": zstandard.compress(gzip.compress(PLAIN)),
}
every_coding = pytest.mark.parametrize("coding", PACKED)


def reply(coding: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: %b\r\ncontent-length: %d\r\nx: y\r\n\r\n"
    return head % (coding, len(body)) + body


@every_coding
@on_both_loops
async def test_an_encoded_answer_arrives_decoded_and_without_its_encoding_header(
    client: HttpClient, coding: bytes
) -> None:
    wire = reply(coding, PACKED[coding])
    async with RawServer((Request(), wire, Request(), *bytewise(wire), Hold())) as server:
        for _ in range(2):
            answer = await client.send(OutgoingRequest("GET", server.url, ()), head_timeout_s=60)
            assert list(answer.headers) == [(b"x", b"y")]
            assert await answer.read(len(PLAIN), 60) == PLAIN
            assert await answer.chunk(60) == b""
        assert len(server.visits) == 1
        assert b"accept-encoding: identity\r\n" in server.requests[0]


@on_both_loops
async def test_an_event_is_decoded_as_soon_as_its_bytes_are_here(client: HttpClient) -> None:
    stream = zlib.compressobj(wbits=31)
    first = stream.compress(b"data: 1\n\n") + stream.flush(zlib.Z_SYNC_FLUSH)
    rest = stream.compress(b"data: 2\n\n") + stream.flush()
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n"
    async with RawServer((Request(), head, first, Pause(0.05), rest)) as server:
        answer = await client.send(OutgoingRequest("GET", server.url, ()), head_timeout_s=60)
        assert [await answer.chunk(60) for _ in range(3)] == [b"data: 1\n\n", b"data: 2\n\n", b""]


@every_coding
@on_both_loops
async def test_a_wrong_content_encoding_is_corrupt(client: HttpClient, coding: bytes) -> None:
    async with RawServer((Request(), reply(coding, b'{"error":"not packed at all"}'), Hold())) as server:
        answer = await client.send(OutgoingRequest("GET", server.url, ()), head_timeout_s=60)
        with pytest.raises(InvalidResponse, match=r"the body is not|body is cut short"):
            await answer.read(1000, 60)


@every_coding
@on_both_loops
async def test_an_encoded_body_cut_inside_its_declared_length_is_corrupt(client: HttpClient, coding: bytes) -> None:
    async with RawServer((Request(), reply(coding, PACKED[coding][:-3]), Hold())) as server:
        answer = await client.send(OutgoingRequest("GET", server.url, ()), head_timeout_s=60)
        with pytest.raises(InvalidResponse):
            await answer.read(len(PLAIN), 60)


@on_both_loops
@pytest.mark.parametrize("coding", [b"snappy", b"br"])
async def test_an_unknown_encoding_is_corrupt_at_the_head(client: HttpClient, coding: bytes) -> None:
    async with RawServer((Request(), reply(coding, b"abc"), Hold())) as server:
        with pytest.raises(InvalidResponse, match=f"unknown content encoding {coding!r}"):
            await client.send(OutgoingRequest("GET", server.url, ()), head_timeout_s=60)


@on_both_loops
async def test_an_empty_body_may_name_any_encoding(client: HttpClient) -> None:
    async with RawServer((Request(), reply(b"gzip", b""), Hold())) as server:
        answer = await client.send(OutgoingRequest("GET", server.url, ()), head_timeout_s=60)
        assert await answer.read(10, 60) == b""


@pytest.mark.parametrize(
    ("coding", "bomb", "outcome"),
    [
        (b"gzip", gzip.compress(bytes(32 << 20)), SizeLimitExceeded),
        (b"zstd", zstandard.compress(bytes(256 << 20)), InvalidResponse),
    ],
)
@on_both_loops
async def test_a_bomb_is_refused(client: HttpClient, coding: bytes, bomb: bytes, outcome: type[Exception]) -> None:
    async with RawServer((Request(), reply(coding, bomb), Hold())) as server:
        answer = await client.send(OutgoingRequest("GET", server.url, ()), head_timeout_s=60)
        with pytest.raises(outcome):
            await answer.read(1 << 20, 60)
