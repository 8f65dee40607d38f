"""Teams: their members, the models that they may use, and their limits."""

import time
from collections import Counter, defaultdict
from typing import Annotated, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, to_builtins
from msgspec.structs import replace

from dragoman.config.limit_sections import find_name_problem
from dragoman.config.limits import NO_LIMITS, Limits, LimitValues, to_values
from dragoman.config.problems import suggest
from dragoman.operate import Conflict, InvalidArgument, NotFound, VersionMismatch
from dragoman.operate.key_fields import Globs, check_values, pick
from dragoman.store import Store
from dragoman.store.audit import AuditRow
from dragoman.store.limit_tables import EACH_USER, TEAM, PolicyKey, TeamInUse, TeamLimits, TeamRow, TeamTaken
from dragoman.tenancy.policies import Policies, Team

MAX_MEMBERS = 10_000
Members = Annotated[tuple[str, ...], Meta(max_length=MAX_MEMBERS)]
T = TypeVar("T")


class TeamFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be set for a team. null resets a field; an absent field stays as it is."""

    members: Members | UnsetType | None = UNSET
    models: Globs | UnsetType | None = UNSET  # over the requested name and provider/model
    providers: Globs | UnsetType | None = UNSET
    limits: LimitValues | UnsetType | None = UNSET  # of all members together
    each_user: LimitValues | UnsetType | None = UNSET  # of each member that has none of its own


class NewTeam(TeamFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A team to create; only its name is needed."""

    name: str


class TeamDescription(Struct, frozen=True, kw_only=True):
    """A team. The limits are all that are set, those of the file included."""

    name: str
    members: tuple[str, ...]
    keys: int  # valid ones
    limits: dict[str, int | float]
    each_user: dict[str, int | float]
    models: tuple[str, ...]
    providers: tuple[str, ...]
    origin: Literal["file", "store"]
    created_at: int | None  # Unix seconds
    version: int


class TeamList(Struct, frozen=True):
    teams: list[TeamDescription]


class Teams(Struct, frozen=True):
    """The teams of the store, which can be changed, and those of the file."""

    store: Store
    policies: Policies

    def list(self) -> list[TeamDescription]:
        keys = Counter(map(self.policies.find_team, self.policies.keys))
        return [self._describe(team, keys[team.name]) for team in self.policies.teams.values()]

    def find(self, name: str) -> Team:
        """Return the team of this name; raises NotFound."""
        team = self.policies.teams.get(name)
        if team is None:
            advice = suggest(name, list(self.policies.teams)) or "; `dragoman teams list` shows all"
            raise NotFound(f'There is no team "{name}"{advice}.')
        return team

    def describe(self, team: Team) -> TeamDescription:
        return self._describe(team, sum(self.policies.find_team(key) == team.name for key in self.policies.keys))

    def _describe(self, team: Team, keys: int) -> TeamDescription:
        row, is_stored = team.row, team.origin == "store"
        return TeamDescription(
            name=row.name,
            members=row.members,
            keys=keys,
            limits=to_values(self.policies.find_limits(TEAM, row.name)),
            each_user=to_values(self.policies.find_limits(EACH_USER, row.name)),
            models=row.models,
            providers=row.providers,
            origin=team.origin,
            created_at=row.created_at if is_stored else None,
            version=row.version,
        )

    async def create(self, new: NewTeam, audit: AuditRow | None = None) -> None:
        """Create a team; raises Conflict if its name or a member of it is taken."""
        problem = find_name_problem(new.name)
        if problem is not None:
            raise InvalidArgument(f"name: {problem}", "name")
        if new.name in self.policies.teams:
            raise Conflict(f'There is already a team "{new.name}". Choose another name, or change that team.')
        team = _change(TeamRow(new.name, created_at=int(time.time())), new)
        self._check_members(team)
        try:
            await self.store.add_team(team, self._read_limits_of(new.name, new), audit)
        except TeamTaken as taken:
            raise Conflict(str(taken)) from taken

    async def change(
        self,
        name: str,
        fields: TeamFields,
        version: int | None = None,
        audit: AuditRow | None = None,
    ) -> None:
        """Change a team of the store; raises Conflict for one of the file."""
        old = self._find_stored(name, version)
        team = _change(old, fields)
        self._check_members(team)
        try:
            if not await self.store.change_team(team, self._read_limits_of(name, fields), audit):
                raise _changed_meanwhile(name)
        except TeamTaken as taken:
            raise Conflict(str(taken)) from taken

    async def remove(self, name: str, version: int | None = None, audit: AuditRow | None = None) -> None:
        """Remove a team of the store; raises Conflict for one of the file, and for one that has keys."""
        self._find_stored(name, version)
        user_key = next((key for key in self.policies.keys if self.policies.find_team(key) == name), None)
        try:
            if user_key is not None:
                raise TeamInUse(user_key.name)
            if not await self.store.remove_team(name, version, audit):
                raise _changed_meanwhile(name)
        except TeamInUse as used:
            advice = "move or revoke its keys first"
            raise Conflict(f'The team "{name}" still has the key "{used}": {advice}.') from used

    def _read_limits_of(self, name: str, fields: TeamFields) -> TeamLimits:
        """Return the limits that are given; raises InvalidArgument, and Conflict for one that the file sets."""
        return TeamLimits(
            _read_limits(self.policies.find_in_file(TEAM, name), fields.limits, "limits"),
            _read_limits(self.policies.find_in_file(EACH_USER, name), fields.each_user, "each_user"),
        )

    def _find_stored(self, name: str, version: int | None) -> TeamRow:
        team = self.find(name)
        if team.origin == "file":
            raise Conflict(f'The team "{name}" is set in dragoman.toml: change it there.')
        if version not in (None, team.row.version):
            raise _changed_meanwhile(name)
        return team.row

    def _check_members(self, team: TeamRow) -> None:
        """Raise if a member has no proper name, is named twice or is in another team, with a key or as its member."""
        keys: defaultdict[str, list[PolicyKey]] = defaultdict(list)
        for key in self.policies.keys:
            keys[key.user].append(key)
        for member in team.members:
            problem = find_name_problem(member)
            if problem is not None:
                raise InvalidArgument(f"members: {problem}", "members")
            other = self.policies.find_membership(member)
            if other not in ("", team.name):
                raise Conflict(f'"{member}" is already in the team "{other}"; a user belongs to one team.')
            elsewhere = next((key for key in keys[member] if key.team not in ("", team.name)), None)
            if elsewhere is not None:
                raise Conflict(
                    f'The key "{elsewhere.name}" of "{member}" is in the team "{elsewhere.team}", and a user belongs '
                    "to one team. Change that key first."
                )
        if len(set(team.members)) < len(team.members):
            raise InvalidArgument("members: a user is named twice.", "members")


def describe_changes(fields: TeamFields) -> dict[str, object]:
    """Return the fields that are given."""
    given: dict[str, object] = to_builtins(fields)
    return given


def _read_limits(in_file: Limits, given: LimitValues | UnsetType | None, field: str) -> Limits | None:
    if isinstance(given, UnsetType):
        return None
    limits = NO_LIMITS if given is None else check_values(given, f"{field}.")
    taken = [limit for limit, _ in limits.items() if in_file.get(limit) is not None]
    if taken:
        raise Conflict(f"{field}.{taken[0]} is set in dragoman.toml: change it there.")
    return limits


def _changed_meanwhile(name: str) -> VersionMismatch:
    return VersionMismatch(f'The team "{name}" was changed since you read it.')


def _change(old: TeamRow, fields: TeamFields) -> TeamRow:
    return replace(
        old,
        members=pick(fields.members, old.members) or (),
        models=pick(fields.models, old.models) or (),
        providers=pick(fields.providers, old.providers) or (),
    )
