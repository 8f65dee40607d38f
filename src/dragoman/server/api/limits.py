"""Limits over HTTP: all that are set, with what is spent of them; those of the store can be replaced and removed."""

import asyncio

import msgspec

from dragoman.config.limits import LimitValues, to_values
from dragoman.operate.key_fields import check_values
from dragoman.operate.limits import (
    SCOPES,
    Forgiven,
    Forgiveness,
    FoundLimit,
    LimitPage,
    LimitTarget,
    ScopedLimits,
    StoredLimits,
    find_target,
    list_limits,
    read_levels,
)
from dragoman.server.api.operations import AdminAudit, Answer, EveryWorker, PolicyApi
from dragoman.server.api.wire import (
    PAGE,
    Operation,
    QueryParameter,
    Write,
    choice_parameter,
    convert_errors,
    forbid_field,
    invalid_cursor,
    make_cursor,
    make_etag,
    read_version,
    text_parameter,
)
from dragoman.server.routes import RoutedRequest
from dragoman.store.limit_tables import ALL, EACH, EACH_USER, KEY, TEAM, USER
from dragoman.translate.hub.failure import BadRequest

EFFECTIVE = "effective"


LIST_LIMITS = Operation(
    "List the limits that are set, and how much of each is spent and reserved.",
    (LimitPage,),
    (
        choice_parameter("scope", "Only of this scope.", SCOPES),
        text_parameter("name", "Only of the team, user, key or providers of this name."),
        QueryParameter(
            EFFECTIVE, "1: of users and keys what they get by default, instead of the defaults.", {"enum": ["0", "1"]}
        ),
        *PAGE,
    ),
)
READ_LIMITS = Operation("Read the limits that the store has for a scope.", (StoredLimits,), versioning="sent")
SET_LIMITS = Write(
    "Replace the limits that the store has for a scope; those that are not there are removed.",
    (StoredLimits,),
    versioning="checked",
    body=LimitValues,
)
REMOVE_LIMITS = Operation("Remove the limits that the store has for a scope.", (StoredLimits,), versioning="checked")
FORGIVE = Write(
    "Forgive a part of what was spent, permanently or until a given time.",
    (Forgiven,),
    versioning="none",
    body=Forgiveness,
    repeatable=True,
)


class LimitsApi(PolicyApi):
    """The limits of the file and the store; a token of one team sees and changes those of that team only."""

    def __init__(self, workers: EveryWorker, audit: AdminAudit) -> None:
        super().__init__(workers, audit)
        self._limits = ScopedLimits(self._keyring.store, self._policies)

    @LIST_LIMITS.handled_by
    async def list_limits(self, request: RoutedRequest) -> None:
        query = LIST_LIMITS.read_query(request)
        scope, name, is_effective = query.text("scope"), query.text("name"), query.flag(EFFECTIVE)
        if scope is not None and scope not in SCOPES:
            raise BadRequest("/scope", f"scope must be one of {', '.join(SCOPES)}, got {scope[:80]!r}.")
        limit, position = query.limit(), _parse_position(query.cursor())
        await self._refresh()

        def find() -> list[FoundLimit]:
            found = list_limits(self._policies, scope, name, effective=is_effective)
            return [one for one in found if self._is_visible(request, one.target)]

        found = await asyncio.to_thread(find)  # with very many keys it takes a second
        page = found[position : position + limit]
        following = position + limit
        with convert_errors():
            listed = await read_levels(self._policies, self._workers.meter, page)
        more = make_cursor(following.to_bytes(8, "big")) if following < len(found) else None
        LIST_LIMITS.respond(request, LimitPage(listed, more))

    @READ_LIMITS.handled_by
    async def read_limits(self, request: RoutedRequest) -> None:
        READ_LIMITS.read_query(request)
        target = await self._find(request)
        with convert_errors():
            found = await self._limits.read(target)
        READ_LIMITS.respond(request, found, [make_etag(found.version)])

    @SET_LIMITS.handled_by
    async def set_limits(self, request: RoutedRequest) -> None:
        values, version = await SET_LIMITS.read_body(request), read_version(request)
        target = await self._find(request)
        with convert_errors():
            limits = check_values(values)
        detail = {"name": target.name, "limits": to_values(limits)}
        async with self._audit.changing(request, "limits.set", f"{target.scope}:{target.id}", detail) as audit:
            with convert_errors("limits"):
                stored = await self._limits.replace(target, limits, version, audit)
        await self._publish()
        SET_LIMITS.respond(request, stored, [make_etag(stored.version)])

    @REMOVE_LIMITS.handled_by
    async def remove_limits(self, request: RoutedRequest) -> None:
        REMOVE_LIMITS.read_query(request)
        version = read_version(request)
        target = await self._find(request)
        detail = {"name": target.name}
        async with self._audit.changing(request, "limits.remove", f"{target.scope}:{target.id}", detail) as audit:
            with convert_errors("name"):
                stored = await self._limits.remove(target, version, audit)
        await self._publish()
        REMOVE_LIMITS.respond(request, stored, [make_etag(stored.version)])

    @FORGIVE.handled_by
    async def forgive(self, request: RoutedRequest) -> None:
        given = await FORGIVE.read_body(request)
        target = await self._find(request)

        async def write() -> Answer:
            detail = {"name": target.name} | msgspec.to_builtins(given)
            subject = f"{target.scope}:{target.id}"
            async with self._audit.changing(request, "limits.forgive", subject, detail) as audit:
                with convert_errors("usd"):
                    forgiven = await self._limits.forgive(target, given, audit)
            body = msgspec.json.encode(forgiven)
            return Answer(body, body)

        await self._repeatable.respond(request, FORGIVE.status, given, write)

    async def _find(self, request: RoutedRequest) -> LimitTarget:
        await self._refresh()
        scope, _, name = request.rest.partition("/")
        with convert_errors("name"):
            target = find_target(self._policies, self._workers.gateway.runtime.providers, scope or ALL, name)
        if not self._is_visible(request, target):
            raise forbid_field(f'This admin token is limited to the team "{request.access.team}".', "name")
        return target

    def _is_visible(self, request: RoutedRequest, target: LimitTarget) -> bool:
        """Return whether a token of one team may see and change this: the team, its users and its keys."""
        team = request.access.team
        if not team:
            return True
        match target.scope:
            case scope if scope in (TEAM, EACH_USER):
                return target.id == team
            case scope if scope == USER and target.id != EACH:
                return self._policies.find_team_of_user(target.id) == team
            case scope if scope == KEY:
                key = self._policies.find_key(target.id)
                return key is not None and self._policies.find_team(key) == team
        return False


def _parse_position(position: bytes | None) -> int:
    if position is None:
        return 0
    if len(position) != 8:
        raise invalid_cursor()
    return int.from_bytes(position, "big")
