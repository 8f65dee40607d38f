"""Each search service's own bytes, over a socket."""

import asyncio
import json
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

import pytest

from dragoman.net.client import DialOptions, HttpClient
from dragoman.server_tools.addresses import DomainRules
from dragoman.server_tools.service import ToolService
from dragoman.server_tools.web_search import (
    CUT,
    MAX_TEXT,
    SEARCH_APIS,
    RestSearch,
    SearchQuery,
    ServiceAccount,
    join_path,
    search,
)
from dragoman.translate.hub.server_tools import SearchFound, SearchOutcome, SearchResult, ToolErrorCode, ToolFailure
from fakes.raw import Hold, RawServer, Request, Script

QUERY = SearchQuery("red pandas & more", 5)
FILTERED = SearchQuery("pandas", 5, DomainRules(allowed=("a.example", "b.example")))
BLOCKED = SearchQuery("pandas", 5, DomainRules(blocked=("c.example",)))


def answer(value: object, status: int = 200) -> Script:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    head = b"HTTP/1.1 %d OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
    return (Request(), head + body, Hold())


async def run(
    name: str, script: Script, query: SearchQuery = QUERY, timeout_s: float = 20.0
) -> tuple[SearchOutcome, bytes]:
    async with RawServer(script) as server:
        client = HttpClient()
        account = ServiceAccount(server.url, "sk-fake-search", "dragoman/test")
        backend = RestSearch(SEARCH_APIS[name], account, ToolService(name, client.send, DialOptions()))
        outcome = await search(backend, query, timeout_s)
        await client.close()
        return outcome, server.requests[0] if server.requests else b""


def query_of(request: bytes) -> Mapping[str, list[str]]:
    return parse_qs(urlsplit(request.split(b" ")[1].decode()).query)


def body_of(request: bytes) -> object:
    return json.loads(request.partition(b"\r\n\r\n")[2])


def test_a_model_reads_a_bounded_text_of_one_search() -> None:
    """Clients and the store keep what the model has read, and every later turn repeats it."""
    long = {"url": "https://a.example/1", "title": "t" * 5000, "content": "x" * MAX_TEXT, "publishedDate": "d" * 500}
    far = {"url": "https://a.example/" + "x" * 9000, "title": "far"}
    more = {"url": "https://a.example/2", "title": "two", "content": "y"}
    outcome, _ = asyncio.run(run("searxng", answer({"results": [long, far, {**long, "title": "cut"}, more]})))
    assert isinstance(outcome, SearchFound)
    whole, cut, last = outcome.results
    assert (len(whole.title), len(whole.text), len(whole.published or "")) == (1000, MAX_TEXT, 100)
    assert (cut.text, last.text) == ("", "")
    half = {**long, "content": "x" * (MAX_TEXT // 2)}
    outcome, _ = asyncio.run(run("searxng", answer({"results": [half, long]})))
    assert isinstance(outcome, SearchFound)
    assert outcome.results[1].text == "x" * (MAX_TEXT // 2) + CUT


def test_results_that_are_not_of_the_web_are_left_out() -> None:
    addresses = [
        "javascript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        " javascript:x",
        "//a.example",
        "ftp://a.example",
    ]
    good = ["https://a.example/1", "HTTP://a.example/2"]
    results = [{"url": url, "title": "t"} for url in (*addresses, *good)]
    outcome, _ = asyncio.run(run("searxng", answer({"results": results})))
    assert isinstance(outcome, SearchFound)
    assert [result.url for result in outcome.results] == good


LISTS: dict[str, object] = {
    "searxng": {
        "query": "x",
        "number_of_results": 0,
        "results": [
            {"url": "https://a.example/1", "title": "One", "content": "First.", "publishedDate": "2026-01-02T00:00:00"},
            {"url": "https://c.example/2", "title": None, "content": None, "engines": ["x"]},
        ],
        "answers": [],
    },
    "brave": {
        "type": "search",
        "web": {
            "results": [
                {
                    "url": "https://a.example/1",
                    "title": "One",
                    "description": "First.",
                    "page_age": "2026-01-02T00:00:00",
                },
                {"url": "https://c.example/2", "extra_snippets": []},
            ]
        },
    },
    "tavily": {
        "query": "x",
        "results": [
            {
                "url": "https://a.example/1",
                "title": "One",
                "content": "First.",
                "score": 0.9,
                "published_date": "2026-01-02T00:00:00",
            },
            {"url": "https://c.example/2", "title": None},
        ],
        "response_time": 1.2,
    },
    "exa": {
        "requestId": "x",
        "results": [
            {
                "id": "1",
                "url": "https://a.example/1",
                "title": "One",
                "text": "First.",
                "publishedDate": "2026-01-02T00:00:00",
            },
            {"id": "2", "url": "https://c.example/2", "title": None},
        ],
    },
}
FOUND = (
    SearchResult("https://a.example/1", "One", "First.", "2026-01-02T00:00:00"),
    SearchResult("https://c.example/2", "https://c.example/2"),
)


@pytest.mark.parametrize("name", LISTS)
def test_results_are_read_and_a_missing_title_is_the_address(name: str) -> None:
    outcome, request = asyncio.run(run(name, answer(LISTS[name])))
    assert outcome == SearchFound(FOUND)
    assert b"user-agent: dragoman/test\r\n" in request


def test_searxng_gets_a_request_for_json() -> None:
    _, request = asyncio.run(run("searxng", answer(LISTS["searxng"]), FILTERED))
    assert request.startswith(b"GET /search?")
    assert query_of(request) == {"q": ["pandas site:a.example OR site:b.example"], "format": ["json"]}


def test_brave_gets_its_header_and_site_operators() -> None:
    _, request = asyncio.run(run("brave", answer(LISTS["brave"]), BLOCKED))
    assert request.startswith(b"GET /res/v1/web/search?")
    assert query_of(request) == {"q": ["pandas -site:c.example"], "count": ["5"]}
    assert b"x-subscription-token: sk-fake-search\r\n" in request


def test_tavily_gets_its_own_domain_lists() -> None:
    _, request = asyncio.run(run("tavily", answer(LISTS["tavily"]), FILTERED))
    assert request.startswith(b"POST /search ")
    assert b"authorization: Bearer sk-fake-search\r\n" in request
    assert body_of(request) == {
        "query": "pandas",
        "max_results": 5,
        "include_domains": ["a.example", "b.example"],
    }


def test_exa_gets_a_request_for_text_too() -> None:
    _, request = asyncio.run(run("exa", answer(LISTS["exa"]), BLOCKED))
    assert request.startswith(b"POST /search ")
    assert b"x-api-key: sk-fake-search\r\n" in request
    assert body_of(request) == {
        "query": "pandas",
        "numResults": 5,
        "contents": {"text": {"maxCharacters": 2000}},
        "excludeDomains": ["c.example"],
    }


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://s.example", "http://s.example/res/v1/web/search"),
        ("http://s.example/", "http://s.example/res/v1/web/search"),
        ("http://s.example/res/v1", "http://s.example/res/v1/web/search"),
        ("http://s.example/res/v1/web/search/", "http://s.example/res/v1/web/search"),
        ("http://s.example/mirror", "http://s.example/mirror/res/v1/web/search"),
        ("http://res", "http://res/res/v1/web/search"),
        ("http://s.example/more/res", "http://s.example/more/res/v1/web/search"),
        ("http://s.example/web/search", "http://s.example/web/search/res/v1/web/search"),
    ],
)
def test_an_endpoint_may_end_with_the_path_or_its_beginning(endpoint: str, url: str) -> None:
    assert join_path(endpoint, "/res/v1/web/search") == url


@pytest.mark.parametrize("name", LISTS)
def test_domain_lists_hold_whatever_the_service_returns(name: str) -> None:
    outcome, _ = asyncio.run(run(name, answer(LISTS[name]), FILTERED))
    assert outcome == SearchFound(FOUND[:1])
    outcome, _ = asyncio.run(run(name, answer(LISTS[name]), BLOCKED))
    assert outcome == SearchFound(FOUND[:1])


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize(
    ("script", "code"),
    [
        (answer({}, 500), ToolErrorCode.UNAVAILABLE),
        (answer({}, 403), ToolErrorCode.UNAVAILABLE),
        (answer({}, 429), ToolErrorCode.TOO_MANY_REQUESTS),
        (answer(b"<html>"), ToolErrorCode.UNAVAILABLE),
        (
            answer(b'{"web": {"results": [{"title": "\xff"}]}, "results": [{"title": "\xff"}]}'),
            ToolErrorCode.UNAVAILABLE,
        ),
        (answer(b'{"results": 1, "web": 1}'), ToolErrorCode.UNAVAILABLE),
        ((Request(),), ToolErrorCode.UNAVAILABLE),
    ],
)
def test_a_failure_of_the_service_is_a_result(name: str, script: Script, code: ToolErrorCode) -> None:
    outcome, _ = asyncio.run(run(name, script))
    assert isinstance(outcome, ToolFailure)
    assert outcome.code is code
    assert name in outcome.message
    assert "sk-fake" not in outcome.message


def test_a_403_of_searxng_names_the_setting_that_is_missing() -> None:
    outcome, _ = asyncio.run(run("searxng", answer({}, 403)))
    assert isinstance(outcome, ToolFailure)
    assert "search.formats" in outcome.message


def test_a_silent_service_costs_no_more_than_the_time_allowed() -> None:
    outcome, _ = asyncio.run(run("exa", (Request(), Hold()), timeout_s=0.2))
    assert isinstance(outcome, ToolFailure)
    assert outcome.code is ToolErrorCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", ToolErrorCode.INVALID_INPUT),
        (" \n", ToolErrorCode.INVALID_INPUT),
        ("é" * 2049, ToolErrorCode.QUERY_TOO_LONG),
    ],
)
def test_a_bad_query_is_never_sent(text: str, code: ToolErrorCode) -> None:
    outcome, request = asyncio.run(run("brave", answer(LISTS["brave"]), SearchQuery(text, 5)))
    assert isinstance(outcome, ToolFailure)
    assert outcome.code is code
    assert request == b""


def test_no_more_results_than_requested() -> None:
    outcome, _ = asyncio.run(run("exa", answer(LISTS["exa"]), SearchQuery("pandas", 1)))
    assert outcome == SearchFound(FOUND[:1])
