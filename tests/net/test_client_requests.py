"""A request is sent as exactly the expected bytes, and one that would break out of its line is not sent at all."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from dragoman.net.client import DialOptions, HttpClient, OutgoingRequest
from dragoman.net.errors import ClientDisconnected
from fakes.loops import on_both_loops
from fakes.raw import Hold, RawServer, Request
from waiting import wait_until_async

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@on_both_loops
async def test_head_and_body_go_out_as_written(client: HttpClient) -> None:
    headers = (
        (b"authorization", b"Bearer sk-fake-1"),
        (b"x-twice", b"1"),
        (b"x-twice", "größe".encode("latin-1")),
        (b"x-empty", b""),
    )
    async with RawServer((Request(), OK, Hold())) as server:
        await client.send(OutgoingRequest("POST", server.url + "/v1/x?a=b%20c", headers, b"{}"), head_timeout_s=60)
        assert server.requests == [
            b"POST /v1/x?a=b%%20c HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept-encoding: identity\r\n"
            b"authorization: Bearer sk-fake-1\r\nx-twice: 1\r\nx-twice: gr\xf6\xdfe\r\nx-empty: \r\n"
            b"content-length: 2\r\n\r\n{}" % server.port
        ]


@on_both_loops
async def test_framing_belongs_to_the_transport(client: HttpClient) -> None:
    headers = (
        (b"content-length", b"999"),
        (b"transfer-encoding", b"chunked"),
        (b"connection", b"close"),
        (b"host", b"elsewhere.test"),
        (b"accept-encoding", b"gzip"),
        (b"proxy-authorization", b"Basic fake"),
    )
    async with RawServer((Request(), OK, Request(), OK, Hold())) as server:
        await client.send(OutgoingRequest("POST", server.url, headers), head_timeout_s=60)
        plain = b"POST / HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept-encoding: identity\r\n" % server.port
        assert server.requests == [plain + b"content-length: 0\r\n\r\n"]


@on_both_loops
async def test_a_large_body_arrives_whole(client: HttpClient) -> None:
    body = bytes(range(256)) * (1 << 15)
    async with RawServer((Request(), OK, Hold())) as server:
        answer = await client.send(OutgoingRequest("POST", server.url, (), body), head_timeout_s=60)
        assert await answer.read(1, 60) == b""
        assert server.requests[0].endswith(b"\r\n\r\n" + body)


class Abandoned:
    """A body that its sender gives up once it is sent."""

    def __init__(self, length: int) -> None:
        self.length = length

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        yield bytes(self.length)
        raise ClientDisconnected


@on_both_loops
async def test_another_worker_has_all_of_an_upload_once_it_is_sent(client: HttpClient, tmp_path: Path) -> None:
    received: list[int] = []

    async def read_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        size = 0
        while piece := await reader.read(3000):
            size += len(piece)
            await asyncio.sleep(0)
        received.append(size)
        writer.close()

    path = str(tmp_path / "worker")
    server = await asyncio.start_unix_server(read_slowly, path, limit=4096)
    sizes = [*range(150_000, 450_000, 8_000)]  # of some, a short rest does not fit into the socket at first
    for size in sizes:
        out = OutgoingRequest("POST", "http://worker/", (), upload=Abandoned(size))
        with pytest.raises(ClientDisconnected):
            await client.send(out, DialOptions(socket_path=path), head_timeout_s=60)
    await wait_until_async(lambda: len(received) == len(sizes))
    assert sorted(received) == sizes
    server.close()


@pytest.mark.parametrize("evil", [b"a\r\nx-evil: 1", b"a\nb", b"a\rb", b"a\0b"])
@on_both_loops
async def test_a_value_that_breaks_out_of_its_line_is_never_sent(client: HttpClient, evil: bytes) -> None:
    async with RawServer((Hold(),)) as server:
        with pytest.raises(ValueError, match="header authorization") as caught:
            await client.send(OutgoingRequest("GET", server.url, ((b"authorization", evil),)), head_timeout_s=60)
        assert "evil" not in str(caught.value)
        assert server.visits == []


@pytest.mark.parametrize("name", [b"x y", b"x:y", b"x\r\ny", b"", b"\xf6", b"x\0", b"Content-Length"])
@on_both_loops
async def test_a_name_that_is_no_lower_case_token_is_never_sent(client: HttpClient, name: bytes) -> None:
    async with RawServer((Hold(),)) as server:
        with pytest.raises(ValueError, match="header name"):
            await client.send(OutgoingRequest("GET", server.url, ((name, b"1"),)), head_timeout_s=60)
        assert server.visits == []


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/a b?key=sk-fake",
        "http://127.0.0.1/a\r\nx: y?key=sk-fake",
        "http://127.0.0.1/größe?key=sk-fake",
        "http://user:sk-fake@127.0.0.1/",
        "ftp://127.0.0.1/?key=sk-fake",
        "/v1?key=sk-fake",
        "http:///?key=sk-fake",
        "http://127.0.0.1:99999/?key=sk-fake",
        "",
    ],
)
@on_both_loops
async def test_a_url_that_cannot_be_requested_as_it_stands_is_refused_unquoted(url: str) -> None:
    with pytest.raises(ValueError, match="URL") as caught:
        await HttpClient().send(OutgoingRequest("GET", url, ()), head_timeout_s=60)
    assert "sk-fake" not in str(caught.value)


@on_both_loops
async def test_a_method_that_is_no_token_is_refused() -> None:
    with pytest.raises(ValueError, match="method"):
        await HttpClient().send(OutgoingRequest("GET /x HTTP/1.1\r\n", "http://127.0.0.1/", ()), head_timeout_s=60)


def test_what_is_printed_of_a_request_holds_no_secret() -> None:
    out = OutgoingRequest("POST", "http://127.0.0.1/?key=sk-fake", ((b"authorization", b"sk-fake"),), b"sk-fake")
    assert "sk-fake" not in repr(out)
    assert "sk-fake" not in repr(DialOptions(proxy="http://user:sk-fake@127.0.0.1:1"))
