"""Keys and admin tokens. A secret is in the response that makes it, and nowhere else."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from msgspec import Struct, convert
from msgspec.structs import asdict

from dragoman.config.settings import DefaultThinking, parse_thinking
from dragoman.net.headers import Header
from dragoman.operate.keys import (
    DEFAULT_GRACE_S,
    VersionMismatch,
    choose_name,
    create_key,
    find_valid_key,
    revoke_key,
    rotate_key,
)
from dragoman.server.api.operations import AdminAudit, EveryWorker
from dragoman.server.api.wire import (
    PAGE,
    Operation,
    Write,
    convert_errors,
    invalid_cursor,
    make_cursor,
    read_version,
)
from dragoman.server.routes import RoutedRequest
from dragoman.tenancy.keys import CreatedKey, Grant, Keyring, KeyRole, KeyRow, Scope, parse_access, read_thinking
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError

MAX_EXPIRY = 253_402_300_799  # the end of the year 9999


class NewKey(Struct, frozen=True, forbid_unknown_fields=True):
    """A key to create; the name is chosen if it is absent."""

    name: str | None = None
    role: Literal["client", "admin"] = "client"
    scopes: tuple[Scope, ...] = ()
    expires_at: int | None = None  # Unix seconds
    default_thinking: str | int | None = None  # low, medium, high, or a budget in tokens


class RotationRequest(Struct, frozen=True, forbid_unknown_fields=True):
    grace_s: int = DEFAULT_GRACE_S


class KeyDescription(Struct, frozen=True, kw_only=True):
    """A key without its secret; times are Unix seconds."""

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


class KeyWithSecret(KeyDescription, frozen=True, kw_only=True):
    """A key with its secret, which is shown only here."""

    secret: str


class KeyPage(Struct, frozen=True):
    keys: list[KeyDescription]
    environment_key: bool
    next: str | None


LIST_KEYS = Operation("List the keys, in the order in which they were made.", (KeyPage,), PAGE)
READ_KEY = Operation("Read a key, by its id or name.", (KeyDescription,), versioning="sent")
CREATE_KEY = Write("Create a key.", (KeyWithSecret,), status=201, versioning="sent", body=NewKey)
ROTATE_KEY = Write("Give a key a new secret.", (KeyWithSecret,), versioning="checked", body=RotationRequest)
REVOKE_KEY = Operation("Revoke a key.", (KeyDescription,), versioning="checked")


class KeysApi:
    """The keys of the store. A token cannot give or take over more than it has."""

    def __init__(self, keyring: Keyring, workers: EveryWorker, audit: AdminAudit) -> None:
        self._keyring = keyring
        self._workers = workers
        self._audit = audit

    @LIST_KEYS.handled_by
    async def list_keys(self, request: RoutedRequest) -> None:
        query = LIST_KEYS.read_query(request)
        limit, position = query.limit(), query.cursor()
        with _convert_errors():
            await self._keyring.touch()  # which is otherwise done once a minute
            rows = await self._keyring.list()
        first = 0 if position is None else _find_next(rows, position)
        page = rows[first : first + limit]
        following = make_cursor(page[-1].id.encode()) if first + limit < len(rows) else None
        described = [_describe_key(row) for row in page]
        LIST_KEYS.respond(request, KeyPage(described, self._keyring.has_fixed_key, following))

    @READ_KEY.handled_by
    async def read_key(self, request: RoutedRequest) -> None:
        READ_KEY.read_query(request)
        row = await self._find(request.rest)
        READ_KEY.respond(request, _describe_key(row), [_etag(row)])

    @CREATE_KEY.handled_by
    async def create_key(self, request: RoutedRequest) -> None:
        new = await CREATE_KEY.read_body(request)
        grant = await self._check_grant(request, new)
        detail = {
            "role": grant.role,
            "scopes": sorted(grant.scopes),
            "expires_at": grant.expires_at,
            "default_thinking": grant.default_thinking,
        }
        with _convert_errors("name"):
            name = new.name if new.name is not None else await choose_name(self._keyring)
        async with self._audit.recording(request, "keys.create", name, detail):
            with _convert_errors("name"):
                created = await create_key(self._keyring, name, grant)
        await self._workers.refresh_keys()
        CREATE_KEY.respond(request, _show_secret(created), [_etag(created.row)])

    @ROTATE_KEY.handled_by
    async def rotate_key(self, request: RoutedRequest) -> None:
        rotation, version = await ROTATE_KEY.read_body(request), read_version(request)
        row = await self._find(request.rest)
        self._check_rights(request, row)
        detail = {"name": row.name, "grace_s": rotation.grace_s}
        async with self._audit.recording(request, "keys.rotate", row.id, detail):
            with _convert_errors("grace_s"):
                created = await rotate_key(self._keyring, row.id, rotation.grace_s, version)
        await self._workers.refresh_keys()
        ROTATE_KEY.respond(request, _show_secret(created), [_etag(created.row)])

    @REVOKE_KEY.handled_by
    async def revoke_key(self, request: RoutedRequest) -> None:
        REVOKE_KEY.read_query(request)
        version = read_version(request)
        row = await self._find(request.rest)
        self._check_rights(request, row)
        async with self._audit.recording(request, "keys.revoke", row.id, {"name": row.name}):
            with _convert_errors("id"):
                revoked = await revoke_key(self._keyring, row.id, version)
        await self._workers.refresh_keys()
        REVOKE_KEY.respond(request, _describe_key(revoked), [_etag(revoked)])

    async def _find(self, name_or_id: str) -> KeyRow:
        with _convert_errors("id"):
            return await find_valid_key(self._keyring, name_or_id)

    async def _check_grant(self, request: RoutedRequest, new: NewKey) -> Grant:
        """Return what the key is granted; raise RequestError if that makes no sense, or is more than the caller has."""
        if new.role == "client" and new.scopes:
            raise BadRequest("/scopes", "Only an admin token has scopes: set role to admin, or leave scopes out.")
        if new.role == "admin" and not new.scopes:
            raise BadRequest("/scopes", f"An admin token needs scopes, some of {', '.join(Scope)}.")
        if new.expires_at is not None and not time.time() < new.expires_at <= MAX_EXPIRY:
            raise BadRequest("/expires_at", "expires_at must be a time in the future, in Unix seconds.")
        missing = [scope for scope in new.scopes if not request.access.may(scope)]
        if missing:
            message = f"This admin token cannot grant what it does not have: {', '.join(missing)}."
            raise RequestError(Failure(Kind.FORBIDDEN, message, code="scope_required", at="/scopes"))
        if request.access.role is KeyRole.ADMIN:
            await self._check_expiry(request, new)
        return Grant(KeyRole(new.role), frozenset(new.scopes), new.expires_at, _check_thinking(new))

    async def _check_expiry(self, request: RoutedRequest, new: NewKey) -> None:
        own = await self._find(request.key)
        if own.expires_at is not None and (new.expires_at is None or new.expires_at > own.expires_at):
            message = f"This admin token expires at {own.expires_at}, so the keys that it makes cannot expire later."
            raise RequestError(Failure(Kind.FORBIDDEN, message, code="scope_required", at="/expires_at"))

    def _check_rights(self, request: RoutedRequest, row: KeyRow) -> None:
        """Raise RequestError if the key may do more than the caller, who would take it over."""
        access = parse_access(row.role, row.scopes)
        if request.access.role is KeyRole.OWNER:
            return
        if access.role is KeyRole.OWNER or not access.scopes <= request.access.scopes:
            message = f'The key "{row.name}" may do more than this admin token, which therefore cannot change it.'
            raise RequestError(Failure(Kind.FORBIDDEN, message, code="scope_required", at="/id"))


def _check_thinking(new: NewKey) -> DefaultThinking | None:
    if new.default_thinking is None:
        return None
    if new.role == "admin":
        raise BadRequest("/default_thinking", "An admin token makes no model requests: leave default_thinking out.")
    try:
        return parse_thinking(new.default_thinking)
    except ValueError as wrong:
        raise BadRequest("/default_thinking", f"default_thinking: {wrong}") from wrong


def _find_next(rows: Sequence[KeyRow], position: bytes) -> int:
    """Return the index after the key that a cursor names: keys are listed as they were made, and never removed."""
    found = [index for index, row in enumerate(rows) if row.id.encode() == position]
    if not found:
        raise invalid_cursor()
    return found[0] + 1


def _describe_key(row: KeyRow) -> KeyDescription:
    return convert(_list_fields(row), KeyDescription)


def _show_secret(created: CreatedKey) -> KeyWithSecret:
    return convert(_list_fields(created.row) | {"secret": created.secret.reveal()}, KeyWithSecret)


def _list_fields(row: KeyRow) -> dict[str, object]:
    return asdict(row) | {"scopes": row.scopes.split(), "default_thinking": read_thinking(row.default_thinking)}


def _etag(row: KeyRow) -> Header:
    return b"etag", f'"{row.version}"'.encode()


@contextmanager
def _convert_errors(field: str | None = None) -> Iterator[None]:
    try:
        with convert_errors(field):
            yield
    except RequestError as error:
        if isinstance(error.__cause__, VersionMismatch):
            raise RequestError(Failure(Kind.CONFLICT, str(error), code="version_mismatch", at="/If-Match")) from None
        raise
