"""`dragoman teams`: create, change, list and remove teams."""

from collections.abc import Mapping
from typing import TypeVar

import click
import msgspec

from dragoman.cli.limits import format_limits, read_changes, split_words
from dragoman.cli.screen import print_note, remove_control, show_json, show_table
from dragoman.cli.settings import CommonOptions, combine_options, common_options
from dragoman.config.limits import LimitValues
from dragoman.operate import NotFound
from dragoman.operate.limit_access import TEAMS, Changes, TeamAccess, merge_values
from dragoman.operate.teams import NewTeam, TeamDescription, TeamFields

HEADINGS = ("TEAM", "MEMBERS", "KEYS", "LIMITS", "EACH USER", "SET IN")
T = TypeVar("T")


EACH_USER_HELP = "A limit for each user without one of its own. Repeatable."
# The options of what is set for a team; each says nothing if it is absent.
team_options = combine_options(
    click.option("--each-user", multiple=True, metavar="NAME=VALUE", help=EACH_USER_HELP),
    click.option(
        "--limit", "limits", multiple=True, metavar="NAME=VALUE", help="A limit for all members together. Repeatable."
    ),
    click.option("--providers", metavar="GLOBS", help="The providers that its keys may use, a list with commas."),
    click.option("--models", metavar="GLOBS", help="The models that its keys may use, a list with commas."),
    click.option("--members", metavar="USERS", help="Its members, a list with commas."),
)


@click.group("teams")
def command() -> None:
    """Create, change, list and remove teams."""


@command.command("create")
@click.argument("name")
@team_options
@common_options
def create(name: str, options: CommonOptions, **given: object) -> None:
    """Create a team. Keys join it through their users, or with `dragoman keys set KEY --team TEAM`."""
    new = msgspec.convert({"name": name} | _read_fields(given, None), NewTeam)
    _show(options.use(TEAMS, lambda teams: teams.create(new)), options)


@command.command("set")
@click.argument("name")
@click.option("--add-member", multiple=True, metavar="USER", help="Add a member. Repeatable.")
@click.option("--remove-member", multiple=True, metavar="USER", help="Remove a member. Repeatable.")
@team_options
@common_options
def change(
    name: str,
    add_member: tuple[str, ...],
    remove_member: tuple[str, ...],
    options: CommonOptions,
    **given: object,
) -> None:
    """Change the settings of a team. An empty value resets an option; `none` removes a limit."""

    async def change_in(teams: TeamAccess) -> TeamDescription:
        old = await _find(teams, name)
        fields = _read_fields(given, old)
        if add_member or remove_member:
            members = fields.get("members", old.members)
            kept = [one for one in (*_words(members), *add_member) if one not in remove_member]
            fields["members"] = list(dict.fromkeys(kept))
        if not fields:
            raise click.UsageError("Nothing to change: give at least one option.")
        return await teams.change(name, msgspec.convert(fields, TeamFields))

    _show(options.use(TEAMS, change_in), options)


@command.command("list")
@common_options
def list_teams(options: CommonOptions) -> None:
    """List all teams, with their members and limits."""
    found = options.use(TEAMS, lambda teams: teams.list())
    if options.as_json:
        show_json(found)
    elif found:
        show_table(HEADINGS, [_format_row(team) for team in found], HEADINGS[2:3])
    else:
        print_note("There are no teams yet. `dragoman teams create NAME` makes one.")


@command.command("show")
@click.argument("name")
@common_options
def show(name: str, options: CommonOptions) -> None:
    """Show the settings of a team."""
    _show(options.use(TEAMS, lambda teams: _find(teams, name)), options)


@command.command("remove")
@click.argument("name")
@common_options
def remove(name: str, options: CommonOptions) -> None:
    """Remove a team that has no keys, with its limits."""
    removed = options.use(TEAMS, lambda teams: teams.remove(name))
    if options.as_json:
        show_json(removed)
    else:
        click.echo(f'Team "{removed.name}" is removed.')


async def _find(teams: TeamAccess, name: str) -> TeamDescription:
    found = next((team for team in await teams.list() if team.name == name), None)
    if found is None:
        raise NotFound(f'There is no team "{name}". `dragoman teams list` shows all.')
    return found


def _read_fields(given: Mapping[str, object], old: TeamDescription | None) -> dict[str, object]:
    """Return the options that were given, as the admin API takes them."""
    fields: dict[str, object] = {}
    for name in ("members", "models", "providers"):
        if given.get(name) is not None:
            fields[name] = split_words(str(given[name]))
    for name in ("limits", "each_user"):
        if given.get(name):
            before: Changes = {} if old is None else getattr(old, name)
            fields[name] = _list_values(merge_values(before, read_changes(given[name])))
    return fields


def _list_values(values: LimitValues) -> dict[str, object]:
    every = ((name, getattr(values, name)) for name in values.__struct_fields__)
    return {name: value for name, value in every if value is not None}


def _words(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()


def _show(team: TeamDescription, options: CommonOptions) -> None:
    if options.as_json:
        show_json(team)
    else:
        show_table(HEADINGS, [_format_row(team)], HEADINGS[2:3])


def _format_row(team: TeamDescription) -> tuple[str, ...]:
    members = ", ".join(map(remove_control, team.members)) or "–"
    limits, each = format_limits(team.limits) or "–", format_limits(team.each_user) or "–"
    return remove_control(team.name), members, str(team.keys), limits, each, team.origin
