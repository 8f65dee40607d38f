"""`dragoman keys`: create, list and revoke client keys."""

import asyncio
import os
from datetime import datetime

import click
import msgspec

from dragoman.accounts.keys import CreatedKey, KeyRow
from dragoman.admin.clients import KEY_VARIABLE
from dragoman.admin.configuration import client_key_variable
from dragoman.admin.keys import (
    KeyAcceptance,
    check_with_gateway,
    create_key,
    find_key,
    open_keyring,
    revoke_key,
    wait_until_accepted,
    wait_until_rejected,
)
from dragoman.cli.completing import complete_keys
from dragoman.cli.screen import remark, show_json, show_table
from dragoman.cli.settings import config_option, json_option, read_settings
from dragoman.config import Config, Secret

HEADINGS = ("ID", "NAME", "KEY", "CREATED", "LAST USED", "STATE")


@click.group("keys")
def command() -> None:
    """Create, list and revoke client keys."""


@command.command("create")
@click.argument("name", required=False)
@config_option
@json_option
def create(name: str | None, config_file: str | None, as_json: bool) -> None:
    """Create a client key. It is shown only once: the store keeps only a digest of it."""
    created, acceptance = asyncio.run(_create(read_settings(config_file), name))
    secret = created.secret.reveal()
    if acceptance.root is not None and not acceptance.is_accepted:
        remark(f"The gateway at {acceptance.root} does not accept it: it uses another store.")
    if as_json:
        show_json(_fields(created.row) | {"key": secret})
        return
    remark(f'Key "{created.row.name}" ({created.row.id}), shown only this once:')
    click.echo(f"export {KEY_VARIABLE}={secret}")
    if acceptance.is_accepted:
        remark(f"The gateway at {acceptance.root} accepts it from now on.")


@command.command("list")
@config_option
@json_option
def list_keys(config_file: str | None, as_json: bool) -> None:
    """List all keys, including the revoked ones."""
    config = read_settings(config_file)
    rows = asyncio.run(_list(config))
    if as_json:
        show_json([_fields(row) for row in rows])
        return
    if rows:
        show_table(HEADINGS, [_format_row(row) for row in rows])
    else:
        remark("There are no keys yet. `dragoman keys create NAME` makes one; so does the first `dragoman serve`.")
    if config.client_key is not None:
        remark(asyncio.run(_describe_environment_key(config, config.client_key)))


@command.command("revoke")
@click.argument("name_or_id", shell_complete=complete_keys)
@config_option
@json_option
def revoke(name_or_id: str, config_file: str | None, as_json: bool) -> None:
    """Revoke a key, by its name or id."""
    config = read_settings(config_file)
    row, is_environment_key = asyncio.run(_revoke(config, name_or_id))
    if as_json:
        show_json(_fields(row))
        return
    click.echo(f'Key "{row.name}" ({row.id}) is revoked.')
    if is_environment_key:
        remark(f"${client_key_variable(os.environ)} in this shell holds this key: unset it, or set another.")


async def _create(config: Config, name: str | None) -> tuple[CreatedKey, KeyAcceptance]:
    async with open_keyring(config) as keyring:
        created = await create_key(keyring, name)
    return created, await wait_until_accepted(config, created.secret)


async def _list(config: Config) -> tuple[KeyRow, ...]:
    async with open_keyring(config) as keyring:
        return await keyring.list()


async def _revoke(config: Config, name_or_id: str) -> tuple[KeyRow, bool]:
    async with open_keyring(config) as keyring:
        row = await revoke_key(keyring, name_or_id)
    await wait_until_rejected(config)
    return row, config.client_key is not None and await find_key(config, config.client_key) == row


async def _describe_environment_key(config: Config, secret: Secret) -> str:
    """Describe the key in this shell's environment, which need not be the one that the gateway was started with."""
    row, acceptance = await find_key(config, secret), await check_with_gateway(config, secret)
    name = f"${client_key_variable(os.environ)}"
    which = f"The key in {name} is not one of these" if row is None else f'{name} holds the key "{row.name}"'
    if acceptance.root is not None:
        return f"{which}; the gateway at {acceptance.root} {'accepts' if acceptance.is_accepted else 'rejects'} it."
    if row is not None and row.revoked_at is not None:
        return f"{which}, which is revoked: unset it, or set another."
    if row is not None:
        return f"{which}."
    return f"{which}. A gateway that is started with it accepts it; none is running here now."


def _fields(row: KeyRow) -> dict[str, object]:
    return msgspec.structs.asdict(row)


def _format_row(row: KeyRow) -> tuple[str, ...]:
    state = "live" if row.revoked_at is None else f"revoked {_format_time(row.revoked_at)}"
    times = _format_time(row.created_at), _format_time(row.last_used_at)
    return (row.id, row.name, f"{row.prefix}…{row.last4}", *times, state)


def _format_time(seconds: int | None) -> str:
    return "-" if seconds is None else datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
