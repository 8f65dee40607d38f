"""Read what an MCP tool returned as search results or as a page, and keep secrets out of what any tool returned."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice

import msgspec

from dragoman.server_tools.mcp import McpToolResult
from dragoman.server_tools.web_search import CUT, MAX_TEXT
from dragoman.translate.framing.jsonread import parse_or
from dragoman.translate.framing.known_secrets import redact_known
from dragoman.translate.hub.request import Json
from dragoman.translate.hub.server_tools import (
    FetchOutcome,
    SearchFound,
    SearchOutcome,
    SearchResult,
    ToolErrorCode,
    ToolFailure,
    ToolOutcome,
    WebPage,
)

_URL = re.compile(r"https?://[^\s<>()\[\]\"']{1,2000}")
_TITLE_LINE = re.compile(r"^[^\w\n]*+title[^\w\n:]*+:\s*+(.{1,300})$", re.IGNORECASE | re.MULTILINE)
MAX_RESULTS = 100
_TITLES = ("title", "name")
_LINKS = ("url", "link", "href")
_TEXTS = ("text", "snippet", "content", "description", "summary")
_DATES = ("publishedDate", "published", "published_date", "page_age", "date")
_LISTS = ("results", "items", "data", "organic", "web")


def read_search(result: McpToolResult, name: str) -> SearchOutcome:
    """Return a tool's results: JSON objects with a URL, or prose in which URLs stand."""
    text = result.text
    if result.is_error:
        return ToolFailure(ToolErrorCode.UNAVAILABLE, f"{name}: {text or 'the tool reported an error'}"[:1000])
    written = _json(text)
    for value in (result.structured_content, written):
        if isinstance(value, dict) and (problem := value.get("error")):
            return ToolFailure(ToolErrorCode.UNAVAILABLE, f"{name}: {_format_value(problem)}")
        if results := tuple(islice(_results_in(value), MAX_RESULTS)):
            return SearchFound(results)
    if written is not None:
        return SearchFound(())
    prose = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + CUT
    return SearchFound(tuple(islice(_results_in_prose(prose), MAX_RESULTS)), prose)


def read_page(result: McpToolResult, url: str, name: str, max_chars: int) -> FetchOutcome:
    text = result.text
    if result.is_error:
        return ToolFailure(ToolErrorCode.URL_NOT_ACCESSIBLE, f"{name}: {text or 'the tool reported an error'}"[:1000])
    title = _TITLE_LINE.search(text[:2000])
    return WebPage(url, title.group(1).strip() if title else url, text[:max_chars], truncated=len(text) > max_chars)


def _json(text: str) -> Json:
    value = parse_or(text, object, None)
    return value if isinstance(value, dict | list) else None


def _results_in(value: Json) -> Iterator[SearchResult]:
    while isinstance(value, dict):
        value = next((value[key] for key in _LISTS if isinstance(value.get(key), dict | list)), None)
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict) and (url := _first_text(item, _LINKS)):
            title = _first_text(item, _TITLES) or url
            yield SearchResult(url, title, _first_text(item, _TEXTS), _date(item))


def _results_in_prose(text: str) -> Iterator[SearchResult]:
    """Return each URL once, with the last `Title:` line before it."""
    seen: set[str] = set()
    titles = _TITLE_LINE.finditer(text)
    following = next(titles, None)
    title = ""
    for match in _URL.finditer(text):
        while following is not None and following.start() < match.start():
            title, following = following.group(1).strip(), next(titles, None)
        url = match.group().rstrip(".,;:")
        if url not in seen:
            seen.add(url)
            yield SearchResult(url, title or url)


def _first_text(item: Mapping[str, Json], names: tuple[str, ...]) -> str:
    return next((value for name in names if isinstance(value := item.get(name), str) and value), "")


def _date(item: Mapping[str, Json]) -> str | None:
    value = next((item[name] for name in _DATES if item.get(name)), None)
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float):
        return None
    try:  # Kiro's search gives milliseconds since the epoch
        return datetime.fromtimestamp(value / 1000, UTC).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return None


def _format_value(value: Json) -> str:
    return (value if isinstance(value, str) else msgspec.json.encode(value).decode())[:1000]


def redact_outcome(outcome: ToolOutcome, secrets: tuple[bytes, ...]) -> ToolOutcome:
    """Return the outcome without secrets that a service repeats in its answer."""
    try:
        encoded = msgspec.json.encode(outcome)
    except UnicodeEncodeError:
        return ToolFailure(ToolErrorCode.UNAVAILABLE, "The result is not valid Unicode.")
    redacted = redact_known(encoded, secrets)
    return outcome if redacted is encoded else msgspec.json.decode(redacted, type=ToolOutcome)
