"""`dragoman limits`: show limits and what is spent of them, set, remove and forgive."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TypeVar

import click
import msgspec

from dragoman.cli.durations import parse_duration
from dragoman.cli.screen import print_note, remove_control, show_json, show_table
from dragoman.cli.settings import CommonOptions, combine_options, common_options
from dragoman.config.limits import LimitName, parse_limit_name
from dragoman.operate import InvalidArgument
from dragoman.operate.limit_access import LIMITS, Changes, LimitAccess
from dragoman.operate.limits import Forgiven, Forgiveness, ListedLimit, StoredLimits
from dragoman.store.limit_tables import ALL

HEADINGS = ("SCOPE", "LIMIT", "VALUE", "SPENT", "RESERVED", "RESETS", "SET IN")
NONE = "–"
T = TypeVar("T")
Scope = tuple[str, str]  # kind and name


# The options of what is forgiven.
forgive_options = combine_options(
    click.option("--reason", default="", metavar="TEXT", help="The reason, stored with it."),
    click.option("--until", metavar="TIME", callback=parse_duration, help="Only for this long, such as 2h or 7d."),
    click.option("--credits", type=int, metavar="N", help="Forgive credits."),
    click.option("--tokens", type=int, metavar="N", help="Forgive tokens."),
    click.option("--usd", type=float, metavar="DOLLARS", help="Forgive dollars."),
)


@click.group("limits")
def command() -> None:
    """Show and set limits of keys, users, teams and providers.

    SCOPE is all, team:NAME, user:NAME, key:NAME or provider:NAME,NAME; user:* and key:* are the defaults for each, and
    each_user:TEAM is that for each user of a team.
    """


@command.command("list")
@click.argument("scope", required=False)
@click.option("--effective", is_flag=True, help="Show what each user and key gets by default, instead of the defaults.")
@common_options
def list_limits(scope: str | None, effective: bool, options: CommonOptions) -> None:
    """Show the limits that are set, and what is spent of each."""
    kind, name = (scope, None) if scope is None or ":" not in scope else _parse_scope(scope)
    found = options.use(LIMITS, lambda limits: limits.list(kind, name, effective=effective))
    if options.as_json:
        show_json(found)
    elif found:
        show_limits(found)
    else:
        print_note("There are no limits. `dragoman limits set all usd_per_month=500` sets one.")


@command.command("set")
@click.argument("scope")
@click.argument("changes", nargs=-1, required=True, metavar="NAME=VALUE...")
@click.option(
    "--until",
    metavar="TIME",
    callback=parse_duration,
    help="Raise it only for this long, such as 2h, at most until it resets: the difference is forgiven until then.",
)
@common_options
def set_limits(
    scope: str,
    changes: tuple[str, ...],
    until: int | None,
    options: CommonOptions,
) -> None:
    """Set limits of a scope, for example: dragoman limits set team:core usd_per_day=20 requests_per_min=none."""
    parsed, changed = _parse_scope(scope), read_changes(changes)
    if until is None:
        _show_stored(change_limits(parsed, changed, options), options)
        return
    end = int(time.time()) + until
    forgiven = options.use(LIMITS, lambda limits: _raise_until(limits, parsed, changed, end))
    show_forgiven(forgiven, options)
    if forgiven.until != end:
        print_note("Then it resets. To raise it for longer, set it without --until.")


@command.command("remove")
@click.argument("scope")
@common_options
def remove(scope: str, options: CommonOptions) -> None:
    """Remove the limits of a scope, other than those of dragoman.toml."""
    kind, name = _parse_scope(scope)
    _show_stored(options.use(LIMITS, lambda limits: limits.remove(kind, name)), options)


@command.command("forgive")
@click.argument("scope")
@forgive_options
@common_options
def forgive(scope: str, options: CommonOptions, **given: str | float | None) -> None:
    """Take an amount off what a scope has spent."""
    forgive_in_scope(_parse_scope(scope), given, options)


def change_limits(scope: Scope, changes: Changes, options: CommonOptions) -> StoredLimits:
    return options.use(LIMITS, lambda limits: limits.change(*scope, changes))


def forgive_in_scope(scope: Scope, given: Mapping[str, str | float | None], options: CommonOptions) -> None:
    """Forgive what the options say, and show it."""
    forgiveness = read_forgiveness(given)
    show_forgiven(options.use(LIMITS, lambda limits: limits.forgive(*scope, forgiveness)), options)


def read_forgiveness(given: Mapping[str, str | float | None]) -> Forgiveness:
    """Return what the options say; one amount must be given."""
    fields = {name: value for name, value in given.items() if value is not None}
    if isinstance(fields.get("until"), int):
        fields["until"] = int(time.time()) + int(fields["until"])
    if not {"usd", "tokens", "credits"} & fields.keys():
        raise click.UsageError("How much? Give --usd, --tokens or --credits.")
    try:
        return msgspec.convert(fields, Forgiveness)
    except msgspec.ValidationError as wrong:
        raise click.UsageError(str(wrong)) from None


def read_changes(texts: object) -> Changes:
    """Return the limits that arguments such as usd_per_day=5 name; `none` removes one."""
    found: dict[str, int | float | None] = {}
    for text in texts if isinstance(texts, Iterable) else ():
        name, value = split_pair(str(text))
        if name in found:
            raise click.UsageError(f"{name} is given twice: write one value.")
        try:
            found[parse_limit_name(name).value] = None if value == "none" else _read_number(value)
        except ValueError as wrong:
            raise click.UsageError(f"{name}: {wrong}") from None
    return found


def split_pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"expected NAME=VALUE, got {text!r}")
    return name, value


def split_words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def format_limits(limits: Mapping[str, int | float]) -> str:
    """Return limits as the commands take them."""
    return ", ".join(f"{name}={_format_exactly(value)}" for name, value in limits.items())


def show_limits(found: Sequence[ListedLimit]) -> None:
    show_table(HEADINGS, [_format_row(one) for one in found], HEADINGS[2:5])


def _read_number(text: str) -> int | float:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if math.isfinite(number):  # JSON has no others: they would arrive as null, and remove the limit
            return number
    raise ValueError(f'expected a number or "none", got {text!r}')


def _parse_scope(text: str) -> Scope:
    kind, colon, name = text.partition(":")
    if kind == ALL and not colon:
        return ALL, ALL
    if not name:
        raise click.UsageError(f"expected {kind}:NAME, got {text!r}")
    return kind, name


async def _raise_until(limits: LimitAccess, scope: Scope, changed: Changes, until: int) -> Forgiven:
    """Forgive what a limit is raised by, until a time or until it resets: the limit itself stays."""
    if len(changed) != 1:
        raise InvalidArgument("With --until, name one limit.")
    [(name, value)] = changed.items()
    unit = name.partition("_per_")[0]
    if value is None or unit not in ("usd", "tokens", "credits") or name == LimitName.TOKENS_PER_MIN:
        raise InvalidArgument("With --until, name a limit of dollars, tokens or credits, and what to raise it to.")
    found = await limits.list(*scope, effective=True)
    now = next((one for one in found if one.limit == name), None)
    if now is None or value <= now.value:
        current = "not set" if now is None else now.value
        raise InvalidArgument(f"{name} of {':'.join(scope)} is {current}; nothing to raise.")
    more, end = round(value - now.value, 9), min(until, now.resets_at or until)
    given = msgspec.convert({unit: more, "until": end, "reason": f"{name}={value}"}, Forgiveness)
    return await limits.forgive(*scope, given)


def _show_stored(stored: StoredLimits, options: CommonOptions) -> None:
    if options.as_json:
        show_json(stored)
        return
    values = format_limits(stored.limits)
    click.echo(f"{_format_scope(stored.scope, stored.name)}: {values or 'no limits of its own'}")
    if stored.in_file:
        print_note(f"dragoman.toml also sets: {format_limits(stored.in_file)}")


def show_forgiven(forgiven: Forgiven, options: CommonOptions) -> None:
    if options.as_json:
        show_json(forgiven)
        return
    end = "" if forgiven.until is None else f", until {_format_time(forgiven.until)}"
    where = _format_scope(forgiven.scope, forgiven.name)
    click.echo(f"{where}: {_format_exactly(forgiven.amount)} {forgiven.unit} forgiven{end}.")


def _format_row(one: ListedLimit) -> tuple[str, ...]:
    origin = one.origin if not one.set_for else f"{one.origin}, {one.set_for}"
    spent, reserved = _format_number(one.spent), _format_number(one.reserved)
    scope = _format_scope(one.scope, one.name)
    return scope, one.limit, _format_number(one.value), spent, reserved, _format_time(one.resets_at), origin


def _format_scope(scope: str, name: str) -> str:
    return scope if name == scope else f"{scope}:{remove_control(name)}"


def _format_number(value: float | None) -> str:
    return NONE if value is None else _format_exactly(value, ",")


def _format_exactly(value: float, grouping: str = "") -> str:
    """Return a number with all its digits: large ones are no powers of ten."""
    return format(Decimal(str(value)).normalize(), f"{grouping}f")


def _format_time(seconds: int | None) -> str:
    return NONE if seconds is None else datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
