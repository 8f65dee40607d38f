"""Proxies that are reached over TLS: a tunnel inside it, plain requests, its certificate."""

import asyncio
import base64
import ssl

import pytest

from dragoman.config.proxies import EnvironmentProxies
from dragoman.net.client import ConnectionLost, DialOptions, HttpClient, OutgoingRequest, UpstreamTimeout
from fakes.certificate import server_context
from fakes.loops import on_both_loops
from fakes.proxies import FakeProxy, http, socks5
from fakes.raw import Flood, Hold, RawServer, Request, Script
from waiting import wait_until_async

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
TWICE: Script = (Request(), OK, Request(), OK, Hold())
BASIC = b"Basic " + base64.b64encode(b"us er:sk-fake:1")
USER = "us%20er:sk-fake%3A1@"

Tls = tuple[ssl.SSLContext, str]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return server_context(tmp_path_factory.mktemp("tls"))


async def fetch(url: str, dial: DialOptions) -> bytes:
    """Twice over one client, so that the second goes over the pooled connection."""
    client = HttpClient()
    try:
        for _ in range(2):
            answer = await client.send(OutgoingRequest("GET", url, ()), dial, head_timeout_s=60)
            body = await answer.read(100, 60)
        return body
    finally:
        await client.close()


@on_both_loops
async def test_tls_goes_inside_the_tls_of_the_proxy(tls: Tls) -> None:
    async with RawServer(TWICE, tls=tls[0]) as server, FakeProxy(http, secret=BASIC, tls=tls[0]) as proxy:
        dial = DialOptions(proxy=f"https://{USER}localhost:{proxy.port}", ca_file=tls[1])
        assert await fetch(f"https://localhost:{server.port}/", dial) == b"ok"
        assert proxy.requests[0].startswith(b"CONNECT localhost:%d HTTP/1.1\r\n" % server.port)
        assert len(proxy.requests) == 1
        assert b"proxy-authorization" not in server.requests[0]
        assert len(server.requests) == 2


@on_both_loops
async def test_a_plain_upstream_is_requested_through_the_tls_of_the_proxy(tls: Tls) -> None:
    async with RawServer(TWICE) as server, FakeProxy(http, secret=BASIC, tls=tls[0]) as proxy:
        dial = DialOptions(proxy=f"https://{USER}127.0.0.1:{proxy.port}", ca_file=tls[1])
        assert await fetch(server.url + "/v1?a=b", dial) == b"ok"
        line = b"GET http://127.0.0.1:%d/v1?a=b HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n"
        assert proxy.requests[0].startswith(line % (server.port, server.port))
        assert len(server.requests) == 2


@on_both_loops
async def test_a_proxy_with_an_unknown_certificate_is_distinguished_from_the_upstream(tls: Tls) -> None:
    async with RawServer(TWICE, tls=tls[0]) as server, FakeProxy(http, tls=tls[0]) as proxy:
        for url in (server.url, "http://upstream.test/"):
            with pytest.raises(ConnectionLost, match=r"the proxy's certificate is refused: self.signed") as caught:
                await fetch(url, DialOptions(proxy=f"https://{USER}localhost:{proxy.port}"))
            assert (caught.value.sent, caught.value.received) == (False, False)
            assert "sk-fake" not in str(caught.value)
        assert proxy.requests == []
        assert server.requests == []


@on_both_loops
async def test_the_upstreams_certificate_is_judged_inside_the_tunnel_too(tls: Tls) -> None:
    async with RawServer(TWICE, tls=tls[0]) as server, FakeProxy(http, tls=tls[0]) as proxy:
        dial = DialOptions(proxy=f"https://localhost:{proxy.port}", ca_file=tls[1])
        with pytest.raises(ConnectionLost, match=r"via proxy localhost:\d+: certificate refused: Hostname mismatch"):
            await fetch(f"https://other.test:{server.port}/", dial)


@on_both_loops
async def test_a_proxy_without_tls_is_lost(tls: Tls) -> None:
    async with RawServer((b"HTTP/1.1 400 No\r\n\r\n", Hold())) as proxy:
        with pytest.raises(ConnectionLost, match="TLS with the proxy failed"):
            await fetch("https://upstream.test/", DialOptions(proxy=f"https://localhost:{proxy.port}", ca_file=tls[1]))


@on_both_loops
async def test_a_wrong_password_over_tls_is_lost_and_never_shown(tls: Tls) -> None:
    async with FakeProxy(http, secret=b"Basic another", tls=tls[0]) as proxy:
        dial = DialOptions(proxy=f"https://{USER}localhost:{proxy.port}", ca_file=tls[1])
        with pytest.raises(ConnectionLost, match=r"other credentials \(407\)") as caught:
            await fetch("https://upstream.test/", dial)
        assert "sk-fake" not in str(caught.value) + repr(caught.value.__cause__) + repr(dial)


@on_both_loops
async def test_a_silent_secure_proxy_is_a_connect_timeout(tls: Tls) -> None:
    async with RawServer((Request(), Hold()), tls=tls[0]) as proxy:
        dial = DialOptions(proxy=f"https://localhost:{proxy.port}", ca_file=tls[1], connect_timeout_s=1)
        with pytest.raises(UpstreamTimeout) as caught:
            await fetch("https://upstream.test/", dial)
        assert caught.value.phase == "connect"
        await wait_until_async(lambda: bool(proxy.visits))
        await proxy.visits[0].gone.wait()


@on_both_loops
async def test_closing_in_mid_stream_closes_the_tunnel_and_the_upstream(client: HttpClient, tls: Tls) -> None:
    script: Script = (Request(), b"HTTP/1.1 200 OK\r\n\r\nok", Hold())
    async with RawServer(script, tls=tls[0]) as server, FakeProxy(http, tls=tls[0]) as proxy:
        dial = DialOptions(proxy=f"https://localhost:{proxy.port}", ca_file=tls[1])
        answer = await client.send(
            OutgoingRequest("GET", f"https://localhost:{server.port}/", ()), dial, head_timeout_s=60
        )
        assert await answer.chunk(60) == b"ok"
        answer.close()
        await asyncio.wait_for(server.visits[0].gone.wait(), 60)


@on_both_loops
async def test_a_slow_consumer_holds_the_upstream_back_through_both_layers(client: HttpClient, tls: Tls) -> None:
    script: Script = (Request(), b"HTTP/1.1 200 OK\r\n\r\n", Flood(b"x" * 65536))
    async with RawServer(script, tls=tls[0]) as server, FakeProxy(http, tls=tls[0]) as proxy:
        dial = DialOptions(proxy=f"https://localhost:{proxy.port}", ca_file=tls[1])
        url = f"https://localhost:{server.port}/"
        answer = await client.send(OutgoingRequest("GET", url, ()), dial, head_timeout_s=60)
        before = -1
        while (sent := server.visits[0].sent) != before:
            before = sent
            await asyncio.sleep(0.1)
        taken = 0
        while taken <= before:
            taken += len(await answer.chunk(60))
        answer.close()


@on_both_loops
async def test_the_environments_proxy_is_taken_for_hosts_elsewhere_and_never_for_this_machine(tls: Tls) -> None:
    async with RawServer(TWICE) as server, FakeProxy(http) as proxy:
        dial = DialOptions(environment_proxies=EnvironmentProxies(f"http://127.0.0.1:{proxy.port}", None))
        assert await fetch(f"http://upstream.test:{server.port}/", dial) == b"ok"
        assert len(proxy.requests) == 1
        for host in ("127.0.0.1", "localhost"):
            assert await fetch(f"http://{host}:{server.port}/", dial) == b"ok"
        assert len(proxy.requests) == 1


@on_both_loops
async def test_plain_and_secure_hosts_go_through_the_proxies_that_the_environment_names_for_each(tls: Tls) -> None:
    async with (
        RawServer(TWICE) as server,
        RawServer(TWICE, tls=tls[0]) as secured,
        FakeProxy(http) as plain,
        FakeProxy(socks5) as secure,
    ):
        dial = DialOptions(
            environment_proxies=EnvironmentProxies(
                f"http://127.0.0.1:{plain.port}", f"socks5h://127.0.0.1:{secure.port}"
            ),
            ca_file=tls[1],
        )
        assert await fetch(f"http://upstream.test:{server.port}/", dial) == b"ok"
        with pytest.raises(ConnectionLost, match="Hostname mismatch"):
            await fetch(f"https://upstream.test:{secured.port}/", dial)
        assert secure.requests == [b"upstream.test"]
