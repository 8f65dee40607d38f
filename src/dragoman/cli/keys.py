"""`dragoman keys`: create, change, list, rotate and revoke client keys and admin tokens."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import get_args

import click
import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dragoman.cli.completion import complete_keys
from dragoman.cli.durations import parse_duration
from dragoman.cli.limits import (
    change_limits,
    forgive_in_scope,
    forgive_options,
    read_changes,
    show_limits,
    split_pair,
    split_words,
)
from dragoman.cli.screen import print_note, remove_control, show_json, show_table
from dragoman.cli.settings import CommonOptions, combine_options, common_options
from dragoman.config.secret import Secret
from dragoman.config.settings import Config, DefaultThinking, parse_thinking
from dragoman.operate.configuration.effective import KEY_VARIABLE, client_key_variable
from dragoman.operate.gateway.running_gateway import find_gateway
from dragoman.operate.key_fields import KeyFields, make_grant
from dragoman.operate.keys import (
    KEYS,
    KeyAcceptance,
    KeyAccess,
    check_with_gateway,
    find_key,
    wait_until_accepted,
    wait_until_rejected,
)
from dragoman.operate.limit_access import LIMITS, merge_values
from dragoman.operate.limits import ListedLimit
from dragoman.tenancy.keys import CreatedKey, KeyRole, KeyRow, Scope, read_thinking
from dragoman.tenancy.policies import CaptureSetting, Policies
from dragoman.tenancy.policies import read_settings as read_settings_of_key

UNKNOWN_TEAMS = Policies()  # the gateway or the store knows them
SHOWN = (
    *("role", "scopes", "user", "team", "models", "providers", "default_model", "default_thinking", "strict"),
    *("capture", "max_output_tokens", "metadata", "expires_at"),
)
HEADINGS = ("ID", "NAME", "KEY", "ROLE", "THINKING", "CREATED", "LAST USED", "STATE")
MakeKey = Callable[[KeyAccess], Awaitable[CreatedKey]]


def parse_default_thinking(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> DefaultThinking | None:
    try:
        return None if text is None else parse_thinking(text)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong)) from None


LIST = "a list with commas"


# The options of what is set for a key; each says nothing if it is absent.
key_options = combine_options(
    click.option("--limit", "limits", multiple=True, metavar="NAME=VALUE", help="Such as usd_per_day=5. Repeatable."),
    click.option("--metadata", metavar="PAIRS", help="Your own notes: name=value,name=value."),
    click.option(
        "--max-output-tokens",
        type=click.IntRange(min=0),
        metavar="N",
        help="Higher limits are lowered to this. 0: no limit.",
    ),
    click.option(
        "--capture", type=click.Choice(get_args(CaptureSetting)), help="The most that is captured of a request."
    ),
    click.option("--strict/--no-strict", default=None, help="Reject requests that cannot be translated without loss."),
    click.option("--default-model", metavar="MODEL", help="The model of requests that name none."),
    click.option("--providers", metavar="GLOBS", help=f"The providers that it may use, {LIST}."),
    click.option("--models", metavar="GLOBS", help=f"The models that it may use, {LIST}."),
    click.option("--team", metavar="TEAM", help="Its team, if it is not its user's. Of an admin token: the only one."),
    click.option("--user", metavar="USER", help="Whose key it is."),
)


@click.group("keys")
def command() -> None:
    """Create, change, list, rotate and revoke client keys."""


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
    help="How long it is valid, for example 30d or 12h. [default: forever]",
)
@click.option(
    "--default-thinking",
    metavar="EFFORT",
    callback=parse_default_thinking,
    help="low, medium, high or a number of tokens: the thinking of requests that do not set it.",
)
@key_options
@common_options
def create(
    name: str | None,
    scopes: tuple[str, ...],
    expires: int | None,
    default_thinking: DefaultThinking | None,
    options: CommonOptions,
    **given: object,
) -> None:
    """Create a client key. It is shown only once: the store keeps only a digest of it."""
    fields = _read_fields(given)
    if scopes and default_thinking is not None:
        raise click.UsageError("An admin token makes no model requests: use --default-thinking without --scope.")
    role = KeyRole.ADMIN if scopes else KeyRole.CLIENT
    expires_at = None if expires is None else int(time.time()) + expires
    grant = replace(
        make_grant(UNKNOWN_TEAMS, role, replace(fields, team=UNSET, expires_at=expires_at)),
        scopes=frozenset(Scope(scope) for scope in scopes),
        default_thinking=default_thinking,
        team=fields.team or "",
    )
    created, acceptance = asyncio.run(_make(options, lambda keys: keys.create(name, grant)))
    _show_created(created, acceptance, options)


@command.command("set")
@click.argument("name_or_id", shell_complete=complete_keys)
@click.option("--expires", metavar="TIME", callback=parse_duration, help="From now on, for example 30d. 0: never.")
@click.option("--default-thinking", metavar="EFFORT", help='low, medium, high or a number of tokens; "" for none.')
@key_options
@common_options
def change(
    name_or_id: str,
    expires: int | None,
    default_thinking: str | None,
    options: CommonOptions,
    **given: object,
) -> None:
    """Change the settings of a key, by its name or id. An empty value resets an option."""
    limits = read_changes(given.pop("limits"))
    fields = _read_fields(given)
    if default_thinking is not None:
        fields = replace(fields, default_thinking=default_thinking or None)
    if expires is not None:
        fields = replace(fields, expires_at=int(time.time()) + expires if expires else None)
    if fields == KeyFields() and not limits:
        raise click.UsageError("Nothing to change: give at least one option.")
    if limits:
        change_limits(("key", name_or_id), limits, options)
    is_changed = fields != KeyFields()
    row = options.use(KEYS, lambda keys: keys.change(name_or_id, fields) if is_changed else keys.find(name_or_id))
    _show(row, options)


@command.command("show")
@click.argument("name_or_id", shell_complete=complete_keys)
@common_options
def show(name_or_id: str, options: CommonOptions) -> None:
    """Show the settings and the limits of a key."""
    row, limits = asyncio.run(_read(options, name_or_id))
    if options.as_json:
        show_json(_fields(row) | {"limits": limits})
        return
    _show(row, options)
    if limits:
        show_limits(limits)


@command.command("forgive")
@click.argument("name_or_id", shell_complete=complete_keys)
@forgive_options
@common_options
def forgive(name_or_id: str, options: CommonOptions, **given: str | float | None) -> None:
    """Take an amount off what a key has spent."""
    forgive_in_scope(("key", name_or_id), given, options)


@command.command("rotate")
@click.argument("name_or_id")
@click.option(
    "--grace",
    metavar="TIME",
    default="24h",
    callback=parse_duration,
    help="How long the old key is still accepted, 0 to 7d. [default: 24h]",
)
@common_options
def rotate(name_or_id: str, grace: int, options: CommonOptions) -> None:
    """Replace the secret of a key, by its name or id. Its id, rights and history stay."""
    created, acceptance = asyncio.run(_make(options, lambda keys: keys.rotate(name_or_id, grace)))
    _show_created(created, acceptance, options)
    if not options.as_json:
        print_note(f"The old one is accepted until {_format_time(created.row.old_secret_until)}.")


@command.command("list")
@common_options
def list_keys(options: CommonOptions) -> None:
    """List all keys, including the revoked ones."""
    config, rows = options.config, options.use(KEYS, lambda keys: keys.list())
    if options.as_json:
        show_json([_fields(row) for row in rows])
        return
    if rows:
        show_table(HEADINGS, [_format_row(row) for row in rows])
    else:
        print_note("There are no keys yet. `dragoman keys create NAME` makes one; so does the first `dragoman serve`.")
    if config.client_key is not None and options.url is None:  # a gateway that lists its keys has accepted it
        print_note(asyncio.run(_describe_environment_key(config, config.client_key)))


@command.command("revoke")
@click.argument("name_or_id", shell_complete=complete_keys)
@click.option("--now", "ends_requests", is_flag=True, help="Also end its running requests.")
@common_options
def revoke(name_or_id: str, ends_requests: bool, options: CommonOptions) -> None:
    """Revoke a key, by its name or id."""
    row, is_environment_key = asyncio.run(_revoke(options, name_or_id, ends_requests=ends_requests))
    if options.as_json:
        show_json(_fields(row))
        return
    click.echo(f'Key "{row.name}" ({row.id}) is revoked.')
    if is_environment_key:
        print_note(f"${client_key_variable(os.environ)} in this shell holds this key: unset it, or set another.")


def _show_created(created: CreatedKey, acceptance: KeyAcceptance, options: CommonOptions) -> None:
    row, secret = created.row, created.secret.reveal()
    if acceptance.root is not None and not acceptance.is_accepted:
        print_note(f"The gateway at {acceptance.root} does not accept it: it uses another store.")
    if options.as_json:
        show_json(_fields(row) | {"key": secret})
        return
    kind = "Admin token" if row.role == KeyRole.ADMIN else "Key"
    print_note(f'{kind} "{row.name}" ({row.id}), shown only this once:')
    click.echo(f"export {KEY_VARIABLE}={secret}")
    if acceptance.is_accepted:
        print_note(f"The gateway at {acceptance.root} accepts it from now on.")


@asynccontextmanager
async def _open(options: CommonOptions) -> AsyncIterator[tuple[KeyAccess, str | None]]:
    """Yield the keys, and the address of the gateway that uses them if one runs."""
    root = await find_gateway(options.config, os.environ, options.url)
    async with KEYS.open(options.config, root, named=options.url is not None) as keys:
        yield keys, root


async def _make(options: CommonOptions, make: MakeKey) -> tuple[CreatedKey, KeyAcceptance]:
    async with _open(options) as (keys, root):
        created = await make(keys)
    return created, await wait_until_accepted(root, created.secret)


async def _read(options: CommonOptions, name_or_id: str) -> tuple[KeyRow, list[ListedLimit]]:
    async with _open(options) as (keys, root):
        row = await keys.find(name_or_id)
    async with LIMITS.open(options.config, root, named=options.url is not None) as access:
        return row, await access.list("key", row.name, effective=True)


def _read_fields(given: Mapping[str, object]) -> KeyFields:
    """Return the options that were given as fields of a key."""
    fields: dict[str, object] = {name: value for name, value in given.items() if value is not None and value != ()}
    for name in ("models", "providers"):
        if name in fields:
            fields[name] = split_words(str(fields[name]))
    if "metadata" in fields:
        fields["metadata"] = dict(split_pair(pair) for pair in split_words(str(fields["metadata"])))
    if fields.get("max_output_tokens") == 0:
        fields["max_output_tokens"] = None
    if "limits" in fields:
        fields["limits"] = merge_values({}, read_changes(given["limits"]))
    try:
        return msgspec.convert(fields, KeyFields)
    except msgspec.ValidationError as wrong:
        raise click.UsageError(str(wrong)) from None


def _show(row: KeyRow, options: CommonOptions) -> None:
    if options.as_json:
        show_json(_fields(row))
        return
    fields = {name: value for name, value in _fields(row).items() if name in SHOWN and value}
    click.echo(f'Key "{row.name}" ({row.id})')
    for name, value in fields.items():
        text = ", ".join(value) if isinstance(value, tuple) else remove_control(str(value))
        click.echo(f"  {name}: {text}")


async def _revoke(options: CommonOptions, name_or_id: str, *, ends_requests: bool) -> tuple[KeyRow, bool]:
    async with _open(options) as (keys, root):
        row = await keys.revoke(name_or_id, ends_requests=ends_requests)
    await wait_until_rejected(root)
    client_key = options.config.client_key
    if options.url is not None or client_key is None:
        return row, False
    return row, await find_key(options.config, client_key) == row


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
    fields = msgspec.structs.asdict(row) | {"default_thinking": read_thinking(row.default_thinking)}
    del fields["settings"]
    return fields | msgspec.structs.asdict(read_settings_of_key(row.settings))


def _format_row(row: KeyRow) -> tuple[str, ...]:
    state = "live" if row.revoked_at is None else f"revoked {_format_time(row.revoked_at)}"
    if row.revoked_at is None and row.expires_at is not None:
        verb = "expired" if row.expires_at <= time.time() else "expires"
        state = f"{verb} {_format_time(row.expires_at)}"
    times = _format_time(row.created_at), _format_time(row.last_used_at)
    return (row.id, row.name, f"{row.prefix}…{row.last4}", row.role, row.default_thinking or "-", *times, state)


def _format_time(seconds: int | None) -> str:
    return "-" if seconds is None else datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
