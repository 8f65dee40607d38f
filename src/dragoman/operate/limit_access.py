"""Limits and teams for commands: those of the running gateway, or of the configured store."""

from collections.abc import Collection, Mapping
from urllib.parse import quote

import msgspec
from msgspec import Struct

from dragoman.config.limits import LimitValues, to_values
from dragoman.operate import InvalidArgument, VersionMismatch
from dragoman.operate.admin_access import AdminPart
from dragoman.operate.gateway.running_gateway import GatewayClient, GatewayRefused
from dragoman.operate.key_fields import check_values
from dragoman.operate.limits import (
    Forgiven,
    Forgiveness,
    LimitPage,
    LimitTarget,
    ListedLimit,
    ScopedLimits,
    StoredLimits,
    find_target,
    list_limits,
    read_levels,
)
from dragoman.operate.teams import NewTeam, TeamDescription, TeamFields, TeamList, Teams, describe_changes
from dragoman.store.audit import make_audit_row
from dragoman.tenancy.keys import Keyring

LIMITS_PATH, TEAMS_PATH = "/api/v1/limits", "/api/v1/teams"
TRIES = 5  # of a change that another one came before
CHANGED_MEANWHILE = 412
Changes = Mapping[str, int | float | None]  # by the names of limits; None removes one


class StoredLimitAccess(Struct, frozen=True):
    """Limits of the store and the file; what is spent is not known without a gateway."""

    keyring: Keyring
    providers: Collection[str]

    async def list(self, scope: str | None, name: str | None, *, effective: bool) -> list[ListedLimit]:
        await self.keyring.refresh()
        found = list_limits(self.keyring.policies, scope, name, effective=effective)
        return await read_levels(self.keyring.policies, None, found)

    async def change(self, scope: str, name: str, changes: Changes) -> StoredLimits:
        target = await self._find(scope, name)
        for _ in range(TRIES):
            old = await self._stored.read(target)
            limits = check_values(merge_values(old.limits, changes))
            detail = {"name": target.name, "limits": to_values(limits)}
            audit = make_audit_row("limits.set", f"{target.scope}:{target.id}", detail)
            try:
                return await self._stored.replace(target, limits, old.version, audit)
            except VersionMismatch:
                continue
        raise VersionMismatch(f"The limits of {target.title} are being changed by others: try again.")

    async def remove(self, scope: str, name: str) -> StoredLimits:
        target = await self._find(scope, name)
        audit = make_audit_row("limits.remove", f"{target.scope}:{target.id}", {"name": target.name})
        return await self._stored.remove(target, audit=audit)

    async def forgive(self, scope: str, name: str, given: Forgiveness) -> Forgiven:
        target = await self._find(scope, name)
        detail = {"name": target.name} | msgspec.to_builtins(given)
        audit = make_audit_row("limits.forgive", f"{target.scope}:{target.id}", detail)
        return await self._stored.forgive(target, given, audit)

    @property
    def _stored(self) -> ScopedLimits:
        return ScopedLimits(self.keyring.store, self.keyring.policies)

    async def _find(self, scope: str, name: str) -> LimitTarget:
        await self.keyring.refresh()
        return find_target(self.keyring.policies, self.providers, scope, name)


class RemoteLimitAccess(Struct, frozen=True):
    """Limits of a gateway, with what is spent of them."""

    gateway: GatewayClient

    async def list(self, scope: str | None, name: str | None, *, effective: bool) -> list[ListedLimit]:
        filters = {"scope": scope, "name": name, "effective": "1" if effective else None}
        query = {field: value for field, value in filters.items() if value is not None}
        return [one async for page in self.gateway.read_pages(LIMITS_PATH, LimitPage, query) for one in page.limits]

    async def change(self, scope: str, name: str, changes: Changes) -> StoredLimits:
        path = _locate(scope, name)
        for tries in range(1, TRIES + 1):
            old = msgspec.json.decode(await self.gateway.get(path), type=StoredLimits)
            values = {limit: value for limit, value in {**old.limits, **changes}.items() if value is not None}
            try:
                body = await self.gateway.write("PUT", path, values, version=old.version)
            except GatewayRefused as refused:
                if refused.status != CHANGED_MEANWHILE or tries == TRIES:
                    raise
            else:
                return msgspec.json.decode(body, type=StoredLimits)
        raise AssertionError

    async def remove(self, scope: str, name: str) -> StoredLimits:
        return msgspec.json.decode(await self.gateway.write("DELETE", _locate(scope, name)), type=StoredLimits)

    async def forgive(self, scope: str, name: str, given: Forgiveness) -> Forgiven:
        body = await self.gateway.write("POST", f"{_locate(scope, name)}/forgive", given)
        return msgspec.json.decode(body, type=Forgiven)


class StoredTeams(Struct, frozen=True):
    keyring: Keyring

    @property
    def _teams(self) -> Teams:
        return Teams(self.keyring.store, self.keyring.policies)

    async def list(self) -> list[TeamDescription]:
        await self.keyring.refresh()
        return self._teams.list()

    async def create(self, new: NewTeam) -> TeamDescription:
        await self.keyring.refresh()
        audit = make_audit_row("teams.create", new.name, describe_changes(new))
        await self._teams.create(new, audit)
        return await self._show(new.name)

    async def change(self, name: str, fields: TeamFields) -> TeamDescription:
        await self.keyring.refresh()
        audit = make_audit_row("teams.change", name, describe_changes(fields))
        await self._teams.change(name, fields, audit=audit)
        return await self._show(name)

    async def remove(self, name: str) -> TeamDescription:
        removed = await self._show(name)
        audit = make_audit_row("teams.remove", name)
        await self._teams.remove(name, audit=audit)
        return removed

    async def _show(self, name: str) -> TeamDescription:
        await self.keyring.refresh()
        return self._teams.describe(self._teams.find(name))


class RemoteTeams(Struct, frozen=True):
    gateway: GatewayClient

    async def list(self) -> list[TeamDescription]:
        return msgspec.json.decode(await self.gateway.get(TEAMS_PATH), type=TeamList).teams

    async def create(self, new: NewTeam) -> TeamDescription:
        return _read_team(await self.gateway.write("POST", TEAMS_PATH, new))

    async def change(self, name: str, fields: TeamFields) -> TeamDescription:
        return _read_team(await self.gateway.write("PATCH", f"{TEAMS_PATH}/{quote(name, safe='')}", fields))

    async def remove(self, name: str) -> TeamDescription:
        return _read_team(await self.gateway.write("DELETE", f"{TEAMS_PATH}/{quote(name, safe='')}"))


LimitAccess = StoredLimitAccess | RemoteLimitAccess
TeamAccess = StoredTeams | RemoteTeams
LIMITS: AdminPart[LimitAccess] = AdminPart(
    LIMITS_PATH, lambda keyring, config: StoredLimitAccess(keyring, tuple(config.providers)), RemoteLimitAccess
)
TEAMS: AdminPart[TeamAccess] = AdminPart(TEAMS_PATH, lambda keyring, config: StoredTeams(keyring), RemoteTeams)


def merge_values(old: Changes, changes: Changes) -> LimitValues:
    """Return limits of which some are replaced; raises InvalidArgument for a value that is no limit."""
    values = {limit: value for limit, value in {**old, **changes}.items() if value is not None}
    try:
        return msgspec.convert(values, LimitValues)
    except msgspec.ValidationError as wrong:
        message, _, name = str(wrong).rstrip("`").partition(" - at `$.")
        raise InvalidArgument(f"{name}: {message}", name) from wrong


def _locate(scope: str, name: str) -> str:
    return f"{LIMITS_PATH}/{quote(scope, safe='')}/{quote(name, safe='')}"


def _read_team(body: bytes) -> TeamDescription:
    return msgspec.json.decode(body, type=TeamDescription)
