"""Fetch one page for a model: guarded, bounded, and turned into readable text."""

import asyncio
import base64
import logging
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.settings import WebFetch
from dragoman.net.client import OutgoingRequest
from dragoman.net.dial import parse_url
from dragoman.net.errors import describe_fault
from dragoman.net.guest_threads import run_on_page_thread
from dragoman.net.headers import JSON
from dragoman.server_tools.addresses import DomainRules, to_ascii
from dragoman.server_tools.guarded_fetch import MAX_URL, PORTS, Fetched, FetchRules, GuardedFetcher
from dragoman.server_tools.readable import Check, TimeLimit, TooSlow, check_nothing, decode_text, read_html
from dragoman.server_tools.service import ToolService
from dragoman.server_tools.web_search import join_path
from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.translate.hub.server_tools import FetchOutcome, ToolErrorCode, ToolFailure, WebPage

log = logging.getLogger(__name__)

READING_S = 2.0  # of the processor, for one page; an ordinary one takes milliseconds
HTML = frozenset(("text/html", "application/xhtml+xml"))
PDF = "application/pdf"
ACCEPT = b"text/html,application/xhtml+xml,text/*;q=0.9,application/json;q=0.9,application/pdf;q=0.8"


class FetchBackend(Protocol):
    """Fetches pages."""

    @property
    def name(self) -> str: ...
    async def fetch(self, url: str, domains: DomainRules) -> FetchOutcome: ...


async def fetch(backend: FetchBackend, url: str, domains: DomainRules) -> FetchOutcome:
    """Return a page with the time at which it was fetched, or why there is none.

    What every backend has to refuse is refused here: an outside service might fetch a file of its own machine.
    """
    checked = _check(url, domains)
    if isinstance(checked, ToolFailure):
        return checked
    outcome = await backend.fetch(checked, domains)
    if not isinstance(outcome, WebPage) or outcome.retrieved_at:
        return outcome
    return replace(outcome, retrieved_at=datetime.now(UTC).isoformat(timespec="seconds"))


async def limit_time(name: str, timeout_s: float, run: Awaitable[FetchOutcome]) -> FetchOutcome:
    """Return what a service returns within this time, or that it did not."""
    try:
        async with asyncio.timeout(timeout_s):
            return await run
    except TimeoutError:
        return ToolFailure(ToolErrorCode.UNAVAILABLE, f"{name} did not answer within {timeout_s:g} s.")


def _check(url: str, domains: DomainRules) -> str | ToolFailure:
    """Return the address as it is requested, in ASCII."""
    if len(url) > MAX_URL:
        return ToolFailure(ToolErrorCode.URL_TOO_LONG, f"The URL is longer than {MAX_URL} characters.")
    try:
        url = to_ascii(url)
        host = parse_url(url).host
    except ValueError as fault:
        return ToolFailure(ToolErrorCode.INVALID_INPUT, f"The URL cannot be fetched: {fault}.")
    if not domains.permits(url):
        message = f"{host} is not among the domains that the request allows."
        return ToolFailure(ToolErrorCode.URL_NOT_ALLOWED, message)
    return url


class PageLimits(Struct, frozen=True):
    """The bounds of the configuration."""

    timeout_s: float
    max_bytes: int
    max_chars: int
    user_agent: str
    ports: frozenset[int] = PORTS
    reading_s: float = READING_S  # of the processor


class PageFetcher:
    """The built-in fetch backend."""

    name = "builtin"

    def __init__(self, fetcher: GuardedFetcher, limits: PageLimits) -> None:
        self._fetcher = fetcher
        self._limits = limits

    async def fetch(self, url: str, domains: DomainRules) -> FetchOutcome:
        limits = self._limits
        headers = ((b"accept", ACCEPT), (b"user-agent", limits.user_agent.encode()))
        rules = FetchRules(headers, limits.max_bytes, limits.timeout_s, is_readable, domains.permits, limits.ports)
        fetched = await self._fetcher.get(url.strip(), rules)
        if isinstance(fetched, ToolFailure):
            return fetched
        return await _read_fetched(fetched, limits)


async def _read_fetched(fetched: Fetched, limits: PageLimits) -> FetchOutcome:
    """Return a page, or that it cannot be read, whatever the reason."""
    try:
        async with asyncio.timeout(limits.timeout_s):  # other pages may be read first
            return await run_on_page_thread(
                lambda: read_page(fetched, limits.max_chars, TimeLimit(limits.reading_s).check)
            )
    except (TooSlow, TimeoutError):
        why = "reading it takes too long"
    except Exception as fault:  # a page may hold anything, and must not end the reply
        log.error("a fetched page cannot be read: %s", describe_fault(fault))
        why = "the gateway failed to read it"
    return ToolFailure(ToolErrorCode.URL_NOT_ACCESSIBLE, f"{parse_url(fetched.url).where} cannot be used: {why}.")


class _Extracted(Struct):
    url: str = ""
    raw_content: str | None = None
    title: str | None = None


class _Extraction(Struct):
    results: list[_Extracted] = []


class TavilyFetch:
    """Fetches pages through Tavily's extraction service."""

    name = "tavily"

    def __init__(self, endpoint: str, api_key: str, service: ToolService, settings: WebFetch) -> None:
        self._endpoint = endpoint
        self._api_key = api_key
        self._service = service
        self._settings = settings

    async def fetch(self, url: str, domains: DomainRules) -> FetchOutcome:
        return await limit_time(self.name, self._settings.timeout_s, self._extract(url))

    async def _extract(self, url: str) -> FetchOutcome:
        headers = (JSON, (b"authorization", b"Bearer " + self._api_key.encode()))
        body = msgspec.json.encode({"urls": [url]})
        out = OutgoingRequest("POST", join_path(self._endpoint, "/extract"), headers, body)
        reply = await self._service.request(out, self._settings.timeout_s)
        if isinstance(reply, ToolFailure):
            return reply
        if reply.status != 200:
            return self._service.failure_of_status(reply.status)
        try:
            found = msgspec.json.decode(reply.body, type=_Extraction).results
        except JSON_ERRORS as error:
            return self._service.fail(f"its answer cannot be read: {error}")
        if not found or not found[0].raw_content:
            return ToolFailure(ToolErrorCode.URL_NOT_ACCESSIBLE, "tavily could not read the page.")
        text, most = found[0].raw_content, self._settings.max_chars
        return WebPage(url, found[0].title or url, text[:most], truncated=len(text) > most)


def is_readable(media_type: str) -> bool:
    """Whether a page of this type can be given to a model."""
    if media_type == PDF or media_type in HTML or media_type.startswith("text/"):
        return True
    return media_type in ("application/json", "application/xml") or media_type.endswith(("+json", "+xml"))


def read_page(fetched: Fetched, max_chars: int, check: Check = check_nothing) -> WebPage:
    """Return a page as a model reads it. Raises what `check` raises."""
    if fetched.media_type == PDF:
        return WebPage(fetched.url, _file_name(fetched.url), pdf=base64.b64encode(fetched.body).decode())
    if fetched.media_type in HTML:
        page = decode_text(fetched.body, fetched.content_type, check)
        readable = read_html(page, fetched.url, max_chars, check)
        return WebPage(fetched.url, readable.title or fetched.url, readable.text, truncated=readable.truncated)
    text = decode_text(fetched.body, fetched.content_type, check, max_chars)
    return WebPage(fetched.url, _file_name(fetched.url), text[:max_chars], truncated=len(text) > max_chars)


def _file_name(url: str) -> str:
    name = url.partition("?")[0].partition("#")[0].rstrip("/").rpartition("/")[2]
    return name or url
