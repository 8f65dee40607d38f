"""The way to the origin: TLS with its checks, and HTTP and SOCKS5 proxies with their passwords."""

import asyncio
import base64
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.net.client import DIRECT, ConnectionLost, DialOptions, HttpClient, OutgoingRequest, UpstreamTimeout
from fakes.certificate import server_context
from fakes.loops import on_both_loops
from fakes.proxies import FakeProxy, Serve, http, socks5
from fakes.raw import Flood, Hold, RawServer, Request, Script, Until
from waiting import wait_until_async

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
TWICE: Script = (Request(), OK, Request(), OK, Hold())
BASIC = b"Basic " + base64.b64encode(b"us er:sk-fake:1")


async def fetch(url: str, dial: DialOptions = DIRECT) -> bytes:
    """Twice over one client, so that the second goes over the pooled connection."""
    client = HttpClient()
    try:
        for _ in range(2):
            answer = await client.send(OutgoingRequest("GET", url, ()), dial, head_timeout_s=60)
            body = await answer.read(100, 60)
        return body
    finally:
        await client.close()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, str]:
    return server_context(tmp_path_factory.mktemp("tls"))


@on_both_loops
async def test_tls_with_the_right_ca_by_name_and_by_address(tls: tuple[ssl.SSLContext, str]) -> None:
    context, ca_file = tls
    names: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    async with RawServer(TWICE, tls=context) as server:
        assert await fetch(f"https://localhost:{server.port}/", DialOptions(ca_file=ca_file)) == b"ok"
        assert await fetch(server.url, DialOptions(ca_file=ca_file)) == b"ok"
        assert [visit.alpn for visit in server.visits] == ["http/1.1", "http/1.1"]
        assert names == ["localhost", None]


@on_both_loops
async def test_an_unknown_ca_is_lost(tls: tuple[ssl.SSLContext, str]) -> None:
    async with RawServer(TWICE, tls=tls[0]) as server:
        with pytest.raises(ConnectionLost, match=r"certificate refused: self.signed certificate") as caught:
            await fetch(server.url)
        assert (caught.value.sent, caught.value.received) == (False, False)


@on_both_loops
async def test_a_certificate_for_another_name_is_lost(tls: tuple[ssl.SSLContext, str]) -> None:
    async with RawServer(TWICE, tls=tls[0]) as server, FakeProxy(http) as proxy:
        dial = DialOptions(ca_file=tls[1], proxy=f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(ConnectionLost, match="certificate refused: Hostname mismatch"):
            await fetch(f"https://other.test:{server.port}/", dial)


@on_both_loops
async def test_a_server_without_tls_is_lost() -> None:
    async with RawServer((b"HTTP/1.1 400 No\r\n\r\n", Hold())) as server:
        with pytest.raises(ConnectionLost, match="TLS failed"):
            await fetch(f"https://127.0.0.1:{server.port}/")


@on_both_loops
async def test_a_ca_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent\.pem cannot be used: No such file"):
        await fetch("https://127.0.0.1:1/", DialOptions(ca_file=str(tmp_path / "absent.pem")))


@on_both_loops
async def test_a_close_in_mid_body_over_tls_is_lost(tls: tuple[ssl.SSLContext, str]) -> None:
    cut = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"
    async with RawServer((Request(), cut), tls=tls[0]) as server:
        with pytest.raises(ConnectionLost):
            await fetch(server.url, DialOptions(ca_file=tls[1]))


@on_both_loops
async def test_a_slow_consumer_holds_a_tls_upstream_back(client: HttpClient, tls: tuple[ssl.SSLContext, str]) -> None:
    script: Script = (Request(), b"HTTP/1.1 200 OK\r\n\r\n", Flood(b"x" * 65536))
    async with RawServer(script, tls=tls[0]) as server:
        answer = await client.send(
            OutgoingRequest("GET", server.url, ()), DialOptions(ca_file=tls[1]), head_timeout_s=60
        )
        before = -1
        while (sent := server.visits[0].sent) != before:
            before = sent
            await asyncio.sleep(0.1)
        assert answer._connection is not None
        assert 0 < answer._connection.buffered <= (128 + 256) << 10
        taken = 0
        while taken <= before:
            taken += len(await answer.chunk(60))
        answer.close()


@on_both_loops
async def test_close_in_mid_stream_closes_a_tls_upstream_at_once(
    client: HttpClient, tls: tuple[ssl.SSLContext, str]
) -> None:
    async with RawServer((Request(), b"HTTP/1.1 200 OK\r\n\r\nok", Hold()), tls=tls[0]) as server:
        answer = await client.send(
            OutgoingRequest("GET", server.url, ()), DialOptions(ca_file=tls[1]), head_timeout_s=60
        )
        assert await answer.chunk(60) == b"ok"
        answer.close()
        await asyncio.wait_for(server.visits[0].gone.wait(), 60)


@on_both_loops
async def test_a_handshake_that_never_ends_is_a_connect_timeout() -> None:
    async with RawServer((Hold(),)) as server:
        with pytest.raises(UpstreamTimeout) as caught:
            await fetch(f"https://127.0.0.1:{server.port}/", DialOptions(connect_timeout_s=0.05))
        assert caught.value.phase == "connect"
        await wait_until_async(lambda: bool(server.visits))
        await server.visits[0].gone.wait()


@on_both_loops
async def test_an_http_proxy_gets_the_whole_url() -> None:
    async with RawServer(TWICE) as server, FakeProxy(http, secret=BASIC) as proxy:
        dial = DialOptions(proxy=f"http://us%20er:sk-fake%3A1@127.0.0.1:{proxy.port}")
        assert await fetch(server.url + "/v1?a=b", dial) == b"ok"
        line = b"GET http://127.0.0.1:%d/v1?a=b HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n"
        assert proxy.requests[0].startswith(line % (server.port, server.port))
        assert len(proxy.requests) == 1
        assert len(server.requests) == 2


@on_both_loops
async def test_tls_goes_through_an_http_proxys_tunnel(tls: tuple[ssl.SSLContext, str]) -> None:
    async with RawServer(TWICE, tls=tls[0]) as server, FakeProxy(http, secret=BASIC) as proxy:
        dial = DialOptions(proxy=f"http://us%20er:sk-fake%3A1@127.0.0.1:{proxy.port}", ca_file=tls[1])
        assert await fetch(f"https://localhost:{server.port}/", dial) == b"ok"
        assert proxy.requests[0].startswith(b"CONNECT localhost:%d HTTP/1.1\r\n" % server.port)
        assert b"proxy-authorization" not in server.requests[0]
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("scheme", "host", "expected"),
    [
        ("socks5h", "upstream.test", (b"upstream.test",)),
        ("socks5", "localhost", (b"127.0.0.1", b"::1")),
        ("socks5h", "127.0.0.1", (b"127.0.0.1",)),
        ("socks5", "[::1]", (b"::1",)),
    ],
)
@on_both_loops
async def test_socks_resolves_names_where_its_scheme_requires_it(
    scheme: str, host: str, expected: tuple[bytes, ...]
) -> None:
    async with RawServer(TWICE) as server, FakeProxy(socks5) as proxy:
        dial = DialOptions(proxy=f"{scheme}://127.0.0.1:{proxy.port}")
        assert await fetch(f"http://{host}:{server.port}/", dial) == b"ok"
        assert len(proxy.requests) == 1
        assert proxy.requests[0] in expected


@on_both_loops
async def test_tls_goes_through_socks_with_a_password(tls: tuple[ssl.SSLContext, str]) -> None:
    async with RawServer(TWICE, tls=tls[0]) as server, FakeProxy(socks5, secret=b"user:sk-fake") as proxy:
        dial = DialOptions(proxy=f"socks5h://user:sk-fake@127.0.0.1:{proxy.port}", ca_file=tls[1])
        assert await fetch(f"https://localhost:{server.port}/", dial) == b"ok"
        assert proxy.requests == [b"localhost"]


@pytest.mark.parametrize(
    ("kind", "scheme", "reason"),
    [
        (http, "http", "other credentials"),
        (socks5, "socks5", "refused user or password"),
    ],
)
@on_both_loops
async def test_a_wrong_proxy_password_is_lost_and_never_shown(
    kind: Callable[[FakeProxy], Serve],
    scheme: str,
    reason: str,
    tls: tuple[ssl.SSLContext, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with RawServer(TWICE, tls=tls[0]) as server, FakeProxy(kind, secret=b"another") as proxy:
        dial = DialOptions(proxy=f"{scheme}://user:sk-fake@127.0.0.1:{proxy.port}")
        with pytest.raises(ConnectionLost, match=f"via proxy 127.0.0.1:{proxy.port}: .*{reason}") as caught:
            await fetch(server.url, dial)
    assert caught.value.sent is False
    assert "sk-fake" not in str(caught.value) + repr(caught.value.__cause__) + caplog.text


@on_both_loops
async def test_a_proxy_that_wants_a_password_we_do_not_have_is_lost() -> None:
    async with FakeProxy(socks5, secret=b"user:sk-fake") as proxy:
        with pytest.raises(ConnectionLost, match="other credentials"):
            await fetch("http://upstream.test/", DialOptions(proxy=f"socks5h://127.0.0.1:{proxy.port}"))


@on_both_loops
async def test_a_socks_refusal_says_why() -> None:
    async with FakeProxy(socks5) as proxy:
        with pytest.raises(ConnectionLost, match=r"forbidden\.test:80 via proxy .*: .*not allowed by its rules"):
            await fetch("http://forbidden.test/", DialOptions(proxy=f"socks5h://127.0.0.1:{proxy.port}"))


PROXY_FAULTS: dict[str, Script] = {
    "closes at once": (),
    "speaks something else": (b"SSH-2.0-fake\r\n\r\n", Hold()),
    "refuses": (Request(), b"HTTP/1.1 403 No\r\n\r\n", Hold()),
    "endless reply": (Request(), b"HTTP/1.1 200 OK\r\nx: " + b"a" * 40_000, Hold()),
    "speaks first": (Request(), b"HTTP/1.1 200 OK\r\n\r\nextra", Hold()),
}


@pytest.mark.parametrize("scheme", ["http", "socks5"])
@pytest.mark.parametrize("fault", PROXY_FAULTS)
@on_both_loops
async def test_a_broken_proxy_is_lost(fault: str, scheme: str) -> None:
    script = PROXY_FAULTS[fault]
    if scheme == "socks5":
        script = tuple(step for step in script if step != Request())
    async with RawServer(script) as proxy:
        with pytest.raises(ConnectionLost, match="the proxy") as caught:
            await fetch("https://upstream.test/", DialOptions(proxy=f"{scheme}://127.0.0.1:{proxy.port}"))
        assert caught.value.sent is False
        await proxy.visits[0].gone.wait()


@on_both_loops
async def test_a_silent_proxy_is_a_connect_timeout() -> None:
    async with RawServer((Hold(),)) as proxy:
        dial = DialOptions(proxy=f"http://127.0.0.1:{proxy.port}", connect_timeout_s=0.05)
        with pytest.raises(UpstreamTimeout) as caught:
            await fetch("https://upstream.test/", dial)
        assert caught.value.phase == "connect"


@on_both_loops
async def test_a_connection_made_while_the_client_closes_is_not_used() -> None:
    client = HttpClient()
    go_on = asyncio.Event()
    async with RawServer((b"\x05\x00", Until(go_on), b"\x05\x00\x00\x01" + bytes(6), Hold())) as proxy:
        dial = DialOptions(proxy=f"socks5h://127.0.0.1:{proxy.port}")
        sending = asyncio.create_task(
            client.send(OutgoingRequest("GET", "http://upstream.test/", ()), dial, head_timeout_s=60)
        )
        await wait_until_async(lambda: bool(proxy.visits) and proxy.visits[0].sent == 2)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        go_on.set()
        await closing
        with pytest.raises(ConnectionLost, match="closed by us") as caught:
            await sending
        assert caught.value.sent is False
        await proxy.visits[0].gone.wait()


@pytest.mark.parametrize(
    "url",
    ["ftp://user:sk-fake@127.0.0.1", "http://", "socks5://u:sk-fake@h:99999", f"http://{'u' * 300}:sk-fake@h"],
)
@on_both_loops
async def test_a_proxy_that_is_none_is_refused_unquoted(url: str) -> None:
    with pytest.raises(ValueError, match="proxy") as caught:
        await fetch("http://127.0.0.1/", DialOptions(proxy=url))
    assert "sk-fake" not in str(caught.value)
