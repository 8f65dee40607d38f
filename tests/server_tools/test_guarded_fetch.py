"""Fetching a page that a model names: public addresses only, each hop checked, and every body bounded."""

import asyncio
import gzip
import time
import tracemalloc
from collections.abc import Sequence
from itertools import repeat

import pytest
from msgspec.structs import replace

from dragoman.net.client import DialOptions, HttpClient, HttpResponse, OutgoingRequest
from dragoman.net.guest_threads import resolve_guest_name
from dragoman.server_tools.addresses import DomainRules
from dragoman.server_tools.guarded_fetch import MAX_URL, Fetched, FetchRules, GuardedFetcher
from dragoman.server_tools.web_fetch import is_readable
from dragoman.translate.hub.server_tools import ToolErrorCode, ToolFailure
from fakes.raw import Flood, Hold, Pause, RawServer, Request, Script
from fakes.web import INNER

PUBLIC = "93.184.216.34"
OTHER = "2606:2800:220:1:248:1893:25c8:1946"
ACCESSIBLE = ToolErrorCode.URL_NOT_ACCESSIBLE
ALLOWED = ToolErrorCode.URL_NOT_ALLOWED
INVALID = ToolErrorCode.INVALID_INPUT
MB = 1024 * 1024
RULES = FetchRules(headers=(), max_bytes=MB, timeout_s=60.0, accepts=is_readable)


class World:
    """The real client and a resolver of invented names; every public address is led to one server here."""

    def __init__(self, port: int = 1, **known: Sequence[str]) -> None:
        self.dialled: list[str | None] = []
        self.resolved: list[str] = []
        self._port = port
        self._known = {"page.example": [PUBLIC], **{name.replace("_", "."): found for name, found in known.items()}}
        self._client = HttpClient()

    async def send(self, out: OutgoingRequest, dial: DialOptions, *, head_timeout_s: float) -> HttpResponse:
        self.dialled.append(dial.address)
        assert not dial.keeps_connections
        here = OutgoingRequest(out.method, f"http://127.0.0.1:{self._port}/", out.headers)
        return await self._client.send(here, DialOptions(connect_timeout_s=20.0), head_timeout_s=head_timeout_s)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolved.append(host)
        return self._known[host] if host in self._known else await resolve_guest_name(host, port)

    async def get(self, url: str, rules: FetchRules | None = None) -> Fetched | ToolFailure:
        try:
            return await GuardedFetcher(self.send, self.resolve).get(url, rules or RULES)
        finally:
            await self._client.close()


def code_of(outcome: Fetched | ToolFailure) -> ToolErrorCode:
    assert isinstance(outcome, ToolFailure), outcome
    return outcome.code


def page(content_type: bytes, body: bytes, *headers: bytes) -> Script:
    more = b"".join(header + b"\r\n" for header in (*headers, b"content-length: %d" % len(body)))
    return (Request(), b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b\r\n%b" % (content_type, more, body), Hold())


def redirect(location: str) -> Script:
    fields = f"location: {location}\r\ncontent-length: 0\r\nconnection: close\r\n"
    return (Request(), f"HTTP/1.1 302 Found\r\n{fields}\r\n".encode(), Hold())


async def fetch_from(script: Script, rules: FetchRules = RULES) -> tuple[World, Fetched | ToolFailure]:
    async with RawServer(script) as server:
        world = World(server.port)
        return world, await world.get("http://page.example/", rules)


# Addresses that are never dialled


SPELLINGS = [
    *("http://[fe80::1%25lo]/", "http://[fe80::1%lo]/", f"http://[{OTHER}%25lo]/", "http://0177.0.0.1/"),
    *("http://printer.local/", "http://router.lan/", "http://wiki.intranet/", "http://nas.home.arpa/"),
    *("http://metadata.google.internal/", "http://METADATA.GOOGLE.INTERNAL./"),
    *("https://127.0.0.1/", "http://127.0.0.1:8080/", "http://2130706433:6379/", "http://[::1]:8080/"),
    *(
        "http://localhost:8080/",
        "http://metadata.google.internal:8080/",
        "http://127。0。0。1/",
        "http://１２７.0.0.1/",
    ),
]


def test_an_address_that_is_not_public_is_not_dialled() -> None:
    for url in [*INNER, *SPELLINGS]:
        world = World()
        assert code_of(asyncio.run(world.get(url))) is ACCESSIBLE, url
        assert world.dialled == [], url


@pytest.mark.parametrize(
    "addresses",
    [[PUBLIC, "10.0.0.1"], ["127.0.0.1", PUBLIC], [PUBLIC, "::1"], ["fe80::1%eth0"], [f"{OTHER}%eth0"], [], ["junk"]],
)
def test_a_name_is_dialled_only_if_all_its_addresses_are_public(addresses: list[str]) -> None:
    world = World(page_example=addresses)
    assert code_of(asyncio.run(world.get("http://page.example/"))) is ACCESSIBLE
    assert world.dialled == []


@pytest.mark.parametrize("name", ["metadata.google.internal", "printer.local", "x.localhost"])
def test_a_private_name_is_refused_even_if_it_resolves_to_a_public_address(name: str) -> None:
    world = World(1, **{name.replace(".", "_"): [PUBLIC]})
    assert code_of(asyncio.run(world.get(f"http://{name}/"))) is ACCESSIBLE
    assert (world.resolved, world.dialled) == ([], [])


def test_a_name_that_changes_its_address_is_dialled_where_it_was_checked() -> None:
    async def run() -> None:
        answers = [[PUBLIC], ["127.0.0.1"]]
        async with RawServer(page(b"text/plain", b"hello")) as server:
            world = World(server.port)

            async def resolve_anew(host: str, port: int) -> Sequence[str]:
                return answers.pop(0)

            found = await GuardedFetcher(world.send, resolve_anew).get("http://page.example/", RULES)
            assert isinstance(found, Fetched)
            assert world.dialled == [PUBLIC]
            assert answers == [["127.0.0.1"]]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("file:///etc/passwd", INVALID),
        ("ftp://page.example/", INVALID),
        ("gopher://page.example/", INVALID),
        ("javascript:alert(1)", INVALID),
        ("data:text/plain,hello", INVALID),
        ("page.example", INVALID),
        ("http:///x", INVALID),
        ("http://user:secret@page.example/", INVALID),
        ("http://user@page.example/", INVALID),
        ("http://page.example\r\nhost: x/", INVALID),
        ("http://page.example:99999/", INVALID),
        ("http://päge.example\u2100/", INVALID),
        ("http://päge..example/", INVALID),
        ("http://page.example/\ud800", INVALID),
        ("http://üser:secret@page.example/", INVALID),
        ("http://page.example:22/", ALLOWED),
        ("http://page.example:6379/", ALLOWED),
        ("http://page.example:8080/", ALLOWED),
        ("http://page.example/" + "x" * MAX_URL, ToolErrorCode.URL_TOO_LONG),
    ],
)
def test_an_address_of_the_wrong_form_is_neither_resolved_nor_dialled(url: str, code: ToolErrorCode) -> None:
    world = World()
    outcome = asyncio.run(world.get(url))
    assert code_of(outcome) is code
    assert "secret" not in str(outcome)
    assert (world.resolved, world.dialled) == ([], [])


# Redirects


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("http://169.254.169.254/latest/meta-data/", ACCESSIBLE),
        ("//127.0.0.1/", ACCESSIBLE),
        ("https://10.0.0.1/", ACCESSIBLE),
        ("http://[::ffff:10.0.0.1]/", ACCESSIBLE),
        ("http://metadata.google.internal/", ACCESSIBLE),
        ("http://inner.example/", ACCESSIBLE),
        ("file:///etc/passwd", ACCESSIBLE),
        ("gopher://page.example/", ACCESSIBLE),
        ("http://user:secret@page.example/", ACCESSIBLE),
        ("http://[", ACCESSIBLE),
        ("http://page.example:22/", ALLOWED),
        ("/" + "x" * MAX_URL, ACCESSIBLE),
    ],
)
def test_a_redirect_is_checked_like_the_first_address(location: str, code: ToolErrorCode) -> None:
    async def run() -> None:
        async with RawServer(redirect(location)) as server:
            world = World(server.port, inner_example=["192.168.0.1"])
            outcome = await world.get("http://page.example/")
            assert code_of(outcome) is code
            assert "secret" not in str(outcome)
            assert world.dialled == [PUBLIC]

    asyncio.run(run())


def test_an_address_of_any_letters_is_requested_in_ascii() -> None:
    async def run() -> None:
        script = redirect("http://page.example/Äpfel?q=ü#ß")
        async with RawServer(script, page(b"text/plain", b"hello")) as server:
            world = World(server.port, **{"xn--kln-sna_example": [PUBLIC]})
            found = await world.get("http://köln.example/straße")
            assert isinstance(found, Fetched), found
            assert found.url == "http://page.example/%C3%84pfel?q=%C3%BC#%C3%9F"
            assert world.resolved == ["xn--kln-sna.example", "page.example"]

    asyncio.run(run())


def test_a_redirect_to_another_scheme_is_followed() -> None:
    async def run() -> None:
        async with RawServer(redirect("https://other.example/x"), page(b"text/plain", b"hello")) as server:
            world = World(server.port, other_example=[OTHER])
            found = await world.get("http://page.example/")
            assert isinstance(found, Fetched)
            assert found.url == "https://other.example/x"
            assert world.dialled == [PUBLIC, OTHER]

    asyncio.run(run())


def test_domain_lists_hold_at_every_hop() -> None:
    async def run(domains: DomainRules, dialled: list[str]) -> None:
        async with RawServer(redirect("http://other.example/"), page(b"text/plain", b"hello")) as server:
            world = World(server.port, other_example=[OTHER])
            rules = replace(RULES, permits=domains.permits)
            assert code_of(await world.get("http://page.example/", rules)) is ALLOWED
            assert world.dialled == dialled

    asyncio.run(run(DomainRules(allowed=("page.example",)), [PUBLIC]))
    asyncio.run(run(DomainRules(blocked=("other.example",)), [PUBLIC]))
    asyncio.run(run(DomainRules(blocked=("page.example",)), []))


def test_a_redirect_without_end_is_given_up() -> None:
    world, outcome = asyncio.run(fetch_from(redirect("/again")))
    assert isinstance(outcome, ToolFailure)
    assert outcome.code is ACCESSIBLE
    assert len(world.dialled) == 6


# Bodies


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n"
FLOOD = Flood(b"x" * 65536)


@pytest.mark.parametrize(
    "script",
    [
        (Request(), HEAD + b"content-length: 10737418240\r\n\r\n", FLOOD),
        (Request(), HEAD + b"\r\n", FLOOD),
        (Request(), HEAD + b"transfer-encoding: chunked\r\n\r\n", Flood(b"10000\r\n" + b"x" * 65536 + b"\r\n")),
        page(b"text/html", gzip.compress(bytes(256 * MB), 1), b"content-encoding: gzip"),
        page(b"text/html", gzip.compress(gzip.compress(bytes(256 * MB), 1)), b"content-encoding: gzip, gzip"),
    ],
    ids=["10 GB", "endless", "endless chunks", "gzip bomb", "gzip bomb in gzip"],
)
def test_a_body_beyond_the_limit_is_given_up(script: Script) -> None:
    begun = time.monotonic()
    _, outcome = asyncio.run(fetch_from(script))
    assert isinstance(outcome, ToolFailure)
    assert outcome.code in (ToolErrorCode.CONTENT_TOO_LARGE, ACCESSIBLE), outcome
    assert "took longer" not in outcome.message
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    "fields",
    [b"content-length: 10737418240\r\n", b"", b"transfer-encoding: chunked\r\n"],
    ids=["length", "until the end", "chunks"],
)
def test_of_a_body_of_10_gb_little_more_than_the_limit_is_read_and_kept(fields: bytes) -> None:
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n" if b"chunked" in fields else b"x" * 65536
    ten_gb = repeat(piece, 10 * 1024 * MB // 65536)

    async def run() -> tuple[Fetched | ToolFailure, int, int]:
        async with RawServer((Request(), HEAD + fields + b"\r\n", *ten_gb)) as server:
            tracemalloc.start()
            try:
                outcome = await World(server.port).get("http://page.example/")
                return outcome, server.visits[0].sent, tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

    outcome, sent, peak = asyncio.run(run())
    assert code_of(outcome) is ToolErrorCode.CONTENT_TOO_LARGE
    assert sent < 12 * MB  # the kernel's buffers of both ends included
    assert peak < 6 * MB


@pytest.mark.parametrize(
    "script",
    [
        (Request(), Hold()),
        (Request(), HEAD + b"content-length: 9\r\n\r\n", Hold()),
        (Request(), HEAD + b"content-length: 900\r\n\r\n", *(b"x", Pause(0.05)) * 800),
        (Request(), HEAD, *(b"x-more: 1\r\n", Pause(0.05)) * 800),
    ],
    ids=["no head", "no body", "slow body", "slow head"],
)
def test_a_slow_server_is_given_up_after_the_time_allowed(script: Script) -> None:
    """None of these would end within 30 seconds."""
    _, outcome = asyncio.run(asyncio.wait_for(fetch_from(script, replace(RULES, timeout_s=0.1)), 30))
    assert isinstance(outcome, ToolFailure)
    assert outcome.code is ACCESSIBLE


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (page(b"image/png", b"png"), ToolErrorCode.UNSUPPORTED_CONTENT_TYPE),
        (page(b"application/octet-stream", b"x"), ToolErrorCode.UNSUPPORTED_CONTENT_TYPE),
        ((Request(), b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx", Hold()), ToolErrorCode.UNSUPPORTED_CONTENT_TYPE),
        ((Request(), b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n", Hold()), ACCESSIBLE),
        ((Request(), b"HTTP/1.1 204 No\r\n\r\n", Hold()), ACCESSIBLE),
        ((Request(), b"HTTP/1.1 429 No\r\ncontent-length: 0\r\n\r\n", Hold()), ToolErrorCode.TOO_MANY_REQUESTS),
        ((Request(), HEAD + b"content-length: 9\r\n\r\nx"), ACCESSIBLE),
        (page(b"text/html", b"no gzip", b"content-encoding: gzip"), ACCESSIBLE),
        (page(b"text/html", b"x", b"content-encoding: unheard-of"), ACCESSIBLE),
        ((Request(), b"junk\r\n\r\n"), ACCESSIBLE),
    ],
)
def test_what_is_wrong_there_has_a_code(script: Script, code: ToolErrorCode) -> None:
    _, outcome = asyncio.run(fetch_from(script))
    assert isinstance(outcome, ToolFailure)
    assert outcome.code is code
    assert "page.example" in outcome.message


def test_a_request_has_no_credentials_and_no_cookies() -> None:
    async def run() -> None:
        script = page(b"text/html", b"<p>x", b"set-cookie: a=1")
        async with RawServer(redirect("/b"), script) as server:
            world = World(server.port)
            assert isinstance(await world.get("http://page.example/a"), Fetched)
            for request in server.requests:
                names = {line.partition(b":")[0].lower() for line in request.split(b"\r\n")[1:] if line}
                assert names.isdisjoint((b"cookie", b"authorization", b"referer"))

    asyncio.run(run())
