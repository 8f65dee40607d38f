"""Names come in; client keys are made, listed and revoked in the store, and a running gateway follows at once."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

import click

from dragoman.accounts.keys import CreatedKey, Keyring, KeyRow, NameTaken, UnknownKey
from dragoman.admin.clients import KEY_VARIABLE
from dragoman.cli.faults import Trouble
from dragoman.cli.gateway import accepts, find_running
from dragoman.cli.screen import remark, show_json, show_table
from dragoman.cli.settings import client_key_variable, config_option, json_option, read_settings
from dragoman.config import Config, Secret
from dragoman.store import open_store

T = TypeVar("T")

FOLLOW_S = 5.0  # how long a running gateway is given to take a new key
REVOKED_S = 0.8  # more than the pause between two looks of a gateway at the store


@click.group("keys")
def command() -> None:
    """Create, list and revoke client keys."""


@command.command("create")
@click.argument("name", required=False)
@config_option
@json_option
def create(name: str | None, config_file: str | None, as_json: bool) -> None:
    """Make a client key. It is shown once and stored nowhere."""
    config = read_settings(config_file)
    try:
        created = asyncio.run(_with_keyring(config, lambda keyring: _create(keyring, name)))
    except NameTaken as taken:
        raise Trouble(f'there is a key named "{taken}" already: choose another name, or revoke it first.') from taken
    except ValueError as error:
        raise Trouble(str(error)) from error
    secret = created.secret.reveal()
    in_force = asyncio.run(_taken_over(config, secret))
    if as_json:
        show_json(_told(created.row) | {"key": secret})
        return
    remark(f'Key "{created.row.name}" ({created.row.id}), shown only this once:')
    click.echo(f"export {KEY_VARIABLE}={secret}")
    if in_force is not None:
        remark(f"The gateway at {in_force} takes it from now on.")


@command.command("list")
@config_option
@json_option
def list_keys(config_file: str | None, as_json: bool) -> None:
    """List the keys, the revoked ones too."""
    config = read_settings(config_file)
    rows = asyncio.run(_with_keyring(config, lambda keyring: keyring.list()))
    if as_json:
        show_json([_told(row) for row in rows])
        return
    if rows:
        show_table(("ID", "NAME", "KEY", "CREATED", "LAST USED", "STATE"), [_row(row) for row in rows])
    else:
        remark("No keys yet: `dragoman keys create NAME` makes one, and so does the first `dragoman serve`.")
    if config.client_key is not None:
        remark(asyncio.run(_describe_environment_key(config, config.client_key)))


@command.command("revoke")
@click.argument("name_or_id")
@config_option
@json_option
def revoke(name_or_id: str, config_file: str | None, as_json: bool) -> None:
    """Revoke a key, by its name or id."""
    config = read_settings(config_file)
    try:
        row = asyncio.run(_with_keyring(config, lambda keyring: keyring.revoke(name_or_id)))
    except UnknownKey as unknown:
        raise Trouble(f'no live key is called "{name_or_id}": `dragoman keys list` names them.') from unknown
    if asyncio.run(find_running(config)) is not None:
        time.sleep(REVOKED_S)
    if as_json:
        show_json(_told(row))
        return
    click.echo(f'Key "{row.name}" ({row.id}) is revoked.')
    if config.client_key is not None and asyncio.run(_stored(config, config.client_key)) == row:
        remark(f"${client_key_variable()} in this shell holds this key: unset it, or set another.")


async def _stored(config: Config, secret: Secret) -> KeyRow | None:
    return await _with_keyring(config, lambda keyring: keyring.find(secret))


async def _describe_environment_key(config: Config, secret: Secret) -> str:
    """Say what is known of the key in this shell's environment, which need not be the gateway's own."""
    row, root, name = await _stored(config, secret), await find_running(config), f"${client_key_variable()}"
    which = f"The key in {name} is not one of these" if row is None else f'{name} holds the key "{row.name}"'
    if root is not None:
        accepted = "accepts" if await accepts(root, secret.reveal()) else "rejects"
        return f"{which}; the gateway at {root} {accepted} it."
    if row is not None and row.revoked_at is not None:
        return f"{which}, which is revoked: unset it, or set another."
    if row is not None:
        return f"{which}."
    return f"{which}. A gateway that is started with it accepts it; none is running here now."


async def _with_keyring(config: Config, work: Callable[[Keyring], Awaitable[T]]) -> T:
    store = await open_store(config.store.url)
    try:
        return await work(Keyring(store))
    finally:
        await store.close()


async def _create(keyring: Keyring, name: str | None) -> CreatedKey:
    if name is not None:
        return await keyring.create(name)
    taken = {row.name for row in await keyring.list()}
    number = len(taken) + 1
    while f"key-{number}" in taken:
        number += 1
    return await keyring.create(f"key-{number}")


async def _taken_over(config: Config, secret: str) -> str | None:
    """Waits until the running gateway takes the key; its address, or None if there is none or it has another store."""
    root = await find_running(config)
    patience = time.monotonic() + FOLLOW_S
    while root is not None and not await accepts(root, secret):
        if time.monotonic() > patience:
            remark(f"The gateway at {root} does not take it: it uses another store.")
            return None
        await asyncio.sleep(0.1)
    return root


def _told(row: KeyRow) -> dict[str, object]:
    return {
        "id": row.id,
        "name": row.name,
        "prefix": row.prefix,
        "last4": row.last4,
        "created_at": row.created_at,
        "last_used_at": row.last_used_at,
        "revoked_at": row.revoked_at,
    }


def _row(row: KeyRow) -> tuple[str, ...]:
    state = "live" if row.revoked_at is None else f"revoked {_moment(row.revoked_at)}"
    return (row.id, row.name, f"{row.prefix}…{row.last4}", _moment(row.created_at), _moment(row.last_used_at), state)


def _moment(seconds: int | None) -> str:
    return "-" if seconds is None else datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
