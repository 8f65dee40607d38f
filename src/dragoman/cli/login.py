"""A provider's name comes in; the person signs in with it, and the credential is kept for the gateway."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from dragoman.cli.faults import Trouble
from dragoman.cli.screen import remark
from dragoman.cli.settings import config_option, read_settings
from dragoman.cli.waiting import Waiting
from dragoman.config import (
    CodexProviderConfig,
    Config,
    CopilotProviderConfig,
    KiroProviderConfig,
    ProviderConfig,
    SecretSource,
)
from dragoman.config.providers import list_credentials

if TYPE_CHECKING:
    from dragoman.accounts.credential_files import Table
    from dragoman.accounts.service_client import ServiceClient
    from dragoman.net.client import SendRequest

P = TypeVar("P", bound=ProviderConfig)

NO_APP = (
    "providers.{name}.client_id is not set, and --client-id not given. GitHub signs people in to apps, and this "
    "gateway has none of its own: register one (Settings, Developer settings, OAuth apps, with the device flow "
    "enabled), or set COPILOT_GITHUB_TOKEN. An app of somebody else's is not borrowed"
)


file_option = click.option(
    "--file", "file", metavar="PATH", type=click.Path(path_type=Path), help="Keep it there: for a second account."
)


@click.group("login")
def command() -> None:
    """Sign in with a provider."""


@command.command("kiro")
@click.option("--start-url", metavar="URL", help="Your organisation's start page; a Builder ID needs none.")
@click.option("--region", metavar="R", help="The region of the sign-in (us-east-1).")
@click.option("--social", type=click.Choice(["google", "github"]), help="Sign in with Google or GitHub instead.")
@file_option
@config_option
def kiro(
    start_url: str | None, region: str | None, social: str | None, file: Path | None, config_file: str | None
) -> None:
    """Sign in with Kiro: a Builder ID, an organisation, Google or GitHub."""
    if social and start_url:
        raise click.UsageError("--social and --start-url exclude each other.")
    from dragoman.providers.kiro.provider import make_service_client

    stanza = _stanza(read_settings(config_file), KiroProviderConfig(name="kiro", kind="kiro"))
    place = region or stanza.region

    async def sign_in(send: "SendRequest") -> "Table":
        line = make_service_client(stanza, send, os.environ)
        table = (
            await _kiro_in_browser(line, stanza.auth_endpoint, place, social)
            if social
            else await _kiro_by_code(line, stanza.auth_endpoint, place, start_url)
        )
        return {**table, "region": place}

    _signed_in(stanza, sign_in, file or _own_file("kiro.json"))


@command.command("codex")
@click.option("--device", is_flag=True, help="Confirm a code on another device, instead of in a browser here.")
@file_option
@config_option
def codex(device: bool, file: Path | None, config_file: str | None) -> None:
    """Sign in with ChatGPT, for the models of your plan."""
    from dragoman.providers.codex.credential import ISSUER_URL
    from dragoman.providers.codex.login import App
    from dragoman.providers.codex.provider import make_service_client

    stanza = _stanza(read_settings(config_file), CodexProviderConfig(name="codex", kind="codex"))
    app = App(stanza.auth_endpoint or ISSUER_URL, stanza.client_id, stanza.originator)

    async def sign_in(send: "SendRequest") -> "Table":
        from dragoman.providers.codex.login import BrowserLogin, DeviceLogin

        line = make_service_client(stanza, send, os.environ)
        if not device:
            return await BrowserLogin(line, app).run(_show)
        login = DeviceLogin(line, app)
        prompt = await login.begin()
        click.echo(f"Open   {login.link}\nCode   {prompt.code}")
        with Waiting() as waiting:
            return await login.wait(prompt, waiting.tick)

    _signed_in(stanza, sign_in, file or _own_file("codex.json"))


@command.command("copilot")
@click.option("--client-id", metavar="ID", help="The app to sign in to; else providers.copilot.client_id.")
@file_option
@config_option
def copilot(client_id: str | None, file: Path | None, config_file: str | None) -> None:
    """Sign in with GitHub, for the models of Copilot."""
    from dragoman.providers.copilot.exchange import find_addresses
    from dragoman.providers.copilot.login import DeviceLogin
    from dragoman.providers.copilot.provider import make_service_client

    stanza = _stanza(read_settings(config_file), CopilotProviderConfig(name="copilot", kind="copilot"))
    app = client_id or stanza.client_id
    if app is None:
        raise Trouble(f"not signed in: {NO_APP.format(name=stanza.name)}.")

    async def sign_in(send: "SendRequest") -> "Table":
        login = DeviceLogin(make_service_client(stanza, send, os.environ), find_addresses(stanza).login, app)
        prompt = await login.begin()
        click.echo(f"Open   {prompt.verification_uri}\nCode   {prompt.user_code}")
        with Waiting() as waiting:
            return {stanza.domain: await login.wait(prompt, waiting.tick)}

    _signed_in(stanza, sign_in, file or _own_file("copilot.json"))


def _stanza(config: Config, usual: P) -> P:
    """The account to sign in for: its addresses and its proxy may be configured."""
    return next((stanza for stanza in config.providers.values() if isinstance(stanza, type(usual))), usual)


def _own_file(name: str) -> Path:
    from dragoman.config.discovery import data_directory

    return data_directory(os.environ, Path.home()) / name


def _signed_in(stanza: ProviderConfig, sign_in: Callable[["SendRequest"], Awaitable["Table"]], path: Path) -> None:
    """The person signs in; what that gave is stored, and told."""
    from dragoman.accounts.login import LoginFailed

    path = path.expanduser().absolute()
    try:
        asyncio.run(_stored(sign_in, path))
    except LoginFailed as failed:
        raise Trouble(f"not signed in: {failed}.") from failed
    click.echo(f"Signed in. The credential is in {path}, readable by you alone.")
    configured = list_credentials(stanza)
    if _reads(stanza, path):
        remark("A running gateway uses it from the next request on; `dragoman doctor` looks whether it works.")
    elif path == _own_file(path.name):
        remark(f"providers.{stanza.name} reads {configured[0]} instead: take `credentials` out to use this one.")
    else:
        remark(f'It is used once it is listed: credentials = ["{path}", …] in [providers.{stanza.name}].')


def _reads(stanza: ProviderConfig, path: Path) -> bool:
    """Whether the provider uses that file: one of its list, or our own where it has none."""
    from dragoman.accounts.credential_files import find_named_file

    configured = list_credentials(stanza)
    files = [find_named_file(source) if isinstance(source, SecretSource) else source for source in configured]
    return path in files or (not configured and path == _own_file(path.name))


async def _stored(sign_in: Callable[["SendRequest"], Awaitable["Table"]], path: Path) -> None:
    from dragoman.accounts.login import save_login
    from dragoman.net.client import HttpClient

    http = HttpClient()
    try:
        table = await sign_in(http.send)
    finally:
        await http.close()
    save_login(path, table)


async def _kiro_by_code(line: "ServiceClient", root: str | None, region: str, start_url: str | None) -> "Table":
    from dragoman.providers.kiro.credential import BUILDER_ID_START
    from dragoman.providers.kiro.hosts import oidc_host
    from dragoman.providers.kiro.login import DeviceLogin

    login = DeviceLogin(line, root or oidc_host(region), start_url or BUILDER_ID_START)
    client, prompt = await login.begin()
    click.echo(f"Open   {prompt.link}\nCode   {prompt.user_code}")
    with Waiting() as waiting:
        return await login.wait(client, prompt, waiting.tick)


async def _kiro_in_browser(line: "ServiceClient", root: str | None, region: str, provider: str) -> "Table":
    from dragoman.providers.kiro.hosts import desktop_host
    from dragoman.providers.kiro.login import SocialLogin

    return await SocialLogin(line, root or desktop_host(region), provider).run(_show)


def _show(link: str) -> None:
    click.echo(f"Open   {link}")
