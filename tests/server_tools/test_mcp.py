"""The MCP client, judged by a server that is made with the official SDK."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from dragoman.net.client import DialOptions, HttpClient
from dragoman.server_tools.mcp import HttpMcpServer, McpServer, McpToolResult, StdioMcpServer
from dragoman.server_tools.service import ToolService
from dragoman.server_tools.tool_results import read_page, read_search
from dragoman.translate.hub.server_tools import SearchFound, SearchResult, ToolErrorCode, ToolFailure, WebPage
from fakes.raw import Hold, RawServer, Request

SERVER = Path(__file__).parent.parent / "fakes" / "mcp_server.py"
WAYS = ("stdio", "events", "json")
LISTENS = re.compile(r"running on http://127\.0\.0\.1:(\d+)")


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """The addresses of two servers: one answers with events, one with JSON."""
    with ExitStack() as stack:
        processes = {
            way: stack.enter_context(
                subprocess.Popen([sys.executable, str(SERVER), "0", way], stderr=subprocess.PIPE, text=True)
            )
            for way in WAYS[1:]
        }
        found: dict[str, str] = {}
        for way, process in processes.items():
            stack.callback(process.kill)
            assert process.stderr is not None
            listening = next(line for line in process.stderr if LISTENS.search(line))
            found[way] = f"http://127.0.0.1:{LISTENS.findall(listening)[0]}/mcp"
        yield found


@asynccontextmanager
async def reach(way: str, urls: dict[str, str]) -> AsyncIterator[McpServer]:
    if way == "stdio":
        stdio = StdioMcpServer("mcp", [sys.executable, str(SERVER), "stdio"], {})
        yield stdio
        await stdio.close()
        return
    client = HttpClient()
    try:
        server = HttpMcpServer(urls[way], ToolService("mcp", client.send, DialOptions()))
        yield server
        await server.close()
    finally:
        await client.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_tool_of_the_official_server_is_called_and_what_goes_wrong_in_it_is_a_result(
    way: str, urls: dict[str, str]
) -> None:
    async def run() -> None:
        async with reach(way, urls) as server:
            found = await server.call_tool("search", {"query": "cats"}, 60.0)
            assert isinstance(found, McpToolResult)
            date = "2025-10-09"
            result = SearchResult("https://a.example/cats", "About cats", "All about it.", date)
            assert read_search(found, "mcp") == SearchFound((result,))
            both = await asyncio.gather(*(server.call_tool("search", {"query": word}, 60.0) for word in ("a", "b")))
            assert [word in str(answer) for word, answer in zip("ab", both, strict=True)] == [True, True]
            for name, query in (("search", "fail"), ("no_such_tool", "x")):
                answer = await server.call_tool(name, {"query": query}, 60.0)
                assert isinstance(answer, McpToolResult)
                failure = read_search(answer, "mcp")
                assert isinstance(failure, ToolFailure)
                assert failure.code is ToolErrorCode.UNAVAILABLE

    asyncio.run(run())


def test_prose_keeps_its_words_and_gives_the_addresses_in_it(urls: dict[str, str]) -> None:
    async def run() -> None:
        async with reach("events", urls) as server:
            answer = await server.call_tool("prose", {"query": "dogs"}, 60.0)
            assert isinstance(answer, McpToolResult)
            found = read_search(answer, "mcp")
            assert isinstance(found, SearchFound)
            first = SearchResult("https://a.example/1", "First about dogs")
            assert found.results == (first, SearchResult("https://b.example/2", "Second"))
            assert found.text is not None
            assert found.text.startswith("Title: First about dogs")
            page = await server.call_tool("read", {"url": "https://a.example/1"}, 60.0)
            assert isinstance(page, McpToolResult)
            text = "Title: The page\n\nContent of https://a.example/1"
            assert read_page(page, "https://a.example/1", "mcp", 1000) == WebPage(
                "https://a.example/1", "The page", text
            )

    asyncio.run(run())


def test_a_server_that_exits_is_started_again() -> None:
    async def run() -> None:
        once = "import sys; sys.stdin.readline(); sys.exit(3)"
        server = StdioMcpServer("mcp", [sys.executable, "-c", once], {})
        for _ in range(2):
            answer = await server.call_tool("search", {"query": "x"}, 60.0)
            assert answer == ToolFailure(ToolErrorCode.UNAVAILABLE, "mcp: the server has exited")
        await server.close()

    asyncio.run(run())


def test_a_command_that_is_not_there_is_a_failure() -> None:
    async def run() -> None:
        server = StdioMcpServer("mcp", ["no-such-command-here"], {})
        answer = await server.call_tool("search", {"query": "x"}, 60.0)
        assert isinstance(answer, ToolFailure)
        assert "no-such-command-here" in answer.message

    asyncio.run(run())


def test_a_silent_server_costs_no_more_than_the_time_allowed() -> None:
    async def run() -> None:
        client = HttpClient()
        async with RawServer((Request(), Hold())) as raw:
            server = HttpMcpServer(f"{raw.url}/mcp", ToolService("mcp", client.send, DialOptions()))
            assert isinstance(await server.call_tool("search", {"query": "x"}, 0.2), ToolFailure)
        await client.close()
        stdio = StdioMcpServer("mcp", [sys.executable, "-c", "import time; time.sleep(60)"], {})
        assert isinstance(await stdio.call_tool("search", {"query": "x"}, 0.5), ToolFailure)
        await stdio.close()

    asyncio.run(run())


def test_a_session_that_the_server_has_forgotten_is_opened_again(urls: dict[str, str]) -> None:
    async def run() -> None:
        async with reach("json", urls) as server:
            assert isinstance(server, HttpMcpServer)
            await server.call_tool("search", {"query": "a"}, 60.0)
            server._session = b"0" * 32
            assert isinstance(await server.call_tool("search", {"query": "b"}, 60.0), McpToolResult)

    asyncio.run(run())
