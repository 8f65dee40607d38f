"""`dragoman login`: sign in with a provider."""

import asyncio
import sys
from pathlib import Path

import click

from dragoman.cli.screen import print_note
from dragoman.cli.settings import config_option, read_settings
from dragoman.config.secret import STORE
from dragoman.operate.sign_in import (
    CredentialUse,
    KiroOptions,
    Prompt,
    SignedIn,
    sign_in_codex,
    sign_in_copilot,
    sign_in_kiro,
)

CLEAR_LINE = "\r\x1b[K"

file_option = click.option(
    "--file",
    "file",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Store the credential in this file: for a second account.",
)


@click.group("login")
def command() -> None:
    """Sign in to a provider."""


@command.command("kiro", short_help="Sign in to Kiro.")
@click.option("--start-url", metavar="URL", help="The start page of your organisation; not needed for a Builder ID.")
@click.option("--region", metavar="R", help="The region to sign in to. [default: us-east-1]")
@click.option("--social", type=click.Choice(["google", "github"]), help="Sign in with Google or GitHub instead.")
@file_option
@config_option
def kiro(
    start_url: str | None, region: str | None, social: str | None, file: Path | None, config_file: str | None
) -> None:
    """Sign in to Kiro, with a Builder ID, an organisation, Google or GitHub."""
    if social and start_url:
        raise click.UsageError("--social and --start-url cannot be used together.")
    options = KiroOptions(start_url, region, social)
    with Terminal() as terminal:
        signed_in = asyncio.run(sign_in_kiro(read_settings(config_file), options, file, terminal))
    _show(signed_in)


@command.command("codex")
@click.option("--device", is_flag=True, help="Enter a code on another device instead of using a browser here.")
@file_option
@config_option
def codex(device: bool, file: Path | None, config_file: str | None) -> None:
    """Sign in to ChatGPT, to use the models of your plan."""
    with Terminal() as terminal:
        signed_in = asyncio.run(sign_in_codex(read_settings(config_file), device=device, file=file, user=terminal))
    _show(signed_in)


@command.command("copilot")
@click.option("--client-id", metavar="ID", help="The OAuth app to sign in to. [default: providers.copilot.client_id]")
@file_option
@config_option
def copilot(client_id: str | None, file: Path | None, config_file: str | None) -> None:
    """Sign in to GitHub, to use the models of Copilot."""
    with Terminal() as terminal:
        signed_in = asyncio.run(sign_in_copilot(read_settings(config_file), client_id, file, terminal))
    _show(signed_in)


class Terminal:
    """Shows a prompt and counts down while the user confirms it; without a terminal, one line says that we wait."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._has_shown = False

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal and self._has_shown:
            click.echo(CLEAR_LINE, nl=False, err=True)

    def show_prompt(self, prompt: Prompt) -> None:
        click.echo(f"Open   {prompt.link}")
        if prompt.code:
            click.echo(f"Code   {prompt.code}")

    def show_remaining(self, seconds: float) -> None:
        if self._is_terminal:
            text = f"Waiting for you to confirm it in the browser, {seconds:.0f} s left "
            click.echo(f"{CLEAR_LINE}{text}", nl=False, err=True)
        elif not self._has_shown:
            click.echo("Waiting for your confirmation in the browser.", err=True)
        self._has_shown = True


def _show(signed_in: SignedIn) -> None:
    section = f"providers.{signed_in.provider}"
    click.echo(f"Signed in. The credential is in {signed_in.file}, readable by you alone.")
    match signed_in.use:
        case CredentialUse.USED:
            print_note("A running gateway uses it from the next request on. `dragoman doctor` checks whether it works.")
        case CredentialUse.OVERRIDDEN if signed_in.overridden_by.startswith(STORE):
            name = signed_in.overridden_by.removeprefix(STORE)
            print_note(f"{section} uses the one in the store: dragoman accounts push {name} {signed_in.file}")
        case CredentialUse.OVERRIDDEN:
            print_note(f"{section} uses {signed_in.overridden_by} instead: remove `credentials` there to use this one.")
        case CredentialUse.NOT_LISTED:
            print_note(f'It is not used yet. List it in [{section}]: credentials = ["{signed_in.file}", …]')
