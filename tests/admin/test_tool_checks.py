"""The checks of search services: each is tried once, and failures name the next step without the key."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from dragoman.admin.tool_checks import check_account_search, check_tools
from dragoman.config import Config, load
from dragoman.net.client import HttpClient
from dragoman.providers.account_state import BROKEN, OK, WARNING, Finding
from fakes.upstream import Answer, FakeUpstream

KEY = "sk-canary-of-the-search"
SERVER = Path(__file__).parent.parent / "fakes" / "mcp_server.py"


def config_in(directory: Path, toml: str) -> Config:
    (directory / "dragoman.toml").write_text(toml + '[providers.echo]\nkind = "echo"\n')
    return load(None, {}, directory, directory)


def check(config: Config, **environ: str) -> list[Finding]:
    async def run() -> list[Finding]:
        http = HttpClient()
        try:
            own = await check_account_search(config.providers["echo"], config.tools.web_search, environ, http)
            return [*await check_tools(config, environ, http), *own]
        finally:
            await http.close()

    return asyncio.run(run())


def searxng(url: str) -> str:
    return f'[tools.web_search]\nbackend = "searxng"\nendpoint = "{url}"\napi_key = "{KEY}"\n'


def mcp(tool: str) -> str:
    words = json.dumps([sys.executable, str(SERVER), "stdio"])
    return f'[tools.web_search]\nbackend = "mcp"\ncommand = {words}\ntool = "{tool}"\n'


def test_without_tools_there_is_nothing_to_check(tmp_path: Path) -> None:
    assert check(config_in(tmp_path, "")) == []


def test_a_service_that_finds_something_is_ok(tmp_path: Path) -> None:
    page = Answer(b'{"results":[{"url":"https://a.example/","title":"One"}]}', content_type="application/json")
    with FakeUpstream(intercept=lambda request: page) as fake:
        [finding] = check(config_in(tmp_path, searxng(fake.url)))
    assert (finding.what, finding.state) == ("web search, searxng", OK)
    assert [request.headers["authorization"] for request in fake.requests] == [f"Bearer {KEY}"]


@pytest.mark.parametrize(
    ("answer", "state", "text"),
    [
        (Answer(b"{}", 403, "application/json"), BROKEN, "search.formats"),
        (Answer(f"key {KEY}".encode(), 200, "application/json"), BROKEN, "cannot be read"),
        (Answer(b'{"results":[]}', 200, "application/json"), WARNING, "found nothing"),
    ],
    ids=["forbidden", "not JSON", "empty"],
)
def test_a_service_that_fails_is_named_with_the_next_step(
    tmp_path: Path, answer: Answer, state: str, text: str
) -> None:
    with FakeUpstream(intercept=lambda request: answer) as fake:
        [finding] = check(config_in(tmp_path, searxng(fake.url)))
    assert finding.state == state
    assert text in finding.found
    assert finding.to_do
    assert KEY not in str(finding)


def test_a_key_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    toml = '[tools.web_search]\nbackend = "brave"\napi_key = "env:NO_SUCH_KEY"\n'
    [finding] = check(config_in(tmp_path, toml))
    assert (finding.state, "NO_SUCH_KEY" in finding.found) == (BROKEN, True)


def test_an_mcp_server_must_have_the_tool(tmp_path: Path) -> None:
    [finding] = check(config_in(tmp_path, mcp("search")))
    assert (finding.what, finding.state) == ("web search, mcp", OK)
    [finding] = check(config_in(tmp_path, mcp("find")))
    assert finding.state == BROKEN
    assert "'search'" in finding.found
    assert finding.to_do == "set tools.web_search.tool"


def test_an_mcp_server_that_does_not_start_is_named(tmp_path: Path) -> None:
    [finding] = check(config_in(tmp_path, '[tools.web_fetch]\nbackend = "mcp"\ncommand = ["no-such-program"]\n'))
    assert (finding.what, finding.state) == ("web fetch, mcp", BROKEN)
    assert "tools.web_fetch.command" in finding.to_do
