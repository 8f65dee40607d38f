"""Keys and admin tokens. A secret is only in the response that creates it."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType, convert
from msgspec.structs import asdict, replace

from dragoman.config.limits import to_values
from dragoman.config.settings import DefaultThinking
from dragoman.operate.key_fields import KeyFields, check_grant, describe_fields, describe_grant, make_change, make_grant
from dragoman.operate.keys import (
    DEFAULT_GRACE_S,
    KeyEditor,
    describe_revocation,
)
from dragoman.server.api.operations import AdminAudit, Answer, EveryWorker, PolicyApi
from dragoman.server.api.wire import (
    PAGE,
    Operation,
    QueryParameter,
    Write,
    convert_errors,
    forbid_field,
    invalid_cursor,
    make_cursor,
    make_etag,
    read_version,
)
from dragoman.server.routes import RoutedRequest
from dragoman.store.limit_tables import KEY
from dragoman.tenancy.keys import (
    CreatedKey,
    Grant,
    KeyRole,
    KeyRow,
    Scope,
    parse_access,
    read_thinking,
)
from dragoman.tenancy.policies import CaptureSetting, read_settings
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError


class NewKey(KeyFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to create; the name is chosen if it is absent."""

    name: str | None = None
    role: Literal["client", "admin"] = "client"
    scopes: tuple[Scope, ...] = ()


NOW = "now"


class RotationRequest(Struct, frozen=True, forbid_unknown_fields=True):
    grace_s: int = DEFAULT_GRACE_S


class KeyDescription(Struct, frozen=True, kw_only=True):
    """A key without its secret; times are Unix seconds. `team` is that of its user, or else its own."""

    id: str
    name: str
    prefix: str
    last4: str
    created_at: int
    revoked_at: int | None
    last_used_at: int | None
    role: str
    scopes: list[str]
    expires_at: int | None
    old_secret_until: int | None
    version: int
    default_thinking: DefaultThinking | None
    user: str
    team: str
    models: tuple[str, ...]
    providers: tuple[str, ...]
    default_model: str
    strict: bool
    capture: CaptureSetting
    max_output_tokens: int | None
    metadata: dict[str, str]
    limits: dict[str, int | float]  # its own, in their units


class KeyWithSecret(KeyDescription, frozen=True, kw_only=True):
    """A key with its secret, which is shown only here."""

    secret: str


class KeyPage(Struct, frozen=True):
    keys: list[KeyDescription]
    environment_key: bool
    next: str | None


LIST_KEYS = Operation("List the keys, oldest first.", (KeyPage,), PAGE)
READ_KEY = Operation("Read a key, by its id or name.", (KeyDescription,), versioning="sent")
CREATE_KEY = Write(
    "Create a key.",
    (KeyWithSecret, KeyDescription),
    status=201,
    versioning="sent",
    body=NewKey,
    repeatable=True,
)
CHANGE_KEY = Write("Change what is set for a key.", (KeyDescription,), versioning="checked", body=KeyFields)
ROTATE_KEY = Write(
    "Give a key a new secret.",
    (KeyWithSecret, KeyDescription),
    versioning="checked",
    body=RotationRequest,
    repeatable=True,
)
REVOKE_KEY = Operation(
    "Revoke a key.",
    (KeyDescription,),
    (QueryParameter(NOW, "1: also end its running requests, in all gateways of the store.", {"enum": ["0", "1"]}),),
    versioning="checked",
)


class KeysApi(PolicyApi):
    """The keys of the store. A token cannot give or take over more than it has, or leave its team."""

    def __init__(self, workers: EveryWorker, audit: AdminAudit) -> None:
        super().__init__(workers, audit)
        self._keys = KeyEditor(self._keyring)

    @LIST_KEYS.handled_by
    async def list_keys(self, request: RoutedRequest) -> None:
        query = LIST_KEYS.read_query(request)
        limit, position = query.limit(), query.cursor()
        with convert_errors():
            await self._keyring.touch()  # which is otherwise done once a minute
            rows = [row for row in await self._keyring.list() if self._is_visible(request, row)]
        first = 0 if position is None else _find_next(rows, position)
        page = rows[first : first + limit]
        following = make_cursor(page[-1].id.encode()) if first + limit < len(rows) else None
        described = [self._describe(row) for row in page]
        has_fixed_key = self._keyring.has_fixed_key and not request.access.team
        LIST_KEYS.respond(request, KeyPage(described, has_fixed_key, following))

    @READ_KEY.handled_by
    async def read_key(self, request: RoutedRequest) -> None:
        READ_KEY.read_query(request)
        row = await self._find(request)
        READ_KEY.respond(request, self._describe(row), [make_etag(row.version)])

    @CREATE_KEY.handled_by
    async def create_key(self, request: RoutedRequest) -> None:
        new = await CREATE_KEY.read_body(request)
        grant = await self._check_grant(request, new)

        async def create() -> Answer:
            with convert_errors("name"):
                name = new.name if new.name is not None else await self._keys.choose_name()
            async with self._audit.changing(request, "keys.create", name, describe_grant(grant)) as row:
                with convert_errors("name"):
                    created = await self._keys.create(name, grant, row)
            await self._workers.refresh_keys()
            return self._answer(created)

        await self._repeatable.respond(request, CREATE_KEY.status, new, create)

    @CHANGE_KEY.handled_by
    async def change_key(self, request: RoutedRequest) -> None:
        fields, version = await CHANGE_KEY.read_body(request), read_version(request)
        row = await self._find(request)
        self._check_rights(request, row)
        if row.id == request.key:
            raise forbid_field("A token cannot change itself.", "id")
        fields = await self._check_fields(request, fields)
        with convert_errors():
            change = make_change(self._policies, row, fields)
        detail = {"name": row.name} | describe_fields(fields)
        async with self._audit.changing(request, "keys.change", row.id, detail) as audit:
            with convert_errors("id"):
                changed = await self._keys.change(row, change, version, audit)
        await self._workers.refresh_keys()
        CHANGE_KEY.respond(request, self._describe(changed), [make_etag(changed.version)])

    @ROTATE_KEY.handled_by
    async def rotate_key(self, request: RoutedRequest) -> None:
        rotation, version = await ROTATE_KEY.read_body(request), read_version(request)
        row = await self._find(request)
        self._check_rights(request, row)

        async def rotate() -> Answer:
            detail = {"name": row.name, "grace_s": rotation.grace_s}
            async with self._audit.changing(request, "keys.rotate", row.id, detail) as audit:
                with convert_errors("grace_s"):
                    created = await self._keys.rotate(row.id, rotation.grace_s, version, audit)
            await self._workers.refresh_keys()
            return self._answer(created)

        await self._repeatable.respond(request, ROTATE_KEY.status, rotation, rotate)

    @REVOKE_KEY.handled_by
    async def revoke_key(self, request: RoutedRequest) -> None:
        ends_requests = REVOKE_KEY.read_query(request).flag(NOW)
        version = read_version(request)
        row = await self._find(request)
        self._check_rights(request, row)
        detail = describe_revocation(row, ends_requests)
        async with self._audit.changing(request, "keys.revoke", row.id, detail) as audit:
            with convert_errors("id"):
                revoked = await self._keys.revoke(row.id, version, audit, ends_requests=ends_requests)
        await self._workers.refresh_keys()
        REVOKE_KEY.respond(request, self._describe(revoked), [make_etag(revoked.version)])

    async def _find(self, request: RoutedRequest) -> KeyRow:
        with convert_errors("id"):
            row = await self._keys.find(request.rest)
        if not self._is_visible(request, row):
            message = f'There is no valid key "{request.rest}" in the team of this admin token.'
            raise RequestError(Failure(Kind.NOT_FOUND, message, at="/id"))
        return row

    def _is_visible(self, request: RoutedRequest, row: KeyRow) -> bool:
        team = request.access.team
        return not team or team == self._policies.find_team(row)

    async def _check_grant(self, request: RoutedRequest, new: NewKey) -> Grant:
        """Return what the key is granted; raise RequestError if that makes no sense, or is more than the caller has."""
        if new.role == "client" and new.scopes:
            raise BadRequest("/scopes", "Only an admin token has scopes: set role to admin, or leave scopes out.")
        if new.role == "admin" and not new.scopes:
            raise BadRequest("/scopes", f"An admin token needs scopes, some of {', '.join(Scope)}.")
        missing = [scope for scope in new.scopes if not request.access.may(scope)]
        if missing:
            raise forbid_field(f"This admin token cannot grant what it does not have: {', '.join(missing)}.", "scopes")
        if request.access.role is KeyRole.ADMIN:
            await self._check_expiry(request, new.expires_at or None)
        fields = await self._check_fields(request, new)
        with convert_errors():
            grant = replace(make_grant(self._policies, KeyRole(new.role), fields), scopes=frozenset(new.scopes))
            check_grant(self._policies, grant)
        return grant

    async def _check_fields(self, request: RoutedRequest, fields: KeyFields) -> KeyFields:
        """Return what is to be set, in the caller's team; raise RequestError if the caller may not set it."""
        access = request.access
        if fields.limits is not UNSET and not access.may(Scope.LIMITS_WRITE):
            raise forbid_field(f"This admin token does not have the scope {Scope.LIMITS_WRITE}.", "limits")
        if access.role is KeyRole.ADMIN and not isinstance(fields.expires_at, UnsetType):
            await self._check_expiry(request, fields.expires_at)
        if not access.team:
            return fields
        if fields.team not in (UNSET, access.team):
            raise forbid_field(f'This admin token is limited to the team "{access.team}".', "team")
        await self._check_users(request, [fields.user] if isinstance(fields.user, str) and fields.user else (), "user")
        return replace(fields, team=access.team)

    async def _check_expiry(self, request: RoutedRequest, expires_at: int | UnsetType | None) -> None:
        with convert_errors("id"):
            own = await self._keys.find(request.key)
        if own.expires_at is None or (isinstance(expires_at, int) and expires_at <= own.expires_at):
            return
        message = f"This admin token expires at {own.expires_at}, so the keys that it makes cannot expire later."
        raise forbid_field(message, "expires_at")

    def _check_rights(self, request: RoutedRequest, row: KeyRow) -> None:
        """Raise RequestError if the key may do more than the caller, who would take it over."""
        access = parse_access(row.role, row.scopes)
        if request.access.role is KeyRole.OWNER:
            return
        if access.role is KeyRole.OWNER or not access.scopes <= request.access.scopes:
            raise forbid_field(f'The key "{row.name}" may do more than this admin token, which cannot change it.', "id")

    def _describe(self, row: KeyRow) -> KeyDescription:
        return convert(self._list_fields(row), KeyDescription)

    def _answer(self, created: CreatedKey) -> Answer:
        fields = self._list_fields(created.row)
        shown = convert(fields | {"secret": created.secret.reveal()}, KeyWithSecret)
        kept = convert(fields, KeyDescription)
        return Answer(msgspec.json.encode(shown), msgspec.json.encode(kept), f'"{created.row.version}"')

    def _list_fields(self, row: KeyRow) -> dict[str, object]:
        return (
            asdict(row)
            | {"scopes": row.scopes.split(), "default_thinking": read_thinking(row.default_thinking)}
            | asdict(read_settings(row.settings))
            | {"team": self._policies.find_team(row), "limits": to_values(self._policies.find_limits(KEY, row.id))}
        )


def _find_next(rows: Sequence[KeyRow], position: bytes) -> int:
    """Return the index after the key that a cursor names: keys are listed as they were made, and never removed."""
    found = [index for index, row in enumerate(rows) if row.id.encode() == position]
    if not found:
        raise invalid_cursor()
    return found[0] + 1
