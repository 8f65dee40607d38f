"""`dragoman keys`: create, list, rotate and revoke client keys and admin tokens."""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime

import click
import msgspec

from dragoman.cli.completion import complete_keys
from dragoman.cli.screen import print_note, show_json, show_table
from dragoman.cli.settings import config_option, json_option, read_settings, url_option
from dragoman.config.secret import Secret
from dragoman.config.settings import Config, DefaultThinking, parse_thinking
from dragoman.operate.configuration.effective import KEY_VARIABLE, client_key_variable
from dragoman.operate.gateway.running_gateway import find_gateway
from dragoman.operate.keys import (
    KeyAcceptance,
    KeyAccess,
    check_with_gateway,
    find_key,
    open_key_access,
    wait_until_accepted,
    wait_until_rejected,
)
from dragoman.tenancy.keys import CreatedKey, Grant, KeyRole, KeyRow, Scope, read_thinking

HEADINGS = ("ID", "NAME", "KEY", "ROLE", "THINKING", "CREATED", "LAST USED", "STATE")
DURATION = re.compile(r"(\d{1,6})([smhdw])?")
MakeKey = Callable[[KeyAccess], Awaitable[CreatedKey]]
UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_duration(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return the seconds of a duration such as 90m, 24h or 7d."""
    if text is None:
        return None
    found = DURATION.fullmatch(text)
    if found is None:
        raise click.BadParameter("use a duration such as 90m, 24h or 7d")
    return int(found[1]) * UNIT_S[found[2] or "s"]


def parse_default_thinking(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> DefaultThinking | None:
    try:
        return None if text is None else parse_thinking(text)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong)) from None


@click.group("keys")
def command() -> None:
    """Create, list, rotate and revoke client keys."""


@command.command("create")
@click.argument("name", required=False)
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice([scope.value for scope in Scope]),
    help="Make an admin token for this part of the admin API instead of a client key. May be repeated.",
)
@click.option(
    "--expires",
    metavar="TIME",
    callback=parse_duration,
    help="How long it is valid, for example 30d or 12h. [default: for ever]",
)
@click.option(
    "--default-thinking",
    metavar="EFFORT",
    callback=parse_default_thinking,
    help="low, medium, high or a number of tokens: requested of models that can think if a request asks for nothing.",
)
@url_option
@config_option
@json_option
def create(
    name: str | None,
    scopes: tuple[str, ...],
    expires: int | None,
    default_thinking: DefaultThinking | None,
    url: str | None,
    config_file: str | None,
    as_json: bool,
) -> None:
    """Create a client key. It is shown only once: the store keeps only a digest of it."""
    if scopes and default_thinking is not None:
        raise click.UsageError("An admin token makes no model requests: use --default-thinking without --scope.")
    role = KeyRole.ADMIN if scopes else KeyRole.CLIENT
    expires_at = None if expires is None else int(time.time()) + expires
    grant = Grant(role, frozenset(Scope(scope) for scope in scopes), expires_at, default_thinking)
    created, acceptance = asyncio.run(_make(read_settings(config_file), url, lambda keys: keys.create(name, grant)))
    _show_created(created, acceptance, as_json)


@command.command("rotate")
@click.argument("name_or_id")
@click.option(
    "--grace",
    metavar="TIME",
    default="24h",
    callback=parse_duration,
    help="How long the old key is still accepted, 0 to 7d. [default: 24h]",
)
@url_option
@config_option
@json_option
def rotate(name_or_id: str, grace: int, url: str | None, config_file: str | None, as_json: bool) -> None:
    """Replace the secret of a key, by its name or id. Its id, rights and history stay."""
    created, acceptance = asyncio.run(
        _make(read_settings(config_file), url, lambda keys: keys.rotate(name_or_id, grace))
    )
    _show_created(created, acceptance, as_json)
    if not as_json:
        print_note(f"The old one is accepted until {_format_time(created.row.old_secret_until)}.")


@command.command("list")
@url_option
@config_option
@json_option
def list_keys(url: str | None, config_file: str | None, as_json: bool) -> None:
    """List all keys, including the revoked ones."""
    config = read_settings(config_file)
    rows = asyncio.run(_list(config, url))
    if as_json:
        show_json([_fields(row) for row in rows])
        return
    if rows:
        show_table(HEADINGS, [_format_row(row) for row in rows])
    else:
        print_note("There are no keys yet. `dragoman keys create NAME` makes one; so does the first `dragoman serve`.")
    if config.client_key is not None and url is None:  # a gateway that lists its keys has accepted it
        print_note(asyncio.run(_describe_environment_key(config, config.client_key)))


@command.command("revoke")
@click.argument("name_or_id", shell_complete=complete_keys)
@url_option
@config_option
@json_option
def revoke(name_or_id: str, url: str | None, config_file: str | None, as_json: bool) -> None:
    """Revoke a key, by its name or id."""
    config = read_settings(config_file)
    row, is_environment_key = asyncio.run(_revoke(config, url, name_or_id))
    if as_json:
        show_json(_fields(row))
        return
    click.echo(f'Key "{row.name}" ({row.id}) is revoked.')
    if is_environment_key:
        print_note(f"${client_key_variable(os.environ)} in this shell holds this key: unset it, or set another.")


def _show_created(created: CreatedKey, acceptance: KeyAcceptance, as_json: bool) -> None:
    row, secret = created.row, created.secret.reveal()
    if acceptance.root is not None and not acceptance.is_accepted:
        print_note(f"The gateway at {acceptance.root} does not accept it: it uses another store.")
    if as_json:
        show_json(_fields(row) | {"key": secret})
        return
    kind = "Admin token" if row.role == KeyRole.ADMIN else "Key"
    print_note(f'{kind} "{row.name}" ({row.id}), shown only this once:')
    click.echo(f"export {KEY_VARIABLE}={secret}")
    if acceptance.is_accepted:
        print_note(f"The gateway at {acceptance.root} accepts it from now on.")


@asynccontextmanager
async def _open(config: Config, url: str | None) -> AsyncIterator[tuple[KeyAccess, str | None]]:
    """Yield the keys, and the address of the gateway that uses them if one runs."""
    root = await find_gateway(config, os.environ, url)
    async with open_key_access(config, root, named=url is not None) as keys:
        yield keys, root


async def _make(config: Config, url: str | None, make: MakeKey) -> tuple[CreatedKey, KeyAcceptance]:
    async with _open(config, url) as (keys, root):
        created = await make(keys)
    return created, await wait_until_accepted(root, created.secret)


async def _list(config: Config, url: str | None) -> tuple[KeyRow, ...]:
    async with _open(config, url) as (keys, _):
        return await keys.list()


async def _revoke(config: Config, url: str | None, name_or_id: str) -> tuple[KeyRow, bool]:
    async with _open(config, url) as (keys, root):
        row = await keys.revoke(name_or_id)
    await wait_until_rejected(root)
    if url is not None or config.client_key is None:
        return row, False
    return row, await find_key(config, config.client_key) == row


async def _describe_environment_key(config: Config, secret: Secret) -> str:
    """Describe the key in this shell's environment, which need not be the one that the gateway was started with."""
    root = await find_gateway(config, os.environ)
    row, acceptance = await find_key(config, secret), await check_with_gateway(root, secret)
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
    return msgspec.structs.asdict(row) | {"default_thinking": read_thinking(row.default_thinking)}


def _format_row(row: KeyRow) -> tuple[str, ...]:
    state = "live" if row.revoked_at is None else f"revoked {_format_time(row.revoked_at)}"
    if row.revoked_at is None and row.expires_at is not None:
        verb = "expired" if row.expires_at <= time.time() else "expires"
        state = f"{verb} {_format_time(row.expires_at)}"
    times = _format_time(row.created_at), _format_time(row.last_used_at)
    return (row.id, row.name, f"{row.prefix}…{row.last4}", row.role, row.default_thinking or "-", *times, state)


def _format_time(seconds: int | None) -> str:
    return "-" if seconds is None else datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
