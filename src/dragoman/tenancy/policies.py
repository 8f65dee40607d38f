"""What is set for the requests of each key: its limits in every scope, its models, and its other settings.

The file and the store set it together; where both set the same limit, the file's counts. A policy is made once per
change of either, and looked up per request.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Struct

from dragoman.config.limits import NO_LIMITS, LimitName, Limits, to_limits
from dragoman.config.settings import BudgetMode, LimitSettings, OutageMode, TeamSettings
from dragoman.store.client_keys import KeyId, KeyRow
from dragoman.store.limit_tables import (
    ALL,
    EACH,
    EACH_USER,
    KEY,
    PROVIDER,
    TEAM,
    USER,
    PolicyKey,
    StoredPolicies,
    TeamRow,
)
from dragoman.tenancy.windows import name_scope

CaptureSetting = Literal["off", "errors", "all"]
LimitOrigin = Literal["file", "store"]
NO_METADATA: Mapping[str, str] = MappingProxyType({})
ENVIRONMENT_KEY = KeyId("environment")


class LimitedScope(Struct, frozen=True):
    """A scope that has at least one limit.

    Counters begin with `name`: `all`, `team:core`, `user:dev@example.com`, `key:key_3f`, `provider:kiro,kiro-2`.
    `title` is what messages call it: all keys together, the team "core".
    """

    name: str
    title: str
    limits: Limits


class KeySettings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a key has besides its user, team and limits, as the store keeps it."""

    models: tuple[str, ...] = ()  # globs over the requested name and provider/model; empty: all
    providers: tuple[str, ...] = ()  # globs over names of providers; empty: all
    default_model: str = ""  # where a request names none
    strict: bool = False  # as if each request said x-dragoman-strict: 1
    capture: CaptureSetting = "all"  # at most this much is captured
    max_output_tokens: int | None = None  # more is lowered to it
    metadata: dict[str, str] = {}


class _Revocation(Struct):
    ends_requests: bool = False  # of a revoked key: its running requests are ended, too


class KeyPolicy(Struct, frozen=True, kw_only=True):
    """All that is set for the requests of one key, other than what it may do in the admin API."""

    scopes: tuple[LimitedScope, ...] = ()  # of all, team, user and key, if they have limits; not those of providers
    user: str = ""  # for usage rows; empty: none
    team: str = ""
    models: tuple[str, ...] = ()  # globs of the key itself; `allows` knows those of its team, too
    providers: tuple[str, ...] = ()
    team_models: tuple[str, ...] = ()
    team_providers: tuple[str, ...] = ()
    default_model: str = ""  # where a request names none
    is_strict: bool = False  # as if the request said x-dragoman-strict: 1
    capture: CaptureSetting = "all"  # at most this much is captured
    max_output_tokens: int | None = None
    metadata: Mapping[str, str] = NO_METADATA

    @property
    def is_restricted(self) -> bool:
        """Whether there is any model that the key may not use."""
        return bool(self.models or self.providers or self.team_models or self.team_providers)

    def allows(self, requested: str, provider: str, model: str) -> bool:
        """Return whether a request for the model `requested` may go to a target; key and team must both allow it."""
        names = requested, f"{provider}/{model}"
        return all(
            not globs or any(fnmatchcase(name, glob) for glob in globs for name in names)
            for globs in (self.models, self.team_models)
        ) and all(
            not globs or any(fnmatchcase(provider, glob) for glob in globs)
            for globs in (self.providers, self.team_providers)
        )


UNLIMITED = KeyPolicy()
ScopeId = tuple[
    str, str
]  # kind and name: (ALL, ALL), (TEAM, "core"), (KEY, id), (PROVIDER, "kiro,kiro-2"), (USER, EACH)


class SetLimit(Struct, frozen=True):
    """One limit, and where it is set."""

    scope: str
    name: str
    limit: LimitName
    amount: int
    origin: LimitOrigin


class Team(Struct, frozen=True):
    """A team of the file or of the store, with the limits that both set for it."""

    row: TeamRow
    origin: LimitOrigin

    @property
    def name(self) -> str:
        return self.row.name


class Policies:
    """The policies of all keys. Changes of the file and the store are in force within a second.

    The policy of a key is made when it is first asked for: there may be very many keys.
    """

    def __init__(self) -> None:
        self.version = 0  # another one after each change
        self.has_limits = False  # whether any limit is set in any scope; if not, requests need no admission
        self._settings = LimitSettings()
        self._file_teams: tuple[TeamSettings, ...] = ()
        self._stored = StoredPolicies()
        self._build()

    def adopt(self, settings: LimitSettings, teams: Sequence[TeamSettings]) -> None:
        """Use what the file says now."""
        self._settings, self._file_teams = settings, tuple(teams)
        self._build()

    def publish(self, stored: StoredPolicies) -> None:
        """Use what the store has now."""
        self._stored = stored
        self._build()

    def find(self, key: KeyId) -> KeyPolicy:
        """Return what is set for a key; of one that is not known, what is set for all."""
        return self._policies.get(key) or self.renew(key, self._of_all)

    def renew(self, key: str, policy: KeyPolicy) -> KeyPolicy:
        """Return what is set for a key now; `policy`, as it was before, if the key is no longer known."""
        known = self._policies.get(key)
        if known is not None:
            return known
        row = self._keys.get(key)
        if row is None:
            return policy
        made = self._policies[key] = self._make_policy(row)
        return made

    def find_provider_scopes(self, provider: str) -> tuple[LimitedScope, ...]:
        """Return the limits that requests to a provider count in; several sections may name it."""
        return self._by_provider.get(provider, ())

    @property
    def time_zone(self) -> ZoneInfo:
        """Where days, weeks and months begin."""
        return self._zone

    @property
    def wait_s(self) -> float:
        """How long a request waits in line while only reservations are in its way."""
        return self._settings.wait_s

    @property
    def budget(self) -> BudgetMode:
        return self._settings.budget

    @property
    def on_outage(self) -> OutageMode:
        return self._settings.on_outage

    # What is set where

    @property
    def teams(self) -> Mapping[str, Team]:
        """The teams by their names, those of the file first."""
        return self._teams

    @property
    def keys(self) -> Sequence[PolicyKey]:
        """The valid keys of the store."""
        return self._stored.keys

    def find_key(self, id: str) -> PolicyKey | None:
        """Return the valid key of the store that has this id."""
        return self._keys.get(id)

    def find_team(self, key: PolicyKey | KeyRow) -> str:
        """Return the team that a key belongs to: the one that names its user, else its own; empty if there is none.

        The file may name a user who has a key in another team.
        """
        return self.find_membership(key.user) or key.team

    def find_membership(self, user: str) -> str:
        """Return the team that names a user as its member; empty if there is none."""
        return self._memberships.get(user, "")

    def find_team_of_user(self, user: str) -> str:
        """Return the team that a user is in, as its member or with a key; empty if there is none."""
        return self.find_membership(user) or self._stored.teams_by_user.get(user, "")

    def find_key_outside(self, team: str, user: str) -> PolicyKey | None:
        """Return a valid key of a user that is not in this team; None if there is none."""
        return next((key for key in self.keys if key.user == user and self.find_team(key) != team), None)

    def list_users(self) -> list[str]:
        """Return every user that is a member of a team, has a key or has limits."""
        members = [member for team in self._teams.values() for member in team.row.members]
        of_limits = [name for kind, name in self._limits if kind == USER and name != EACH]
        return sorted({*members, *(key.user for key in self._stored.keys if key.user), *of_limits})

    def list_limits(self) -> Iterator[SetLimit]:
        """Yield every limit that is set, in the file first."""
        for origin, found in (("file", self._in_file), ("store", self._in_store)):
            for (scope, name), limits in found.items():
                for limit, amount in limits.items():
                    if origin == "file" or self.find_in_file(scope, name).get(limit) is None:
                        yield SetLimit(scope, name, limit, amount, "file" if origin == "file" else "store")

    def find_limits(self, scope: str, name: str) -> Limits:
        """Return the limits that are set for a scope itself."""
        return self._limits.get((scope, name), NO_LIMITS)

    def find_in_file(self, scope: str, name: str) -> Limits:
        """Return the limits of a scope that the file sets, which nothing else can change."""
        return self._in_file.get((scope, name), NO_LIMITS)

    def find_user_limits(self, user: str) -> Limits:
        """Return the limits of a user: its own, else what its team gives to each user, else what all users get."""
        own, of_team = self.find_limits(USER, user), self.find_limits(EACH_USER, self.find_team_of_user(user))
        return own.fill(of_team).fill(self.find_limits(USER, EACH))

    def find_key_limits(self, key: str) -> Limits:
        """Return the limits of a key: its own, else what all keys get."""
        return self.find_limits(KEY, key).fill(self.find_limits(KEY, EACH))

    def _build(self) -> None:
        self.version += 1
        settings, stored = self._settings, self._stored
        self._zone = ZoneInfo(settings.time_zone)
        in_file = {scope: limits for scope, limits in _list_file_limits(settings, self._file_teams) if limits}
        in_store = stored.limits_by_scope
        self._in_file, self._in_store = in_file, in_store
        filled = {scope: limits.fill(in_store.get(scope, NO_LIMITS)) for scope, limits in in_file.items()}
        self._limits = in_store | filled if filled else in_store
        self.has_limits = bool(self._limits)
        of_file = {team.name: Team(_make_row(team), "file") for team in self._file_teams}
        self._teams = MappingProxyType({row.name: Team(row, "store") for row in stored.teams} | of_file)
        self._memberships = {
            member: team.name
            for team in sorted(self._teams.values(), key=lambda team: team.origin == "file")  # which wins
            for member in team.row.members
        }
        of_all = _list_limited((ALL, "all keys together", self.find_limits(ALL, ALL)))
        self._of_all = KeyPolicy(scopes=of_all) if of_all else UNLIMITED
        self._keys = stored.keys_by_id
        self._policies: dict[str, KeyPolicy] = {ENVIRONMENT_KEY: self._of_all}
        self._by_provider = self._make_provider_scopes()

    def _make_policy(self, key: PolicyKey) -> KeyPolicy:
        settings = read_settings(key.settings)
        team = self.find_team(key)
        row = self._teams[team].row if team in self._teams else TeamRow(team)
        scopes = _list_limited(
            (ALL, "all keys together", self.find_limits(ALL, ALL)),
            (name_scope(TEAM, team), f'the team "{team}"', self.find_limits(TEAM, team) if team else NO_LIMITS),
            (
                name_scope(USER, key.user),
                f'the user "{key.user}"',
                self.find_user_limits(key.user) if key.user else NO_LIMITS,
            ),
            (name_scope(KEY, key.id), f'the key "{key.name}"', self.find_key_limits(key.id)),
        )
        return KeyPolicy(
            scopes=scopes,
            user=key.user,
            team=team,
            models=settings.models,
            providers=settings.providers,
            team_models=row.models,
            team_providers=row.providers,
            default_model=settings.default_model,
            is_strict=settings.strict,
            capture=settings.capture,
            max_output_tokens=settings.max_output_tokens,
            metadata=settings.metadata,
        )

    def _make_provider_scopes(self) -> dict[str, tuple[LimitedScope, ...]]:
        found: dict[str, tuple[LimitedScope, ...]] = {}
        in_file = [scope for scope in self._in_file if scope[0] == PROVIDER]
        for scope in dict.fromkeys((*self._stored.provider_scopes, *in_file)):
            providers, limits = split_providers(scope[1]), self._limits[scope]
            for provider in providers:
                found[provider] = (*found.get(provider, ()), make_provider_scope(providers, limits))
        return found


def make_provider_scope(providers: Sequence[str], limits: Limits) -> LimitedScope:
    quoted = ", ".join(f'"{provider}"' for provider in providers)
    title = f"the provider {quoted}" if len(providers) == 1 else f"the providers {quoted}"
    return LimitedScope(name_scope(PROVIDER, *providers), title, limits)


def join_providers(providers: Sequence[str]) -> str:
    """Return the name of a scope of providers, which does not depend on their order."""
    return ",".join(sorted(set(providers)))


def split_providers(name: str) -> tuple[str, ...]:
    return tuple(name.split(","))


def read_settings(stored: str) -> KeySettings:
    """Return what the store has for a key; a field that this version does not know is left out."""
    return msgspec.json.decode(stored, type=KeySettings) if stored else KeySettings()


def encode_settings(settings: KeySettings) -> str:
    """Return settings as the store keeps them; empty if there are none."""
    return "" if settings == KeySettings() else msgspec.json.encode(settings).decode()


def add_end(stored: str) -> str:
    """Return the settings of a key that is revoked, with a mark that its requests under way are to be ended."""
    settings: dict[str, object] = msgspec.json.decode(stored or b"{}", type=dict[str, object])
    return msgspec.json.encode(settings | {"ends_requests": True}).decode()


def has_end(stored: str) -> bool:
    """Return whether settings have this mark."""
    return bool(stored) and msgspec.json.decode(stored, type=_Revocation).ends_requests


def _list_limited(*scopes: tuple[str, str, Limits]) -> tuple[LimitedScope, ...]:
    return tuple(LimitedScope(name, title, limits) for name, title, limits in scopes if limits)


def _make_row(team: TeamSettings) -> TeamRow:
    return TeamRow(team.name, team.members, team.models, team.providers)


def _list_file_limits(settings: LimitSettings, teams: Sequence[TeamSettings]) -> Iterator[tuple[ScopeId, Limits]]:
    yield (ALL, ALL), to_limits(settings)
    yield (USER, EACH), to_limits(settings.user)
    yield (KEY, EACH), to_limits(settings.key)
    for group in settings.providers:
        yield (PROVIDER, join_providers(group.names)), to_limits(group)
    for team in teams:
        yield (TEAM, team.name), to_limits(team.limits)
        yield (EACH_USER, team.name), to_limits(team.each_user)
