"""Fetching what clients link to: only from public addresses, within bounds, and always where it was checked (S9)."""

import asyncio
import base64
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from dragoman.config.proxies import read_proxies
from dragoman.config.settings import Fetch
from dragoman.net.client import DialOptions, HttpClient, HttpResponse, OutgoingRequest
from dragoman.net.guest_threads import resolve_guest_name
from dragoman.server_tools.guarded_fetch import MAX_LINKS, GuardedFetcher, LinkedMediaFetcher, Resolve, is_public
from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.translate.hub.request import Inline
from fakes.certificate import server_context
from fakes.loops import on_both_loops
from fakes.proxies import FakeProxy, Serve, http, socks5
from fakes.raw import Hold, RawServer, Request, Script
from fakes.web import INNER

PUBLIC = "93.184.216.34"
OTHER = "2606:2800:220:1:248:1893:25c8:1946"
AGENT = "dragoman"
PNG = b"\x89PNG fake"


def reply(content_type: bytes, body: bytes) -> Script:
    fields = b"content-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n" % (content_type, len(body))
    head = b"HTTP/1.1 200 OK\r\n%b\r\n" % fields
    return (Request(), head + body, Hold())


def redirect(location: str) -> Script:
    head = f"HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    return (Request(), head.encode(), Hold())


class Wire:
    """The real client, with public addresses redirected to a server here, and every dial recorded."""

    def __init__(self, *, dead: frozenset[str] = frozenset(), ca_file: str | None = None) -> None:
        self.dialled: list[str | None] = []
        self._client = HttpClient()
        self._dead = dead
        self._ca_file = ca_file

    async def send(self, out: OutgoingRequest, dial: DialOptions, *, head_timeout_s: float) -> HttpResponse:
        self.dialled.append(dial.address)
        # Nothing listens on 127.0.0.2 at the server's port.
        here = "127.0.0.2" if dial.address in self._dead else "127.0.0.1"
        local = msgspec.structs.replace(dial, address=here, ca_file=self._ca_file)
        return await self._client.send(out, local, head_timeout_s=head_timeout_s)

    async def close(self) -> None:
        await self._client.close()


class Names:
    """A resolver that knows these names; dots are written as underscores."""

    def __init__(self, **known: Sequence[str]) -> None:
        self._known = known
        self.requests: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.requests.append(host)
        found = self._known.get(host.replace(".", "_"))
        if found is None:
            raise OSError("no such name")
        return found


async def fetch_page(url: str, wire: Wire, resolve: Resolve, bounds: Fetch | None = None) -> Inline:
    try:
        guarded = GuardedFetcher(wire.send, resolve)
        return await LinkedMediaFetcher(guarded, bounds or Fetch(enabled=True, timeout_s=20.0), AGENT).fetch(url)
    finally:
        await wire.close()


async def expect_refusal(
    url: str, wire: Wire, resolve: Resolve = resolve_guest_name, bounds: Fetch | None = None
) -> str:
    with pytest.raises(RequestError) as caught:
        await fetch_page(url, wire, resolve, bounds)
    assert caught.value.failure.kind is Kind.BAD_REQUEST
    return caught.value.failure.message


# What is reached


@on_both_loops
async def test_media_on_a_public_address_becomes_data() -> None:
    async with RawServer(reply(b"image/png; q=1", PNG)) as server:
        wire, resolve = Wire(), Names(media_example=[PUBLIC])
        found = await fetch_page(f"http://media.example:{server.port}/a.png?x=1#part", wire, resolve)
        assert found == Inline("image/png", base64.b64encode(PNG).decode())
        assert wire.dialled == [PUBLIC]
        assert resolve.requests == ["media.example"]
        (request,) = server.requests
        assert request.startswith(b"GET /a.png?x=1 HTTP/1.1\r\n")
        assert b"host: media.example:%d\r\n" % server.port in request.lower()


@on_both_loops
async def test_tls_is_checked_for_the_name_and_not_for_the_address(tmp_path: Path) -> None:
    context, ca_file = server_context(tmp_path)
    names: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    assert isinstance(context, ssl.SSLContext)
    async with RawServer(reply(b"application/pdf", b"%PDF-1.7"), tls=context) as server:
        resolve = Names(page_example=[PUBLIC], other_example=[PUBLIC])
        found = await fetch_page(f"https://page.example:{server.port}/a.pdf", Wire(ca_file=ca_file), resolve)
        assert found.media_type == "application/pdf"
        assert names == ["page.example"]
        why = await expect_refusal(f"https://other.example:{server.port}/a.pdf", Wire(ca_file=ca_file), resolve)
        assert "other.example" in why


@on_both_loops
@pytest.mark.parametrize("serve", [http, socks5])
async def test_a_proxy_of_the_environment_gets_the_checked_address_and_no_name(
    serve: Callable[[FakeProxy], Serve],
) -> None:
    async with RawServer(reply(b"image/png", PNG)) as server, FakeProxy(serve) as proxy:
        scheme = "http" if serve is http else "socks5h"
        way = read_proxies({"ALL_PROXY": f"{scheme}://127.0.0.1:{proxy.port}", "NO_PROXY": "inside.example"})
        client = HttpClient()
        guarded = GuardedFetcher(client.send, Names(media_example=[PUBLIC]), way)
        fetcher = LinkedMediaFetcher(guarded, Fetch(enabled=True), AGENT)
        found = await fetcher.fetch(f"http://media.example:{server.port}/a.png")
        await client.close()
        assert found == Inline("image/png", base64.b64encode(PNG).decode())
        (request,) = proxy.requests
        assert request.startswith(
            b"CONNECT %b:%d " % (PUBLIC.encode(), server.port) if serve is http else PUBLIC.encode()
        )
        assert b"media.example" not in request
        (request,) = server.requests
        assert request.startswith(b"GET /a.png HTTP/1.1\r\nhost: media.example:%d\r\n" % server.port)


@on_both_loops
async def test_an_address_that_is_not_public_is_not_requested_through_a_proxy_either() -> None:
    async with FakeProxy(http) as proxy:
        way = read_proxies({"ALL_PROXY": f"http://127.0.0.1:{proxy.port}"})
        client = HttpClient()
        guarded = GuardedFetcher(client.send, Names(inside_example=["10.0.0.7"]), way)
        with pytest.raises(RequestError, match="not on a public address"):
            await LinkedMediaFetcher(guarded, Fetch(enabled=True), AGENT).fetch("http://inside.example/")
        await client.close()
        assert proxy.requests == []


@on_both_loops
async def test_the_next_checked_address_is_tried_when_the_first_is_dead() -> None:
    async with RawServer(reply(b"image/gif", b"GIF89a")) as server:
        wire = Wire(dead=frozenset({OTHER}))
        await fetch_page(f"http://media.example:{server.port}/", wire, Names(media_example=[OTHER, PUBLIC]))
        assert wire.dialled == [OTHER, PUBLIC]


@on_both_loops
async def test_a_redirect_is_resolved_and_checked_anew() -> None:
    async with (
        RawServer(reply(b"image/png", PNG)) as goal,
        RawServer(redirect(f"http://cdn.example:{goal.port}/b")) as start,
    ):
        wire, resolve = Wire(), Names(media_example=[PUBLIC], cdn_example=[OTHER])
        await fetch_page(f"http://media.example:{start.port}/a", wire, resolve)
        assert resolve.requests == ["media.example", "cdn.example"]
        assert wire.dialled == [PUBLIC, OTHER]


# What is never reached


def test_no_spelling_of_an_inner_address_is_dialled() -> None:
    for url in INNER:
        wire = Wire()
        why = asyncio.run(expect_refusal(url, wire))
        assert wire.dialled == [], url
        assert "public address" in why or "resolved" in why, url


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://media.example/a",
        "gopher://media.example/",
        "http:///a.png",
        "http://user:sk-fake-1@media.example/a.png",
        "http://media.example:99999/",
        "http://media.example/a b",
        "http://media.example/a\r\nhost: x",
        "http://médía.example/",
        "//media.example/a",
        "",
    ],
)
def test_a_url_that_is_not_plain_http_is_refused_without_being_quoted(url: str) -> None:
    wire = Wire()
    why = asyncio.run(expect_refusal(url, wire, Names(media_example=[PUBLIC])))
    assert wire.dialled == []
    assert "sk-fake" not in why
    assert "passwd" not in why


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["10.1.2.3"], [PUBLIC, "192.168.0.1"], ["169.254.169.254", PUBLIC], ["fe80::1%eth0"], [], ["junk"]],
)
def test_a_name_with_one_inner_address_among_its_addresses_is_refused(addresses: list[str]) -> None:
    wire = Wire()
    why = asyncio.run(expect_refusal("http://media.example/a.png", wire, Names(media_example=addresses)))
    assert wire.dialled == []
    assert "media.example" in why


@pytest.mark.parametrize(
    "location", ["http://127.0.0.1:1/", "http://inner.example/", "file:///etc/passwd", "//[::1]/x"]
)
def test_a_redirect_inwards_is_refused(location: str) -> None:
    async def run() -> None:
        async with RawServer(redirect(location)) as server:
            wire = Wire()
            resolve = Names(
                media_example=[PUBLIC], inner_example=["10.0.0.7"], **{"127_0_0_1": ["127.0.0.1"], "::1": ["::1"]}
            )
            await expect_refusal(f"http://media.example:{server.port}/", wire, resolve)
            assert wire.dialled == [PUBLIC]

    asyncio.run(run())


def test_a_name_that_changes_its_address_is_dialled_where_it_was_checked() -> None:
    answers = [[PUBLIC], ["127.0.0.1"]]

    async def resolve_anew(host: str, port: int) -> Sequence[str]:
        return answers.pop(0)

    async def run() -> None:
        async with RawServer(reply(b"image/png", PNG)) as server:
            wire = Wire()
            await fetch_page(f"http://media.example:{server.port}/", wire, resolve_anew)
            assert wire.dialled == [PUBLIC]
        assert answers == [["127.0.0.1"]]  # the second answer was never used

    asyncio.run(run())


@pytest.mark.parametrize("address", [PUBLIC, OTHER, "1.1.1.1", "2a00:1450:4001:801::200e"])
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(address)


# Bounds


async def answer_call(script: Script, bounds: Fetch | None = None) -> str:
    async with RawServer(script) as server:
        return await expect_refusal(
            f"http://media.example:{server.port}/secret?sig=1", Wire(), Names(media_example=[PUBLIC]), bounds
        )


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (reply(b"text/html", b"<html>"), "serves text/html"),
        (reply(b"application/octet-stream", PNG), "serves application/octet-stream"),
        ((Request(), b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc", Hold()), "without a content type"),
        ((Request(), b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n", Hold()), "HTTP 404"),
        ((Request(), b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n"), "redirects more than 5 times"),
        (redirect("/again"), "redirects more than 5 times"),
        ((Request(), b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 9\r\n\r\nabc"), "broke off"),
        ((Request(), b"junk\r\n\r\n"), "cannot be reached"),
    ],
)
def test_errors_of_linked_media_name_the_host_and_not_the_path(script: Script, why: str) -> None:
    message = asyncio.run(answer_call(script))
    assert why in message
    assert "media.example" in message
    assert "secret" not in message


def test_a_body_beyond_the_limit_is_refused() -> None:
    bounds = Fetch(enabled=True, max_mb=0.25, timeout_s=20.0)
    assert "more than 0.25 MB" in asyncio.run(answer_call(reply(b"image/png", b"x" * 300_000), bounds))


@pytest.mark.parametrize(
    "script",
    [
        (Request(), Hold()),
        (Request(), b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 9\r\n\r\n", Hold()),
    ],
)
def test_a_silent_server_costs_no_more_than_the_time_allowed(script: Script) -> None:
    bounds = Fetch(enabled=True, timeout_s=0.1)
    assert asyncio.run(answer_call(script, bounds))


def test_several_links_are_fetched_and_one_bad_one_refuses_all() -> None:
    async def run() -> None:
        async with RawServer(reply(b"image/png", PNG)) as server:
            wire, resolve = Wire(), Names(media_example=[PUBLIC], inner_example=["10.0.0.1"])
            guarded = GuardedFetcher(wire.send, resolve)
            fetcher = LinkedMediaFetcher(guarded, Fetch(enabled=True, timeout_s=20.0), AGENT)
            urls = [f"http://media.example:{server.port}/{number}" for number in range(6)]
            assert list(await fetcher.fetch_all(urls)) == urls
            with pytest.raises(RequestError, match=r"inner\.example"):
                await fetcher.fetch_all([urls[0], "http://inner.example/", urls[1]])
            with pytest.raises(RequestError, match="at most"):
                await fetcher.fetch_all([f"http://media.example/{number}" for number in range(MAX_LINKS + 1)])
            await wire.close()

    asyncio.run(run())
