"""Providers and search services are checked at real servers, and the files with secrets on a real disk."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.settings import Config, ProviderConfig
from dragoman.net.client import HttpClient
from dragoman.operate.diagnosis.checks import (
    check_account_search,
    check_provider,
    check_tools,
    find_readable_secrets,
)
from dragoman.upstreams import Surroundings
from dragoman.upstreams.account_state import BROKEN, OK, WARNING, Finding, State
from fakes.raw import RawServer, Request
from fakes.upstream import Answer, FakeUpstream

DATE = b"Sun, 15 Nov 2026 12:00:00 GMT"
KEY = "sk-canary-of-the-search"
SERVER = Path(__file__).parent.parent.parent / "fakes" / "mcp_stdio.py"


def provider_in(directory: Path, settings: str) -> ProviderConfig:
    (directory / "dragoman.toml").write_text(f"[providers.up]\n{settings}")
    return ConfigSource(None, {}, directory, directory).read().providers["up"]


def compatible(directory: Path, port: int) -> ProviderConfig:
    endpoint = f"http://127.0.0.1:{port}/v1"
    return provider_in(directory, f'kind = "openai-compatible"\nendpoint = "{endpoint}"\napi_key = "sk-fake-012345"\n')


async def check_one(provider: ProviderConfig, dates: list[bytes | None], label: str = "") -> list[Finding]:
    http = HttpClient()
    try:
        return await check_provider(provider, label, Surroundings(http.send, os.environ), dates.append)
    finally:
        await http.close()


@pytest.mark.parametrize(
    ("status", "state", "found"),
    [
        (200, OK, "accepts the credential"),
        (401, BROKEN, "rejects the credential (HTTP 401)"),
        (404, WARNING, "lists no models"),
        (500, WARNING, "HTTP 500"),
    ],
)
def test_the_status_of_the_model_list_says_how_the_provider_is(
    tmp_path: Path, status: int, state: State, found: str
) -> None:
    dates: list[bytes | None] = []

    async def run() -> list[Finding]:
        response = b"HTTP/1.1 %d Fake\r\ncontent-length: 0\r\ndate: %b\r\n\r\n" % (status, DATE)
        async with RawServer((Request(), response)) as server:
            return await check_one(compatible(tmp_path, server.port), dates, "1 of 2")

    [finding] = asyncio.run(run())
    assert (finding.what, finding.state) == ("provider up, credential 1 of 2", state)
    assert found in finding.found
    assert (finding.to_do == "") == (state == OK)
    assert dates == [DATE]


def test_a_server_that_is_down_is_a_problem_with_its_address(tmp_path: Path) -> None:
    [finding] = asyncio.run(check_one(compatible(tmp_path, 9), []))
    assert (finding.state, "http://127.0.0.1:9/v1" in finding.to_do) == (BROKEN, True)


def test_a_provider_without_a_server_is_ready_and_one_without_its_secret_is_not(tmp_path: Path) -> None:
    [echo] = asyncio.run(check_one(provider_in(tmp_path, 'kind = "echo"\n'), []))
    assert (echo.state, echo.found) == (OK, "built in")
    [keyless] = asyncio.run(check_one(provider_in(tmp_path, 'kind = "openai"\napi_key = "env:FAKE_ABSENT_KEY"\n'), []))
    assert (keyless.state, "FAKE_ABSENT_KEY" in keyless.found) == (BROKEN, True)


def test_a_secret_that_others_can_read_is_reported_with_the_command_to_run(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("sk-fake-0123456789")
    provider = provider_in(tmp_path, f'kind = "openai"\napi_key = "file:{file}"\n')
    file.chmod(0o644)
    [finding] = find_readable_secrets(provider, {})
    assert (finding.state, finding.to_do) == (WARNING, f"chmod 600 {file}")
    file.chmod(0o600)
    assert list(find_readable_secrets(provider, {})) == []


def config_in(directory: Path, toml: str) -> Config:
    (directory / "dragoman.toml").write_text(toml + '[providers.echo]\nkind = "echo"\n')
    return ConfigSource(None, {}, directory, directory).read()


def check_services(config: Config, **environ: str) -> list[Finding]:
    async def run() -> list[Finding]:
        http = HttpClient()
        try:
            own = await check_account_search(
                config.providers["echo"], config.tools.web_search, Surroundings(http.send, environ)
            )
            return [*await check_tools(config, environ, http), *own]
        finally:
            await http.close()

    return asyncio.run(run())


def searxng(url: str) -> str:
    return f'[tools.web_search]\nbackend = "searxng"\nendpoint = "{url}"\napi_key = "{KEY}"\n'


def mcp(tool: str) -> str:
    words = json.dumps([sys.executable, str(SERVER)])
    return f'[tools.web_search]\nbackend = "mcp"\ncommand = {words}\ntool = "{tool}"\n'


def test_without_tools_there_is_nothing_to_check(tmp_path: Path) -> None:
    assert check_services(config_in(tmp_path, "")) == []


def test_a_service_that_finds_something_is_ok(tmp_path: Path) -> None:
    page = Answer(b'{"results":[{"url":"https://a.example/","title":"One"}]}', content_type="application/json")
    with FakeUpstream(intercept=lambda request: page) as fake:
        [finding] = check_services(config_in(tmp_path, searxng(fake.url)))
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
        [finding] = check_services(config_in(tmp_path, searxng(fake.url)))
    assert finding.state == state
    assert text in finding.found
    assert finding.to_do
    assert KEY not in str(finding)


def test_a_key_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    toml = '[tools.web_search]\nbackend = "brave"\napi_key = "env:NO_SUCH_KEY"\n'
    [finding] = check_services(config_in(tmp_path, toml))
    assert (finding.state, "NO_SUCH_KEY" in finding.found) == (BROKEN, True)


def test_an_mcp_server_must_have_the_tool(tmp_path: Path) -> None:
    [finding] = check_services(config_in(tmp_path, mcp("search")))
    assert (finding.what, finding.state) == ("web search, mcp", OK)
    [finding] = check_services(config_in(tmp_path, mcp("find")))
    assert finding.state == BROKEN
    assert "'search'" in finding.found
    assert finding.to_do == "set tools.web_search.tool"


def test_an_mcp_server_that_does_not_start_is_named(tmp_path: Path) -> None:
    [finding] = check_services(
        config_in(tmp_path, '[tools.web_fetch]\nbackend = "mcp"\ncommand = ["no-such-program"]\n')
    )
    assert (finding.what, finding.state) == ("web fetch, mcp", BROKEN)
    assert "tools.web_fetch.command" in finding.to_do
