"""Encode what the gateway's own tools returned as content blocks."""

import pytest

from dragoman.hub.events import Closed, Ended, HostedBlock, Opened, Started, Stop, ToolReturned
from dragoman.hub.server_tools import SearchFound, SearchResult
from protocols.messages.messages_dialogue import whole

START, END = Started("m", "m"), Ended(Stop.END)


@pytest.mark.parametrize(
    ("published", "page_age"),
    [
        ("2026-01-02", "2026-01-02"),
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        ("Fri, 02 Jan 2026 03:04:05 GMT", "2026-01-02"),
        ("3 days ago", None),
        ("", None),
        (None, None),
    ],
)
def test_the_age_of_a_page_is_a_date_or_null(published: str | None, page_age: str | None) -> None:
    found = SearchFound((SearchResult("https://example.com", "E", "so", published),))
    hosted = HostedBlock("srvtoolu_1", "web_search", {"query": "q"}, is_ours=True)
    content = whole([START, Opened(0, hosted), ToolReturned(0, found), Closed(0), END])["content"]
    assert content[1]["content"][0]["page_age"] == page_age
