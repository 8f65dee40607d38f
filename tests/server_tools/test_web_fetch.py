"""Fetching through a service: what is refused before a request is sent, and how long it may take."""

import asyncio

import pytest

from dragoman.config.settings import WebFetch
from dragoman.net.client import DialOptions, HttpClient
from dragoman.server_tools.addresses import DomainRules
from dragoman.server_tools.guarded_fetch import Fetched, GuardedFetcher
from dragoman.server_tools.service import ToolService
from dragoman.server_tools.web_fetch import PageFetcher, PageLimits, TavilyFetch, fetch, is_readable, read_page
from dragoman.translate.hub.server_tools import FetchOutcome, ToolErrorCode, ToolFailure, WebPage
from fakes.raw import Pause, RawServer, Request, Script
from server_tools.test_guarded_fetch import World, page

URL = "https://page.example/a"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
BODY = b'{"results":[{"url":"https://page.example/a","raw_content":"hello"}]}'


async def extract(
    script: Script, url: str = URL, domains: DomainRules | None = None, timeout_s: float = 20.0
) -> tuple[int, FetchOutcome]:
    """Return how many requests came, and the outcome."""
    async with RawServer(script) as server:
        client = HttpClient()
        service = ToolService("tavily", client.send, DialOptions())
        backend = TavilyFetch(server.url, "tvly-fake", service, WebFetch(timeout_s=timeout_s))
        try:
            outcome = await fetch(backend, url, domains or DomainRules())
            return len(server.requests), outcome
        finally:
            await client.close()


def test_a_page_has_the_time_at_which_it_was_fetched() -> None:
    _, outcome = asyncio.run(extract((Request(), HEAD % len(BODY) + BODY)))
    assert isinstance(outcome, WebPage)
    assert (outcome.url, outcome.title, outcome.text) == (URL, URL, "hello")
    assert outcome.retrieved_at.endswith("+00:00")


def test_a_service_has_the_time_allowed_for_head_and_body_together() -> None:
    slow: Script = (Request(), Pause(0.15), HEAD % len(BODY), Pause(0.15), BODY)  # each part in time, not both
    _, outcome = asyncio.run(extract(slow, timeout_s=0.2))
    assert outcome == ToolFailure(ToolErrorCode.UNAVAILABLE, "tavily did not answer within 0.2 s.")


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("file:///etc/passwd", ToolErrorCode.INVALID_INPUT),
        ("https://user@page.example/", ToolErrorCode.INVALID_INPUT),
        ("https://other.example/", ToolErrorCode.URL_NOT_ALLOWED),
        (URL + "x" * 2048, ToolErrorCode.URL_TOO_LONG),
    ],
)
def test_a_service_gets_no_request_for_an_address_that_is_refused(url: str, code: ToolErrorCode) -> None:
    requests, outcome = asyncio.run(extract((Request(),), url, DomainRules(allowed=("page.example",))))
    assert isinstance(outcome, ToolFailure)
    assert (outcome.code, requests) == (code, 0)


@pytest.mark.parametrize(
    ("media_type", "readable"),
    [
        ("text/html", True),
        ("text/markdown", True),
        ("application/json", True),
        ("application/ld+json", True),
        ("application/rss+xml", True),
        ("application/pdf", True),
        ("image/png", False),
        ("application/octet-stream", False),
        ("", False),
    ],
)
def test_media_types_that_a_model_can_read(media_type: str, readable: bool) -> None:
    assert is_readable(media_type) is readable


async def fetch_built_in(content_type: bytes, body: bytes, reading_s: float = 60.0) -> FetchOutcome:
    async with RawServer(page(content_type, body)) as server:
        world = World(server.port)
        limits = PageLimits(60.0, 5_000_000, 1000, "dragoman/test", reading_s=reading_s)
        return await PageFetcher(GuardedFetcher(world.send, world.resolve), limits).fetch(
            "http://page.example/", DomainRules()
        )


@pytest.mark.parametrize("charset", ["punycode", "idna", "undefined"])
async def test_a_page_of_any_charset_is_read(charset: str) -> None:
    outcome = await fetch_built_in(f"text/html; charset={charset}".encode(), "<p>größer".encode())
    assert isinstance(outcome, WebPage)
    assert outcome.text == "größer"


async def test_a_page_that_takes_too_long_to_read_is_a_tool_error() -> None:
    outcome = await fetch_built_in(b"text/html", b"<b>" * 100_000, reading_s=-1.0)
    assert isinstance(outcome, ToolFailure)
    assert outcome.code is ToolErrorCode.URL_NOT_ACCESSIBLE
    assert outcome.message == "page.example:80 cannot be used: reading it takes too long."


def test_a_text_is_named_after_its_file_and_cut() -> None:
    fetched = Fetched("http://a.example/x/notes.txt?v=1#top", "text/plain; charset=latin-1", "text/plain", b"\xe9" * 9)
    assert read_page(fetched, 4) == WebPage(fetched.url, "notes.txt", "éééé", truncated=True)
