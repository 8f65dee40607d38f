"""Web searches: the checks of a query, the search services with a JSON API of their own, and their results."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.net.client import OutgoingRequest
from dragoman.net.headers import JSON, Header
from dragoman.server_tools.addresses import DomainRules, is_web_address
from dragoman.server_tools.service import ToolService
from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.translate.hub.server_tools import (
    SearchFound,
    SearchOutcome,
    SearchResult,
    ToolErrorCode,
    ToolFailure,
    ToolText,
)

MAX_QUERY_BYTES = 4096
MAX_TEXT = 200_000  # characters that a model reads of one search, and that later turns repeat
MAX_TITLE = 1000
MAX_ADDRESS = 8000
CUT = "\n\n[The result is longer; this is its beginning.]"


class SearchQuery(Struct, frozen=True):
    text: str
    results: int  # the most that are returned
    domains: DomainRules = DomainRules()
    country: str | None = None  # ISO 3166, two letters


class SearchBackend(Protocol):
    """A search service."""

    @property
    def name(self) -> str: ...
    async def search(self, query: SearchQuery, timeout_s: float) -> SearchOutcome: ...


class AccountSearch(SearchBackend, Protocol):
    """The search that comes with an account; its vendor has a text about it for models."""

    async def describe(self, is_first_round: bool) -> ToolText | None: ...  # None: it is not known


async def search(backend: SearchBackend, query: SearchQuery, timeout_s: float) -> SearchOutcome:
    """Return the results that the request's domain lists allow, or why there are none. Raises nothing expected."""
    text = query.text.strip()
    if not text:
        return ToolFailure(ToolErrorCode.INVALID_INPUT, "The search query is empty.")
    if len(text.encode(errors="replace")) > MAX_QUERY_BYTES:
        return ToolFailure(ToolErrorCode.QUERY_TOO_LONG, f"The search query is longer than {MAX_QUERY_BYTES} bytes.")
    try:
        async with asyncio.timeout(timeout_s):
            outcome = await backend.search(replace(query, text=text), timeout_s)
    except TimeoutError:
        return ToolFailure(ToolErrorCode.UNAVAILABLE, f"{backend.name} did not answer within {timeout_s:g} s.")
    if isinstance(outcome, ToolFailure):
        return outcome
    listed = (item for item in outcome.results if is_web_address(item.url) and len(item.url) <= MAX_ADDRESS)
    kept = tuple(islice((item for item in listed if query.domains.permits(item.url)), query.results))
    # Prose would still name what was left out.
    return SearchFound(limit_texts(kept), outcome.text if len(kept) == len(outcome.results) else None)


def limit_texts(results: Sequence[SearchResult]) -> tuple[SearchResult, ...]:
    """Return the results with as much of their texts as a model reads of one search."""
    room = MAX_TEXT
    limited: list[SearchResult] = []
    for item in results:
        text = item.text if len(item.text) <= room else item.text[:room] + CUT if room else ""
        room -= min(room, len(item.text))
        limited.append(SearchResult(item.url, item.title[:MAX_TITLE], text, item.published and item.published[:100]))
    return tuple(limited)


ACCEPT: Header = (b"accept", b"application/json")
MAX_BRAVE_QUERY = 400  # characters; the service refuses more


class ServiceAccount(Struct, frozen=True):
    """The address of a service, and the key and user agent to send."""

    endpoint: str
    api_key: str
    user_agent: str


class SearchApi(Struct, frozen=True):
    """One vendor's wire format."""

    name: str
    endpoint: str | None  # None: there is no public one
    needs_key: bool
    build: Callable[[ServiceAccount, SearchQuery], OutgoingRequest]
    read: Callable[[bytes], Sequence["Listed"]]  # raises msgspec.MsgspecError
    hints: Mapping[int, str] = {}  # status -> what the operator can do


class Listed(Struct, frozen=True):
    """One result, as far as the vendors agree; fields that a vendor does not have stay None."""

    url: str | None = None
    title: str | None = None
    text: str | None = None
    published: str | None = None


R = TypeVar("R", bound=Listed)


class RestSearch:
    """A search backend that calls one of these APIs."""

    def __init__(self, api: SearchApi, account: ServiceAccount, service: ToolService) -> None:
        self.name = api.name
        self._api = api
        self._account = account
        self._service = service

    async def search(self, query: SearchQuery, timeout_s: float) -> SearchOutcome:
        reply = await self._service.request(self._api.build(self._account, query), timeout_s)
        if isinstance(reply, ToolFailure):
            return reply
        if reply.status != 200:
            return self._service.failure_of_status(reply.status, self._api.hints.get(reply.status, ""))
        try:
            listed = self._api.read(reply.body)
        except JSON_ERRORS as error:
            return self._service.fail(f"its answer cannot be read: {error}")
        return SearchFound(tuple(_result(item) for item in listed if item.url))


def _result(item: Listed) -> SearchResult:
    url = item.url or ""
    return SearchResult(url, item.title or url, item.text or "", item.published)


def join_path(endpoint: str, path: str) -> str:
    """Return the address of an operation; the endpoint may already end with the path or its beginning."""
    scheme, _, rest = endpoint.rstrip("/").partition("://")
    host, *base = rest.split("/")
    names = path.strip("/").split("/")
    present = next((count for count in range(len(names), 0, -1) if base[-count:] == names[:count]), 0)
    return f"{scheme}://{'/'.join([host, *base, *names[present:]])}"


def _user_agent(account: ServiceAccount) -> Header:
    return b"user-agent", account.user_agent.encode()


def _with_sites(query: SearchQuery) -> str:
    """Write domain lists as `site:` operators, for services without a parameter for them."""
    allowed = " OR ".join(f"site:{domain}" for domain in query.domains.allowed)
    blocked = " ".join(f"-site:{domain}" for domain in query.domains.blocked)
    return " ".join(part for part in (query.text, allowed, blocked) if part)


class _Page(Struct, Generic[R]):
    results: list[R] = []


def _read_results(page: type[_Page[R]]) -> Callable[[bytes], Sequence[Listed]]:
    return lambda body: msgspec.json.decode(body, type=page).results


# SearXNG


class _SearxngResult(Listed, frozen=True):
    text: str | None = msgspec.field(default=None, name="content")
    published: str | None = msgspec.field(default=None, name="publishedDate")


def _build_searxng(account: ServiceAccount, query: SearchQuery) -> OutgoingRequest:
    headers: tuple[Header, ...] = (ACCEPT, _user_agent(account))
    if account.api_key:
        headers = (*headers, (b"authorization", b"Bearer " + account.api_key.encode()))
    fields = urlencode({"q": _with_sites(query), "format": "json"})
    return OutgoingRequest("GET", f"{join_path(account.endpoint, '/search')}?{fields}", headers)


# Brave


class _BraveResult(Struct):
    url: str | None = None
    title: str | None = None
    description: str | None = None
    page_age: str | None = None
    extra_snippets: list[str] = []


class _BraveWeb(Struct):
    results: list[_BraveResult] = []


class _BravePage(Struct):
    web: _BraveWeb | None = None


def _build_brave(account: ServiceAccount, query: SearchQuery) -> OutgoingRequest:
    fields = {"q": _with_sites(query)[:MAX_BRAVE_QUERY], "count": str(min(query.results, 20))}
    if query.country is not None:
        fields["country"] = query.country
    key = (b"x-subscription-token", account.api_key.encode())
    url = f"{join_path(account.endpoint, '/res/v1/web/search')}?{urlencode(fields)}"
    return OutgoingRequest("GET", url, (ACCEPT, _user_agent(account), key))


def _read_brave(body: bytes) -> Sequence[Listed]:
    page = msgspec.json.decode(body, type=_BravePage)
    results = [] if page.web is None else page.web.results
    return [
        Listed(item.url, item.title, "\n".join(filter(None, (item.description, *item.extra_snippets))), item.page_age)
        for item in results
    ]


# Tavily


class _TavilyResult(Listed, frozen=True):
    text: str | None = msgspec.field(default=None, name="content")
    published: str | None = msgspec.field(default=None, name="published_date")


def _build_tavily(account: ServiceAccount, query: SearchQuery) -> OutgoingRequest:
    body: dict[str, object] = {"query": query.text, "max_results": min(query.results, 20)}
    if query.domains.allowed:
        body["include_domains"] = query.domains.allowed
    if query.domains.blocked:
        body["exclude_domains"] = query.domains.blocked
    key = (b"authorization", b"Bearer " + account.api_key.encode())
    headers = (JSON, ACCEPT, _user_agent(account), key)
    return OutgoingRequest("POST", join_path(account.endpoint, "/search"), headers, msgspec.json.encode(body))


# Exa


class _ExaResult(Listed, frozen=True):
    published: str | None = msgspec.field(default=None, name="publishedDate")


def _build_exa(account: ServiceAccount, query: SearchQuery) -> OutgoingRequest:
    body: dict[str, object] = {
        "query": query.text,
        "numResults": query.results,
        "contents": {"text": {"maxCharacters": 2000}},
    }
    if query.domains.allowed:
        body["includeDomains"] = query.domains.allowed
    if query.domains.blocked:
        body["excludeDomains"] = query.domains.blocked
    headers = (JSON, ACCEPT, _user_agent(account), (b"x-api-key", account.api_key.encode()))
    return OutgoingRequest("POST", join_path(account.endpoint, "/search"), headers, msgspec.json.encode(body))


_CHECK_KEY = "Check tools.web_search.api_key"
_KEY_HINTS = {401: _CHECK_KEY, 403: _CHECK_KEY}
_SEARXNG_HINTS = {403: 'SearXNG answers in JSON only if its settings.yml lists "json" in search.formats'}

SEARCH_APIS: dict[str, SearchApi] = {
    api.name: api
    for api in (
        SearchApi("searxng", None, False, _build_searxng, _read_results(_Page[_SearxngResult]), _SEARXNG_HINTS),
        SearchApi("brave", "https://api.search.brave.com", True, _build_brave, _read_brave, _KEY_HINTS),
        SearchApi(
            "tavily", "https://api.tavily.com", True, _build_tavily, _read_results(_Page[_TavilyResult]), _KEY_HINTS
        ),
        SearchApi("exa", "https://api.exa.ai", True, _build_exa, _read_results(_Page[_ExaResult]), _KEY_HINTS),
    )
}
