"""Read `[limits]`, `[[limits.providers]]` and `[[teams]]` of the file; problems are noted with their lines."""

from collections.abc import Collection, Iterator
from typing import TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dragoman.config.limits import InvalidLimit, LimitValues, to_limits
from dragoman.config.problems import Key, suggest
from dragoman.config.settings import LimitSettings, ProviderLimits, TeamSettings
from dragoman.config.tree import Tree, build_struct, list_tables, read_fields, table_at
from dragoman.config.urls import split_url

MAX_NAME = 100
LIMITS_OF_TEAM = ("limits", "each_user")
LIMITS_OF_EACH = ("user", "key")
L = TypeVar("L", bound=LimitValues)


def read_limits(tree: Tree, providers: Collection[str]) -> LimitSettings:
    """Return the limits; `providers` are the names of those that there are."""
    table = table_at(tree, ("limits",))
    if not table:
        return LimitSettings()
    settings = _read_values(tree, ("limits",), LimitSettings, nested=frozenset({*LIMITS_OF_EACH, "providers"}))
    if settings is None:
        settings = LimitSettings()
    _check_zone(tree, settings.time_zone)
    webhook = settings.webhook
    if webhook is not None and webhook.is_literal and not _is_web_address(webhook.text):
        tree.problem(("limits", "webhook"), 'expected a URL such as "https://hooks.example.com/budget"')
    each = {name: _read_values(tree, ("limits", name), LimitValues) for name in LIMITS_OF_EACH if name in table}
    groups = tuple(_read_provider_limits(tree, providers)) if "providers" in table else ()
    return build_struct(
        LimitSettings,
        {name: getattr(settings, name) for name in settings.__struct_fields__}
        | {name: values for name, values in each.items() if values is not None}
        | {"providers": groups},
    )


def read_teams(tree: Tree) -> tuple[TeamSettings, ...]:
    """Return the teams. No two have the same name, and no user is in two of them."""
    found: list[TeamSettings] = []
    teams: dict[str, int] = {}
    places: dict[str, str] = {}
    for index in list_tables(tree, ("teams",)):
        team = _read_team(tree, ("teams", index))
        if team is None:
            continue
        if team.name in teams:
            tree.problem(
                ("teams", index, "name"), f'there is already a team "{team.name}" above; each needs its own name'
            )
            continue
        teams[team.name] = index
        for member in team.members:
            if member in places:
                where = "twice here" if places[member] == team.name else f'already in the team "{places[member]}"'
                tree.problem(("teams", index, "members"), f'"{member}" is {where}; a user belongs to one team')
            places.setdefault(member, team.name)
        found.append(team)
    return tuple(found)


def find_name_problem(name: str) -> str | None:
    """Return what is wrong with the name of a user or a team, or None: names are parts of paths and counters."""
    if name != name.strip() or not name.isprintable() or "/" in name or not 0 < len(name) <= MAX_NAME or name == "*":
        return f"expected a printable name without / and of at most {MAX_NAME} characters, got {name[:MAX_NAME]!r}"
    return None


def is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _is_web_address(url: str) -> bool:
    try:
        parts = split_url(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _check_zone(tree: Tree, name: str) -> None:
    if not is_zone(name):
        tree.problem(("limits", "time_zone"), f'expected a time zone such as "Europe/Berlin" or "UTC", got "{name}"')


def _read_team(tree: Tree, key: Key) -> TeamSettings | None:
    fields = read_fields(tree, key, TeamSettings, nested=frozenset(LIMITS_OF_TEAM))
    table = table_at(tree, key) or {}
    limits = {name: _read_values(tree, (*key, name), LimitValues) for name in LIMITS_OF_TEAM if name in table}
    if fields is None:
        return None
    team = build_struct(TeamSettings, fields | {name: values for name, values in limits.items() if values is not None})
    for name, where in ((team.name, "name"), *((member, "members") for member in team.members)):
        problem = find_name_problem(name)
        if problem is not None:
            tree.problem((*key, where), problem)
    return team


def _read_provider_limits(tree: Tree, providers: Collection[str]) -> Iterator[ProviderLimits]:
    seen: set[frozenset[str]] = set()
    for index in list_tables(tree, ("limits", "providers")):
        key: Key = ("limits", "providers", index)
        found = _read_values(tree, key, ProviderLimits)
        if found is None:
            continue
        for name in found.names:
            if name not in providers:
                tree.problem((*key, "names"), f'there is no provider "{name}"{suggest(name, list(providers))}')
        if len(set(found.names)) < len(found.names):
            tree.problem((*key, "names"), "a provider is named twice")
        if frozenset(found.names) in seen:
            tree.problem(
                (*key, "names"), "there is already a section for the same providers above; put the limits there"
            )
        seen.add(frozenset(found.names))
        yield found


def _read_values(tree: Tree, key: Key, model: type[L], nested: frozenset[str] = frozenset()) -> L | None:
    """Return the limits in a table; None if there are problems, which are noted."""
    fields = read_fields(tree, key, model, nested=nested)
    if fields is None:
        return None
    values = build_struct(model, fields)
    try:
        to_limits(values)
    except InvalidLimit as error:
        tree.problem((*key, error.name.value), str(error))
        return None
    return values
