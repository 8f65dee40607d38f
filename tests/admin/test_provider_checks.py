"""One provider is checked at a real server, and the files with its secrets on a real disk."""

import asyncio
from pathlib import Path

import pytest

from dragoman.admin.provider_checks import check_provider, find_readable_secrets
from dragoman.config import ProviderConfig, load
from dragoman.net.client import HttpClient
from dragoman.providers.account_state import BROKEN, OK, WARNING, Finding, State
from fakes.raw import RawServer, Request

DATE = b"Sun, 15 Nov 2026 12:00:00 GMT"


def provider_in(directory: Path, settings: str) -> ProviderConfig:
    (directory / "dragoman.toml").write_text(f"[providers.up]\n{settings}")
    return load(None, {}, directory, directory).providers["up"]


def compatible(directory: Path, port: int) -> ProviderConfig:
    endpoint = f"http://127.0.0.1:{port}/v1"
    return provider_in(directory, f'kind = "openai-compatible"\nendpoint = "{endpoint}"\napi_key = "sk-fake-012345"\n')


async def check(provider: ProviderConfig, dates: list[bytes | None], label: str = "") -> list[Finding]:
    http = HttpClient()
    try:
        return await check_provider(provider, label, http, dates.append)
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
            return await check(compatible(tmp_path, server.port), dates, "1 of 2")

    [finding] = asyncio.run(run())
    assert (finding.what, finding.state) == ("provider up, credential 1 of 2", state)
    assert found in finding.found
    assert (finding.to_do == "") == (state == OK)
    assert dates == [DATE]


def test_a_server_that_is_down_is_a_problem_with_its_address(tmp_path: Path) -> None:
    [finding] = asyncio.run(check(compatible(tmp_path, 9), []))
    assert (finding.state, "http://127.0.0.1:9/v1" in finding.to_do) == (BROKEN, True)


def test_a_provider_without_a_server_is_ready_and_one_without_its_secret_is_not(tmp_path: Path) -> None:
    [echo] = asyncio.run(check(provider_in(tmp_path, 'kind = "echo"\n'), []))
    assert (echo.state, echo.found) == (OK, "built in")
    [keyless] = asyncio.run(check(provider_in(tmp_path, 'kind = "openai"\napi_key = "env:FAKE_ABSENT_KEY"\n'), []))
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
