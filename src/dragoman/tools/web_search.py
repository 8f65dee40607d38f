"""Run one web search: check the query, call the search service, and keep what the request allows."""

import asyncio
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from dragoman.hub.server_tools import SearchFound, SearchOutcome, ToolErrorCode, ToolFailure, ToolText
from dragoman.tools.domains import DomainRules

MAX_QUERY_BYTES = 4096


class SearchQuery(Struct, frozen=True):
    text: str
    results: int  # at most so many
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
    kept = tuple(result for result in outcome.results if query.domains.permits(result.url))[: query.results]
    if len(kept) == len(outcome.results):
        return outcome
    return SearchFound(kept)  # prose would still name what was left out
