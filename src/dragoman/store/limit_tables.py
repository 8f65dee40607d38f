"""Teams, and the limits that are set in the store; others are set in the file (config/limit_sections.py)."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from dragoman.config.limits import NO_LIMITS, Limits, decode_limits, encode_limits
from dragoman.store.audit import AuditRow, append_audit_row
from dragoman.store.database import NotUnique, Session, StorePart, find, reads, writes

# What a limit is set for. `each_user` is a team's default for each of its users; the name EACH of users and keys
# is the default for each of them.
ALL, TEAM, EACH_USER, USER, KEY, PROVIDER = "all", "team", "each_user", "user", "key", "provider"
EACH = "*"

COUNT_CHANGE = "UPDATE dragoman.key_changes SET number = number + 1"  # so that other processes read it all again
SELECT_TEAMS = "SELECT name, members, models, providers, created_at, version FROM dragoman.teams"
SELECT_LIMITS = "SELECT scope, name, amounts, version FROM dragoman.limits"
PUT_LIMITS = """
    INSERT INTO dragoman.limits (scope, name, amounts, version) VALUES ($1, $2, $3, 1)
    ON CONFLICT (scope, name) DO UPDATE SET amounts = excluded.amounts, version = limits.version + 1
"""
CHANGE_TEAM = """
    UPDATE dragoman.teams SET members = $3, models = $4, providers = $5, version = version + 1
    WHERE name = $1 AND version = $2
"""
ADD_TEAM = """
    INSERT INTO dragoman.teams (name, members, models, providers, created_at, version) VALUES ($1, $2, $3, $4, $5, 1)
"""
SELECT_POLICY_KEYS = """
    SELECT id, name, role, user_name, team, settings FROM dragoman.client_keys WHERE revoked_at IS NULL ORDER BY @row
"""
KEYS_OF_TEAM = "SELECT name FROM dragoman.client_keys WHERE revoked_at IS NULL AND team = $1 LIMIT 1"


class TeamTaken(Exception):
    """There is a team with this name, or a member of it is in another one."""


class TeamInUse(Exception):
    """A valid key, which this names, belongs to the team."""


class TeamRow(Struct, frozen=True):
    """A team of the store. Its limits are in the table of limits, as TEAM and EACH_USER."""

    name: str
    members: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    created_at: int = 0  # Unix seconds
    version: int = 1  # grows with every change, of its limits too


class TeamLimits(Struct, frozen=True):
    """A team's limits: of all of it, and of each of its users. None leaves them as they are."""

    limits: Limits | None = None
    each_user: Limits | None = None


class LimitRow(Struct, frozen=True):
    """The limits of one scope that are set in the store."""

    scope: str
    name: str
    limits: Limits
    version: int = 0  # grows with every change; 0: there never were any


class PolicyKey(Struct, frozen=True):
    """A valid key, as far as its policy depends on it."""

    id: str
    name: str
    role: str
    user: str
    team: str
    settings: str


class StoredPolicies(Struct, frozen=True):
    """All that the store has of keys, teams and limits, as of one moment.

    It is indexed where it is read, which for SQLite is not the event loop: there may be very many keys.
    """

    keys: tuple[PolicyKey, ...] = ()
    teams: tuple[TeamRow, ...] = ()
    limits: tuple[LimitRow, ...] = ()
    keys_by_id: dict[str, PolicyKey] = {}
    teams_by_user: dict[str, str] = {}  # of users whose keys are in a team
    limits_by_scope: dict[tuple[str, str], Limits] = {}  # those that are set, by scope and name
    provider_scopes: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        limits = {(row.scope, row.name): row.limits for row in self.limits if row.limits}
        force_setattr(self, "keys_by_id", {key.id: key for key in self.keys})
        force_setattr(self, "teams_by_user", {key.user: key.team for key in self.keys if key.user and key.team})
        force_setattr(self, "limits_by_scope", limits)
        force_setattr(self, "provider_scopes", tuple(scope for scope in limits if scope[0] == PROVIDER))


class LimitTables(StorePart):
    @reads
    async def read_policies(self, session: Session) -> StoredPolicies:
        """Return what is set for keys, teams and every other scope."""
        return StoredPolicies(
            tuple(await session.fetch(PolicyKey, SELECT_POLICY_KEYS)),
            tuple(await session.fetch(_make_team, f"{SELECT_TEAMS} ORDER BY created_at, name")),
            tuple(await session.fetch(_make_limits, f"{SELECT_LIMITS} ORDER BY scope, name")),
        )

    @writes
    async def set_limits(
        self, session: Session, row: LimitRow, version: int | None = None, audit: AuditRow | None = None
    ) -> LimitRow | None:
        """Replace the limits of a scope and return them; None if they have another version."""
        await session.lock("limits")
        found = await _find_limits(session, row.scope, row.name)
        if version is not None and version != found.version:
            return None
        await put_limits(session, row.scope, row.name, row.limits)
        if row.scope in (TEAM, EACH_USER):
            await session.execute("UPDATE dragoman.teams SET version = version + 1 WHERE name = $1", row.name)
        await session.execute(COUNT_CHANGE)
        await append_audit_row(session, audit)
        return await _find_limits(session, row.scope, row.name)

    @writes
    async def add_team(
        self, session: Session, team: TeamRow, limits: TeamLimits, audit: AuditRow | None = None
    ) -> None:
        """Add a team; raises TeamTaken."""
        await session.lock("limits")
        await _check_members(session, team)
        words = _encode(team.members), _encode(team.models), _encode(team.providers)
        try:
            await session.execute(ADD_TEAM, team.name, *words, team.created_at)
        except NotUnique as error:
            raise TeamTaken(f'There is already a team "{team.name}".') from error
        await _put_team_limits(session, team.name, limits)
        await session.execute(COUNT_CHANGE)
        await append_audit_row(session, audit)

    @writes
    async def change_team(
        self, session: Session, team: TeamRow, limits: TeamLimits, audit: AuditRow | None = None
    ) -> bool:
        """Change a team that has this version; return False if it has another one. Raises TeamTaken."""
        await session.lock("limits")
        await _check_members(session, team)
        words = _encode(team.members), _encode(team.models), _encode(team.providers)
        if not await session.execute(CHANGE_TEAM, team.name, team.version, *words):
            return False
        await _put_team_limits(session, team.name, limits)
        await session.execute(COUNT_CHANGE)
        await append_audit_row(session, audit)
        return True

    @writes
    async def remove_team(
        self, session: Session, name: str, version: int | None = None, audit: AuditRow | None = None
    ) -> bool:
        """Remove a team with its limits; return False if there is none of this version. Raises TeamInUse."""
        await session.lock("limits")
        key = await find(session, str, KEYS_OF_TEAM, name)
        if key is not None:
            raise TeamInUse(key)
        statement = "DELETE FROM dragoman.teams WHERE name = $1 AND ($2::bigint IS NULL OR version = $2)"
        if not await session.execute(statement, name, version):
            return False
        await _put_team_limits(session, name, TeamLimits(NO_LIMITS, NO_LIMITS))
        await session.execute(COUNT_CHANGE)
        await append_audit_row(session, audit)
        return True


async def put_limits(session: Session, scope: str, name: str, limits: Limits) -> None:
    """Replace the limits of a scope. A row without limits stays, so that versions are never used twice."""
    await session.execute(PUT_LIMITS, scope, name, encode_limits(limits))


async def _put_team_limits(session: Session, team: str, limits: TeamLimits) -> None:
    for scope, one in ((TEAM, limits.limits), (EACH_USER, limits.each_user)):
        if one is not None:
            await put_limits(session, scope, team, one)


async def _find_limits(session: Session, scope: str, name: str) -> LimitRow:
    found = await find(session, _make_limits, f"{SELECT_LIMITS} WHERE scope = $1 AND name = $2", scope, name)
    return found or LimitRow(scope, name, NO_LIMITS)


async def _check_members(session: Session, team: TeamRow) -> None:
    for other in await session.fetch(_make_team, SELECT_TEAMS):
        both = sorted(set(other.members) & set(team.members))
        if both and other.name != team.name:
            raise TeamTaken(f'"{both[0]}" is already in the team "{other.name}"; a user belongs to one team.')


def _make_team(name: str, members: str, models: str, providers: str, created_at: int, version: int) -> TeamRow:
    return TeamRow(name, _decode(members), _decode(models), _decode(providers), created_at, version)


def _make_limits(scope: str, name: str, amounts: str, version: int) -> LimitRow:
    return LimitRow(scope, name, decode_limits(amounts), version)


def _encode(words: Sequence[str]) -> str:
    return msgspec.json.encode(words).decode()


def _decode(stored: str) -> tuple[str, ...]:
    return msgspec.json.decode(stored, type=tuple[str, ...])
