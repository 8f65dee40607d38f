"""Create, list, rotate and revoke client keys, in the configured store or through the gateway that runs here.

The owner's key also makes the link that opens the console of that gateway.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.secret import Secret
from dragoman.config.settings import CONSOLE_VARIABLE, Config, find_console_state, is_loopback
from dragoman.operate import AdminError, Conflict, InvalidArgument, NotFound, VersionMismatch
from dragoman.operate.admin_access import AdminPart
from dragoman.operate.admin_access import open_keyring as open_keyring
from dragoman.operate.gateway.running_gateway import GatewayClient, accepts_key
from dragoman.operate.key_fields import KeyFields, check_grant, describe_fields, describe_grant, make_change
from dragoman.store import open_store
from dragoman.store.audit import AuditRow, make_audit_row
from dragoman.store.client_keys import KeyChange
from dragoman.tenancy.console_sessions import ConsoleSessions, console_address
from dragoman.tenancy.keys import CLIENT_GRANT, CreatedKey, Grant, Keyring, KeyRow, NameTaken, UnknownKey
from dragoman.tenancy.policies import KeySettings, encode_settings

ACCEPT_TIMEOUT_S = 5.0
ACCEPT_POLL_S = 0.1
MAX_GRACE_S = 7 * 86_400
DEFAULT_GRACE_S = 86_400
REVOKE_S = 0.8  # longer than the pause between two reads of the store by a gateway
PATH = "/api/v1/keys"
NO_OWNER = (
    "Signing in needs the owner's key. Set $DRAGOMAN_API_KEY to the key that the gateway was started with, "
    "or open {root}/console and sign in with a key."
)


class KeyAcceptance(Struct, frozen=True):
    """Whether the gateway that runs here accepts a key; `root` is None where none runs."""

    root: str | None
    is_accepted: bool


class KeyEditor(Struct, frozen=True):
    """The keys of a store, as an operator creates and changes them."""

    keyring: Keyring

    async def create(self, name: str | None, grant: Grant = CLIENT_GRANT, audit: AuditRow | None = None) -> CreatedKey:
        """Create a key; without a name it becomes key-1, key-2 and so on."""
        try:
            return await self.keyring.create(name if name is not None else await self.choose_name(), grant, audit)
        except NameTaken as taken:
            raise Conflict(
                f'A key named "{taken}" already exists. Choose another name, or revoke that key first.'
            ) from taken
        except ValueError as error:
            raise InvalidArgument(str(error)) from error

    async def change(
        self, row: KeyRow, change: KeyChange, version: int | None = None, audit: AuditRow | None = None
    ) -> KeyRow:
        """Change a key that is still as in `row`, and as the caller knows it, if that says a version."""
        try:
            if version not in (None, row.version):
                raise UnknownKey(row.id)
            return await self.keyring.change(row, change, audit)
        except UnknownKey as unknown:
            raise await self._explain_unknown(row.id) from unknown

    async def revoke(
        self,
        name_or_id: str,
        version: int | None = None,
        audit: AuditRow | None = None,
        *,
        ends_requests: bool = False,
    ) -> KeyRow:
        """Revoke a key; gateways of the same store reject it within REVOKE_S, and end its requests if they are to."""
        try:
            return await self.keyring.revoke(name_or_id, version, audit, ends_requests=ends_requests)
        except UnknownKey as unknown:
            raise await self._explain_unknown(name_or_id) from unknown

    async def rotate(
        self, name_or_id: str, grace_s: int, version: int | None = None, audit: AuditRow | None = None
    ) -> CreatedKey:
        """Give a key a new secret; the old one is accepted for another `grace_s`, 0 to MAX_GRACE_S."""
        if not 0 <= grace_s <= MAX_GRACE_S:
            raise InvalidArgument(f"The grace must be between 0 and {MAX_GRACE_S} seconds (7 days), not {grace_s}.")
        row = await self.find(name_or_id)
        try:
            return await self.keyring.rotate(row, grace_s, version, audit)
        except UnknownKey as unknown:
            raise await self._explain_unknown(name_or_id) from unknown

    async def find(self, name_or_id: str) -> KeyRow:
        """Return the key that is not revoked and has this id, or else this name."""
        rows = [row for row in await self.keyring.list() if row.revoked_at is None and name_or_id in (row.id, row.name)]
        if not rows:
            raise NotFound(f'There is no valid key "{name_or_id}". `dragoman keys list` shows all.')
        return next((row for row in rows if row.id == name_or_id), rows[0])

    async def _explain_unknown(self, name_or_id: str) -> AdminError:
        try:
            row = await self.find(name_or_id)
        except NotFound as unknown:
            return unknown
        return VersionMismatch(f'The key "{row.name}" was changed since you read it; it has version {row.version} now.')

    async def choose_name(self) -> str:
        """Return a name that no key has."""
        taken = {row.name for row in await self.keyring.list()}
        number = len(taken) + 1
        while f"key-{number}" in taken:
            number += 1
        return f"key-{number}"


def describe_revocation(row: KeyRow, ends_requests: bool) -> dict[str, object]:
    """Return what the audit log has of a revocation."""
    return {"name": row.name, "now": True} if ends_requests else {"name": row.name}


async def find_key(config: Config, secret: Secret) -> KeyRow | None:
    """Return the stored key with this secret, valid or revoked."""
    async with open_keyring(config) as keyring:
        return await keyring.find(secret)


async def check_with_gateway(root: str | None, secret: Secret) -> KeyAcceptance:
    """Ask the gateway at an address, if there is one, whether it accepts a key."""
    return KeyAcceptance(root, root is not None and await accepts_key(root, secret.reveal()))


async def wait_until_accepted(root: str | None, secret: Secret) -> KeyAcceptance:
    """Wait until the running gateway accepts a new key; one with another store never does."""
    deadline = time.monotonic() + ACCEPT_TIMEOUT_S
    while root is not None and not await accepts_key(root, secret.reveal()):
        if time.monotonic() > deadline:
            return KeyAcceptance(root, is_accepted=False)
        await asyncio.sleep(ACCEPT_POLL_S)
    return KeyAcceptance(root, root is not None)


async def wait_until_rejected(root: str | None) -> None:
    """Wait until a running gateway has read from the store that a key is revoked."""
    if root is not None:
        await asyncio.sleep(REVOKE_S)


class StoredKeys(Struct, frozen=True):
    """Keys in a store, which gateways read within a second."""

    keyring: Keyring

    @property
    def _keys(self) -> KeyEditor:
        return KeyEditor(self.keyring)

    async def create(self, name: str | None, grant: Grant = CLIENT_GRANT) -> CreatedKey:
        await self.keyring.refresh()
        check_grant(self.keyring.policies, grant)
        name = name if name is not None else await self._keys.choose_name()
        audit = make_audit_row("keys.create", name, describe_grant(grant))
        return await self._keys.create(name, grant, audit)

    async def change(self, name_or_id: str, fields: KeyFields) -> KeyRow:
        await self.keyring.refresh()
        row = await self._keys.find(name_or_id)
        change = make_change(self.keyring.policies, row, fields)
        audit = make_audit_row("keys.change", row.id, {"name": row.name} | describe_fields(fields))
        return await self._keys.change(row, change, audit=audit)

    async def list(self) -> tuple[KeyRow, ...]:
        await self.keyring.refresh()
        return tuple(self._name_team(row) for row in await self.keyring.list())

    async def find(self, name_or_id: str) -> KeyRow:
        await self.keyring.refresh()
        return self._name_team(await self._keys.find(name_or_id))

    def _name_team(self, row: KeyRow) -> KeyRow:
        """Return a key with the team that it belongs to, which may be its user's."""
        return replace(row, team=self.keyring.policies.find_team(row))

    async def revoke(self, name_or_id: str, *, ends_requests: bool = False) -> KeyRow:
        row = await self._keys.find(name_or_id)
        audit = make_audit_row("keys.revoke", row.id, describe_revocation(row, ends_requests))
        return await self._keys.revoke(row.id, audit=audit, ends_requests=ends_requests)

    async def rotate(self, name_or_id: str, grace_s: int) -> CreatedKey:
        row = await self._keys.find(name_or_id)
        audit = make_audit_row("keys.rotate", row.id, {"name": row.name, "grace_s": grace_s})
        return await self._keys.rotate(row.id, grace_s, audit=audit)


class RemoteKeys(Struct, frozen=True):
    """Keys of a gateway, which writes into its audit log who changed them."""

    gateway: GatewayClient

    async def create(self, name: str | None, grant: Grant = CLIENT_GRANT) -> CreatedKey:
        body: dict[str, object] = {
            "name": name,
            "role": grant.role.value,
            "scopes": sorted(grant.scopes),
            "expires_at": grant.expires_at,
        }
        # What older gateways do not know is sent only if it is set.
        body |= {name: value for name, value in describe_grant(grant).items() if name not in body and value}
        return _parse_created(await self.gateway.write("POST", PATH, body))

    async def change(self, name_or_id: str, fields: KeyFields) -> KeyRow:
        path = f"{PATH}/{quote(name_or_id, safe='')}"
        return _read_row(await self.gateway.write("PATCH", path, fields))

    async def list(self) -> tuple[KeyRow, ...]:
        return tuple([_make_row(key) async for page in self.gateway.read_pages(PATH, _KeyPage) for key in page.keys])

    async def find(self, name_or_id: str) -> KeyRow:
        return _read_row(await self.gateway.get(f"{PATH}/{quote(name_or_id, safe='')}"))

    async def revoke(self, name_or_id: str, *, ends_requests: bool = False) -> KeyRow:
        query = "?now=1" if ends_requests else ""
        return _read_row(await self.gateway.write("DELETE", f"{PATH}/{quote(name_or_id, safe='')}{query}"))

    async def rotate(self, name_or_id: str, grace_s: int) -> CreatedKey:
        path = f"{PATH}/{quote(name_or_id, safe='')}/rotate"
        return _parse_created(await self.gateway.write("POST", path, {"grace_s": grace_s}))


KeyAccess = StoredKeys | RemoteKeys
KEYS: AdminPart[KeyAccess] = AdminPart(PATH, lambda keyring, config: StoredKeys(keyring), RemoteKeys)


class _KeyPage(Struct):
    keys: list[dict[str, object]]
    next: str | None = None


def _read_row(body: bytes) -> KeyRow:
    return _make_row(msgspec.json.decode(body, type=dict[str, object]))


def _make_row(key: Mapping[str, object]) -> KeyRow:
    """Return a key as the admin API describes it. Older gateways leave out what they do not know."""
    scopes, thinking = msgspec.convert(key.get("scopes", ()), list[str]), key.get("default_thinking")
    stored: dict[str, object] = {
        "scopes": " ".join(scopes),
        "default_thinking": None if thinking is None else str(thinking),
        "settings": encode_settings(msgspec.convert(key, KeySettings)),
    }
    return msgspec.convert({"revoked_at": None, "last_used_at": None, **key, **stored}, KeyRow)


def _parse_created(body: bytes) -> CreatedKey:
    key = msgspec.json.decode(body, type=dict[str, object])
    return CreatedKey(_make_row(key), Secret(str(key.get("secret", ""))))


async def make_console_link(config: Config, root: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the address that signs the owner in once, within 60 s, at a gateway with the configured store.

    Raises AdminError if there is no console.
    """
    state = find_console_state(config, environ)
    if not state.is_on:
        raise AdminError(state.problem or f"The console is off: console.enabled is false, or ${CONSOLE_VARIABLE} is 0.")
    if not is_loopback(config.server.host):
        raise AdminError("Open the console at the address of your reverse proxy, and sign in there with a key.")
    async with await open_store(config.store.url) as store:
        keyring = Keyring(store, config.client_key)
        await keyring.refresh()
        token = await ConsoleSessions(store, keyring).make_link()
    if token is None:
        raise AdminError(NO_OWNER.format(root=root))
    return console_address(root, token)
