"""Teams over HTTP. Those of the file can be read only."""

import asyncio

import msgspec
from msgspec import UNSET

from dragoman.operate.key_fields import pick
from dragoman.operate.teams import (
    NewTeam,
    TeamDescription,
    TeamFields,
    TeamList,
    Teams,
    describe_changes,
)
from dragoman.server.api.operations import AdminAudit, Answer, EveryWorker, PolicyApi
from dragoman.server.api.wire import Operation, Write, convert_errors, forbid_field, make_etag, read_version
from dragoman.server.routes import RoutedRequest
from dragoman.tenancy.keys import Scope
from dragoman.tenancy.policies import Team
from dragoman.translate.hub.failure import Failure, Kind, RequestError

LIST_TEAMS = Operation("List the teams, those of the file last.", (TeamList,))
READ_TEAM = Operation("Read a team.", (TeamDescription,), versioning="sent")
CREATE_TEAM = Write("Create a team.", (TeamDescription,), status=201, versioning="sent", body=NewTeam, repeatable=True)
CHANGE_TEAM = Write("Change what is set for a team.", (TeamDescription,), versioning="checked", body=TeamFields)
REMOVE_TEAM = Operation("Remove a team that has no keys, with its limits.", (TeamDescription,), versioning="checked")


class TeamsApi(PolicyApi):
    """The teams of the file and the store; a token of one team sees and changes that team only."""

    def __init__(self, workers: EveryWorker, audit: AdminAudit) -> None:
        super().__init__(workers, audit)
        self._teams = Teams(self._keyring.store, self._policies)

    @LIST_TEAMS.handled_by
    async def list_teams(self, request: RoutedRequest) -> None:
        LIST_TEAMS.read_query(request)
        await self._refresh()
        own = request.access.team
        teams = await asyncio.to_thread(self._teams.list)  # there may be very many, and each may have very many keys
        LIST_TEAMS.respond(request, TeamList([team for team in teams if own in ("", team.name)]))

    @READ_TEAM.handled_by
    async def read_team(self, request: RoutedRequest) -> None:
        READ_TEAM.read_query(request)
        team = await self._find(request)
        READ_TEAM.respond(request, self._teams.describe(team), [make_etag(team.row.version)])

    @CREATE_TEAM.handled_by
    async def create_team(self, request: RoutedRequest) -> None:
        new = await CREATE_TEAM.read_body(request)
        if request.access.team:
            raise forbid_field(f'This admin token is limited to the team "{request.access.team}".', "name")
        _check_limits_scope(request, new)
        await self._refresh()

        async def create() -> Answer:
            async with self._audit.changing(request, "teams.create", new.name, describe_changes(new)) as audit:
                with convert_errors("name"):
                    await self._teams.create(new, audit)
            await self._publish()
            with convert_errors():
                team = self._teams.find(new.name)
            body = msgspec.json.encode(self._teams.describe(team))
            return Answer(body, body, f'"{team.row.version}"')

        await self._repeatable.respond(request, CREATE_TEAM.status, new, create)

    @CHANGE_TEAM.handled_by
    async def change_team(self, request: RoutedRequest) -> None:
        fields, version = await CHANGE_TEAM.read_body(request), read_version(request)
        _check_limits_scope(request, fields)
        team = await self._find(request)
        await self._check_users(request, pick(fields.members, ()) or (), "members")
        async with self._audit.changing(request, "teams.change", team.name, describe_changes(fields)) as audit:
            with convert_errors("id"):
                await self._teams.change(team.name, fields, version, audit)
        await self._publish()
        changed = await self._find(request)
        CHANGE_TEAM.respond(request, self._teams.describe(changed), [make_etag(changed.row.version)])

    @REMOVE_TEAM.handled_by
    async def remove_team(self, request: RoutedRequest) -> None:
        REMOVE_TEAM.read_query(request)
        version = read_version(request)
        team = await self._find(request)
        removed = self._teams.describe(team)
        async with self._audit.changing(request, "teams.remove", team.name) as audit:
            with convert_errors("id"):
                await self._teams.remove(team.name, version, audit)
        await self._publish()
        REMOVE_TEAM.respond(request, removed, [make_etag(removed.version)])

    async def _find(self, request: RoutedRequest) -> Team:
        await self._refresh()
        name = request.rest
        if request.access.team not in ("", name):
            message = f'There is no team "{name}" that this admin token may see.'
            raise RequestError(Failure(Kind.NOT_FOUND, message, at="/id"))
        with convert_errors("id"):
            return self._teams.find(name)


def _check_limits_scope(request: RoutedRequest, fields: TeamFields) -> None:
    """Raise RequestError if limits are set by a token that may not."""
    if (fields.limits, fields.each_user) != (UNSET, UNSET) and not request.access.may(Scope.LIMITS_WRITE):
        raise forbid_field(f"This admin token does not have the scope {Scope.LIMITS_WRITE}.", "limits")
