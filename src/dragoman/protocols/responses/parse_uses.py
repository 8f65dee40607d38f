"""Read the web searches of earlier turns, which stand among the input as items of a hosted tool.

Such an item names what was searched for or opened. Of what was found it holds at most the addresses.
"""

from collections.abc import Sequence

from dragoman.hub.request import Foreign, Part
from dragoman.hub.server_tools import (
    Page,
    SearchFound,
    SearchResult,
    ServerToolUse,
    ToolErrorCode,
    ToolFailure,
    ToolOutcome,
)
from dragoman.protocols.responses.wire import SEARCH_ITEM, Item, text_at

_NOT_KEPT = "[What this call returned was not kept. Call the tool again if it is needed.]"


def read_tool_uses(parts: Sequence[Part]) -> dict[int, ServerToolUse | None]:
    """Return the searches and opened pages among the parts of a turn, by index."""
    return {
        index: _read_use(part.raw, part.at)
        for index, part in enumerate(parts)
        if isinstance(part, Foreign) and part.what == SEARCH_ITEM and isinstance(part.raw, dict)
    }


def _read_use(item: Item, at: str) -> ServerToolUse:
    raw_action = item.get("action")
    action = raw_action if isinstance(raw_action, dict) else {}
    id = text_at(item, "id") or "ws" + at.replace("/", "_")  # some clients leave it out
    url = text_at(action, "url")
    if url:  # open_page, find_in_page
        pattern = text_at(action, "pattern")
        about = f"[Looked for {pattern!r}.]\n{_NOT_KEPT}" if pattern else _NOT_KEPT
        outcome = _read_failure(item) or Page(url, url, about)
        return ServerToolUse(id, "web_fetch", {"url": url}, outcome)
    return ServerToolUse(id, "web_search", {"query": _read_query(action)}, _read_failure(item) or _read_found(action))


def _read_query(action: Item) -> str:
    queries = action.get("queries")
    several = [query for query in queries if isinstance(query, str)] if isinstance(queries, list) else []
    return text_at(action, "query") or "; ".join(several)


def _read_failure(item: Item) -> ToolOutcome | None:
    if item.get("status") != "failed":
        return None
    return ToolFailure(ToolErrorCode.UNAVAILABLE, "The call failed.")


def _read_found(action: Item) -> SearchFound:
    sources = action.get("sources")
    listed = [source for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []
    urls = [url for source in listed if (url := text_at(source, "url"))]
    return SearchFound(tuple(SearchResult(url, url) for url in urls), None if urls else _NOT_KEPT)
