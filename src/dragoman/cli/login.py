"""A provider's name comes in; the person signs in with it, and the credential is kept for the gateway."""

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.cli.faults import Trouble
from dragoman.cli.screen import remark
from dragoman.cli.settings import config_option, read_settings
from dragoman.config import Config, KiroProviderConfig

if TYPE_CHECKING:
    from dragoman.accounts.asking import Line
    from dragoman.accounts.json_table import Table


@click.group("login")
def command() -> None:
    """Sign in with a provider."""


@command.command("kiro")
@click.option("--start-url", metavar="URL", help="Your organisation's start page; a Builder ID needs none.")
@click.option("--region", metavar="R", help="The region of the sign-in (us-east-1).")
@click.option("--social", type=click.Choice(["google", "github"]), help="Sign in with Google or GitHub instead.")
@config_option
def kiro(start_url: str | None, region: str | None, social: str | None, config_file: str | None) -> None:
    """Sign in with Kiro: a Builder ID, an organisation, Google or GitHub."""
    if social and start_url:
        raise click.UsageError("--social and --start-url exclude each other.")
    from dragoman.accounts.signing_in import LoginFailed

    stanza = _stanza(read_settings(config_file))
    try:
        path = asyncio.run(_sign_in(stanza, start_url, region, social))
    except LoginFailed as failed:
        raise Trouble(f"not signed in: {failed}.") from failed
    click.echo(f"Signed in. The credential is in {path}, readable by you alone.")
    if stanza.credentials is not None:
        remark(f"providers.{stanza.name} names other `credentials`: take that line out to use these.")
    else:
        remark("A running gateway uses it from the next request on; `dragoman doctor` looks whether it works.")


def _stanza(config: Config) -> KiroProviderConfig:
    """The account to sign in for: its addresses and its proxy may be configured."""
    found = (stanza for stanza in config.providers.values() if isinstance(stanza, KiroProviderConfig))
    return next(found, KiroProviderConfig(name="kiro", kind="kiro"))


async def _sign_in(stanza: KiroProviderConfig, start_url: str | None, region: str | None, social: str | None) -> Path:
    from dragoman.accounts.signing_in import store
    from dragoman.config.installed import data_directory
    from dragoman.net.client import HttpClient
    from dragoman.providers.kiro.provider import line_of

    http = HttpClient()
    try:
        line = line_of(stanza, http.send, os.environ)
        place = region or stanza.region
        table = (
            await _in_browser(line, stanza.auth_endpoint, place, social)
            if social
            else await _by_code(line, stanza.auth_endpoint, place, start_url)
        )
    finally:
        await http.close()
    path = data_directory(os.environ, Path.home()) / "kiro.json"
    store(path, {**table, "region": place})
    return path


async def _by_code(line: "Line", root: str | None, region: str, start_url: str | None) -> "Table":
    from dragoman.providers.kiro.credential import BUILDER_ID_START
    from dragoman.providers.kiro.device import DeviceLogin
    from dragoman.providers.kiro.hosts import oidc_host

    login = DeviceLogin(line, root or oidc_host(region), start_url or BUILDER_ID_START)
    client, prompt = await login.begin()
    click.echo(f"Open   {prompt.link}\nCode   {prompt.user_code}")
    with _Waiting() as waiting:
        return await login.wait(client, prompt, waiting.tick)


async def _in_browser(line: "Line", root: str | None, region: str, provider: str) -> "Table":
    from dragoman.providers.kiro.hosts import desktop_host
    from dragoman.providers.kiro.social import SocialLogin

    login = SocialLogin(line, root or desktop_host(region), provider)
    return await login.run(lambda link: click.echo(f"Open   {link}"))


class _Waiting:
    """Says that it waits: once where nobody watches, counting down on a terminal."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._said = False

    def __enter__(self) -> "_Waiting":
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and self._said:
            click.echo("\r\x1b[K", nl=False, err=True)

    def tick(self, left_s: float) -> None:
        if self._live:
            click.echo(
                f"\r\x1b[KWaiting for you to confirm it in the browser, {left_s:.0f} s left ", nl=False, err=True
            )
        elif not self._said:
            click.echo("Waiting for your confirmation in the browser.", err=True)
        self._said = True
