"""What an MCP tool returned, read as search results."""

from dragoman.server_tools.mcp import McpToolResult, ToolContent
from dragoman.server_tools.tool_results import MAX_RESULTS, read_search
from dragoman.server_tools.web_search import MAX_TEXT
from dragoman.translate.hub.request import Json
from dragoman.translate.hub.server_tools import SearchFound


def search(text: str = "", structured: Json = None) -> SearchFound:
    found = read_search(McpToolResult([ToolContent("text", text)], structured), "mcp")
    assert isinstance(found, SearchFound)
    return found


def test_each_address_of_prose_has_the_last_title_before_it() -> None:
    prose = "https://a.test/0\n**Title:** One\nhttps://a.test/1 and https://a.test/2.\n- title : Two\nhttps://a.test/1 https://a.test/3"
    titles = {result.url: result.title for result in search(prose).results}
    assert titles == {
        "https://a.test/0": "https://a.test/0",
        "https://a.test/1": "** One",
        "https://a.test/2": "** One",
        "https://a.test/3": "Two",
    }


def test_prose_and_its_addresses_are_bounded() -> None:
    found = search("\n".join(f"Title: t{at}\nhttps://a.test/{at}" for at in range(20_000)))
    assert len(found.results) == MAX_RESULTS
    assert found.text is not None
    assert found.text[MAX_TEXT:] == "\n\n[The result is longer; this is its beginning.]"


def test_results_inside_many_objects_are_found() -> None:
    nested: Json = [{"url": "https://a.test/1"}]
    for _ in range(5000):
        nested = {"data": nested}
    assert [result.url for result in search(structured=nested).results] == ["https://a.test/1"]
