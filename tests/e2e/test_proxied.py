"""Providers behind proxies, from the configuration to the reply: over TLS, in TLS, and by SOCKS."""

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

import asking
from fakes.certificate import server_context
from fakes.proxies import FakeProxy, http, socks5
from fakes.raw import Hold, RawServer, Request
from gateway import running
from rig import ONCE
from scripting import encode_chat
from scripting.replies import ScriptedReply, Text

T = TypeVar("T")

REPLY = encode_chat.encode_whole(ScriptedReply((Text("Through the proxy."),)))
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(REPLY) + REPLY
SCRIPT = (*(Request(), ANSWER) * 5, Hold())
BASIC = b"Basic " + base64.b64encode(b"me:fake-password")


@contextmanager
def elsewhere(open: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """Run asyncio servers in a thread of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    servers = open()
    try:
        yield asyncio.run_coroutine_threadsafe(servers.__aenter__(), loop).result(60)
        asyncio.run_coroutine_threadsafe(servers.__aexit__(None, None, None), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def ask(toml: str, directory: Path) -> tuple[int, bytes]:
    with running(ONCE + toml, directory) as gateway:
        response = asking.ask(gateway, "chat", "far/m")
        return response.status, response.body


def make_section(endpoint: str, *more: str) -> str:
    lines = ["[providers.far]", 'kind = "openai-compatible"', f'endpoint = "{endpoint}"', 'models = ["m"]', *more]
    lines.append("list_models = false")  # the connection of the list would serve the request, too
    return "\n".join([*lines, ""])


@pytest.mark.parametrize("secured", [False, True], ids=["plain upstream", "TLS in TLS"])
def test_a_proxy_over_tls_with_a_password_and_a_private_ca(tmp_path: Path, secured: bool) -> None:
    context, ca_file = server_context(tmp_path)

    @asynccontextmanager
    async def servers() -> AsyncIterator[tuple[RawServer, FakeProxy]]:
        async with (
            RawServer(SCRIPT, tls=context if secured else None) as server,
            FakeProxy(http, secret=BASIC, tls=context) as proxy,
        ):
            yield server, proxy

    with elsewhere(servers) as (server, proxy):
        endpoint = f"{'https' if secured else 'http'}://localhost:{server.port}/v1"
        led = f'proxy = "https://me:fake-password@localhost:{proxy.port}"'
        status, body = ask(make_section(endpoint, led, f'ca_file = "{ca_file}"'), tmp_path)
        assert (status, body) == (200, REPLY)
        methods = {head.split(b" ")[0] for head in proxy.requests}
        assert methods == {b"CONNECT" if secured else b"POST"}
        status, body = ask(make_section(endpoint, led), tmp_path)
        assert status == 502
        assert b"the proxy's certificate is refused" in body
        assert b"fake-password" not in body


@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
def test_a_socks_proxy_with_a_password(tmp_path: Path, scheme: str) -> None:
    @asynccontextmanager
    async def servers() -> AsyncIterator[tuple[RawServer, FakeProxy]]:
        async with RawServer(SCRIPT) as server, FakeProxy(socks5, secret=b"me:fake-password") as proxy:
            yield server, proxy

    with elsewhere(servers) as (server, proxy):
        endpoint = f"http://127.0.0.1:{server.port}/v1"
        led = f'proxy = "{scheme}://me:fake-password@127.0.0.1:{proxy.port}"'
        assert ask(make_section(endpoint, led), tmp_path) == (200, REPLY)
        assert set(proxy.requests) == {b"127.0.0.1"}
        status, body = ask(make_section(endpoint, led.replace("fake-password", "fake-other")), tmp_path)
        assert status == 502
        assert b"refused user or password" in body
        assert b"fake-other" not in body


def test_linked_media_are_fetched_through_the_proxy_of_the_environment(tmp_path: Path) -> None:
    """The link has a public address, so that nothing is resolved; the proxy connects it to a server here."""
    pdf = b"%PDF-1.7"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/pdf\r\ncontent-length: %d\r\n\r\n" % len(pdf)

    @asynccontextmanager
    async def servers() -> AsyncIterator[tuple[RawServer, RawServer, FakeProxy]]:
        media, upstream = RawServer((Request(), head + pdf, Hold())), RawServer(SCRIPT)
        async with media, upstream, FakeProxy(http) as proxy:
            yield media, upstream, proxy

    with elsewhere(servers) as (media, upstream, proxy):
        toml = "[fetch]\nenabled = true\n" + make_section(f"http://127.0.0.1:{upstream.port}/v1", 'protocol = "chat"')
        place = f"93.184.216.34:{media.port}"
        linked = {"type": "document", "source": {"type": "url", "url": f"http://{place}/a.pdf"}}
        request = {"model": "far/m", "max_tokens": 9, "messages": [{"role": "user", "content": [linked]}]}
        with running(toml, tmp_path, {"ALL_PROXY": f"http://127.0.0.1:{proxy.port}"}) as gateway:
            response = asking.send(gateway, "POST", "/v1/messages", request)
        assert response.status == 200, response.body
        assert [head.partition(b" HTTP")[0] for head in proxy.requests] == [f"CONNECT {place}".encode()]
        assert base64.b64encode(pdf) in b"".join(upstream.requests)
