"""`dragoman accounts`: the credentials of upstream accounts that all gateways on the store share."""

import asyncio
import os
import sys
from pathlib import Path

import click

from dragoman.cli.screen import print_note, show_json, show_table
from dragoman.cli.settings import read_settings, store_options
from dragoman.config.providers import STORED_NAME, WRONG_STORED_NAME
from dragoman.config.secret import STORE
from dragoman.operate.accounts import (
    PushedAccount,
    Resealed,
    SharedAccounts,
    StoredAccount,
)
from dragoman.store.sealing import BadSecretKey, read_secret_variable

HEADINGS = ("NAME", "KIND", "VERSION", "CHANGED", "USED BY", "STATE")
RESEAL_HEADINGS = ("NAME", "RESULT")


def parse_name(context: click.Context, parameter: click.Parameter, name: str) -> str:
    if not STORED_NAME.fullmatch(name):
        raise click.BadParameter(WRONG_STORED_NAME)
    return name


name_argument = click.argument("name", callback=parse_name)
file_argument = click.argument("file", type=click.Path(path_type=Path))


@click.group("accounts")
def command() -> None:
    """Share credentials of upstream accounts between gateways, sealed in the store."""
    try:
        read_secret_variable(os.environ)
    except BadSecretKey as wrong:
        raise click.UsageError(str(wrong)) from None


@command.command("push")
@name_argument
@file_argument
@store_options
def push(name: str, file: Path, config_file: str | None, as_json: bool) -> None:
    """Store the credential in FILE as NAME, and replace the one that is there."""
    pushed = asyncio.run(SharedAccounts(read_settings(config_file), os.environ).push(name, file.expanduser()))
    if as_json:
        show_json(pushed.account)
    else:
        _show_pushed(pushed)


@command.command("pull")
@name_argument
@file_argument
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@store_options
def pull(name: str, file: Path, force: bool, config_file: str | None, as_json: bool) -> None:
    """Write the credential NAME to FILE, in its vendor's format, readable only by you."""
    config = read_settings(config_file)
    account = asyncio.run(SharedAccounts(config, os.environ).pull(name, file.expanduser(), replaces=force))
    if as_json:
        show_json(account)
        return
    click.echo(f'Credential "{name}" ({account.kind}), version {account.version}, is in {file}, readable only by you.')
    if account.providers:
        print_note("Gateways keep renewing the one in the store: the copy in the file is valid until the next renewal.")


@command.command("reseal")
@store_options
def reseal(config_file: str | None, as_json: bool) -> None:
    """Seal all credentials with the first key of $DRAGOMAN_SECRET_KEY; no sign-in is needed."""
    results = asyncio.run(SharedAccounts(read_settings(config_file), os.environ).reseal())
    _show_resealed(results, as_json)
    sys.exit(1 if any(result.has_failed for result in results) else 0)


@command.command("list")
@store_options
def list_all(config_file: str | None, as_json: bool) -> None:
    """List the credentials in the store, without their content."""
    accounts = asyncio.run(SharedAccounts(read_settings(config_file), os.environ).list())
    if as_json:
        show_json(accounts)
    elif accounts:
        show_table(HEADINGS, [_format_row(account) for account in accounts], HEADINGS[2:3])
    else:
        print_note("There are no credentials in the store. `dragoman accounts push NAME FILE` puts one there.")


def _show_pushed(pushed: PushedAccount) -> None:
    account = pushed.account
    click.echo(f'Credential "{account.name}" ({account.kind}) is in the store, version {account.version}.')
    if pushed.key_file is not None:
        print_note(f"It is sealed with the key in {pushed.key_file}: without that file it cannot be decrypted.")
    if account.providers:
        print_note("Running gateways use it from their next renewal on.")
    else:
        print_note(f'No provider uses it yet. Set credentials = "{STORE}{account.name}" in its section.')


def _show_resealed(results: list[Resealed], as_json: bool) -> None:
    if as_json:
        show_json(results)
    elif results:
        show_table(RESEAL_HEADINGS, [(one.name, one.result) for one in results])
    else:
        print_note("There are no credentials in the store.")


def _format_row(account: StoredAccount) -> tuple[str, ...]:
    users = ", ".join(account.providers) or "-"
    return account.name, account.kind, str(account.version), account.changed, users, account.problem or "opens"
