"""Create, list, rotate and revoke client keys, in the configured store or through the gateway that runs here.

The owner's key also makes the link that opens the console of that gateway.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol
from urllib.parse import quote

import msgspec
from msgspec import Struct, field

from dragoman.config.secret import Secret
from dragoman.config.settings import CONSOLE_VARIABLE, Config, find_console_state, is_loopback
from dragoman.net.client import ConnectionLost, HttpClient, SizeLimitExceeded, UpstreamTimeout
from dragoman.operate import AdminError, Conflict, InvalidArgument, NotFound
from dragoman.operate.gateway.running_gateway import GatewayClient, GatewayRefused, accepts_key
from dragoman.store import open_store
from dragoman.tenancy.console_sessions import ConsoleSessions, console_address
from dragoman.tenancy.keys import CLIENT_GRANT, CreatedKey, Grant, KeyId, Keyring, KeyRow, NameTaken, UnknownKey
from dragoman.translate.framing.jsonread import JSON_ERRORS

ACCEPT_TIMEOUT_S = 5.0
ACCEPT_POLL_S = 0.1
MAX_GRACE_S = 7 * 86_400
DEFAULT_GRACE_S = 86_400
REVOKE_S = 0.8  # longer than the pause between two reads of the store by a gateway
PATH = "/api/v1/keys"
NO_ADMIN_STATUSES = (401, 403, 404)  # the key in this shell is not an admin's there, or the gateway has no such path
NO_OWNER = (
    "Signing in needs the owner's key. Set $DRAGOMAN_API_KEY to the key that the gateway was started with, "
    "or open {root}/console and sign in with a key."
)


class KeyAcceptance(Struct, frozen=True):
    """Whether the gateway that runs here accepts a key; `root` is None where none runs."""

    root: str | None
    is_accepted: bool


class VersionMismatch(AdminError):
    """The key was changed since the caller has read it."""


@asynccontextmanager
async def open_keyring(config: Config) -> AsyncIterator[Keyring]:
    """Open the keys of the configured store."""
    async with await open_store(config.store.url) as store:
        yield Keyring(store)


async def create_key(keyring: Keyring, name: str | None, grant: Grant = CLIENT_GRANT) -> CreatedKey:
    """Create a key; without a name it becomes key-1, key-2 and so on."""
    try:
        return await keyring.create(name if name is not None else await choose_name(keyring), grant)
    except NameTaken as taken:
        raise Conflict(
            f'A key named "{taken}" exists already. Choose another name, or revoke that key first.'
        ) from taken
    except ValueError as error:
        raise InvalidArgument(str(error)) from error


async def revoke_key(keyring: Keyring, name_or_id: str, version: int | None = None) -> KeyRow:
    """Revoke a key; gateways that use the same store reject it within REVOKE_S."""
    try:
        return await keyring.revoke(name_or_id, version)
    except UnknownKey as unknown:
        raise await _explain_unknown(keyring, name_or_id) from unknown


async def rotate_key(keyring: Keyring, name_or_id: str, grace_s: int, version: int | None = None) -> CreatedKey:
    """Give a key a new secret; the old one is accepted for another `grace_s`, 0 to MAX_GRACE_S."""
    if not 0 <= grace_s <= MAX_GRACE_S:
        raise InvalidArgument(f"The grace must be between 0 and {MAX_GRACE_S} seconds (7 days), not {grace_s}.")
    row = await find_valid_key(keyring, name_or_id)
    try:
        return await keyring.rotate(row, grace_s, version)
    except UnknownKey as unknown:
        raise await _explain_unknown(keyring, name_or_id) from unknown


async def find_valid_key(keyring: Keyring, name_or_id: str) -> KeyRow:
    """Return the key that is not revoked and has this id, or else this name."""
    rows = [row for row in await keyring.list() if row.revoked_at is None and name_or_id in (row.id, row.name)]
    if not rows:
        raise NotFound(f'There is no valid key "{name_or_id}". `dragoman keys list` shows all.')
    return next((row for row in rows if row.id == name_or_id), rows[0])


async def _explain_unknown(keyring: Keyring, name_or_id: str) -> AdminError:
    try:
        row = await find_valid_key(keyring, name_or_id)
    except NotFound as unknown:
        return unknown
    return VersionMismatch(f'The key "{row.name}" was changed since you read it; it has version {row.version} now.')


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


async def choose_name(keyring: Keyring) -> str:
    """Return a name that no key has."""
    taken = {row.name for row in await keyring.list()}
    number = len(taken) + 1
    while f"key-{number}" in taken:
        number += 1
    return f"key-{number}"


class KeyAccess(Protocol):
    async def create(self, name: str | None, grant: Grant = CLIENT_GRANT) -> CreatedKey: ...
    async def list(self) -> tuple[KeyRow, ...]: ...
    async def revoke(self, name_or_id: str) -> KeyRow: ...
    async def rotate(self, name_or_id: str, grace_s: int) -> CreatedKey: ...


class StoredKeys(Struct, frozen=True):
    """Keys in a store, which gateways read within a second."""

    keyring: Keyring

    async def create(self, name: str | None, grant: Grant = CLIENT_GRANT) -> CreatedKey:
        return await create_key(self.keyring, name, grant)

    async def list(self) -> tuple[KeyRow, ...]:
        return await self.keyring.list()

    async def revoke(self, name_or_id: str) -> KeyRow:
        return await revoke_key(self.keyring, name_or_id)

    async def rotate(self, name_or_id: str, grace_s: int) -> CreatedKey:
        return await rotate_key(self.keyring, name_or_id, grace_s)


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
        if grant.default_thinking is not None:  # which older gateways do not know
            body["default_thinking"] = grant.default_thinking
        return _parse_created(await self.gateway.write("POST", PATH, body))

    async def list(self) -> tuple[KeyRow, ...]:
        keys: list[KeyRow] = []
        page = _Listed([], next="")
        while page.next is not None:
            path = f"{PATH}?cursor={quote(page.next)}" if page.next else PATH
            page = msgspec.json.decode(await self.gateway.get(path), type=_Listed)
            keys += [key.row for key in page.keys]
        return tuple(keys)

    async def revoke(self, name_or_id: str) -> KeyRow:
        body = await self.gateway.write("DELETE", f"{PATH}/{quote(name_or_id, safe='')}")
        return msgspec.json.decode(body, type=_Key).row

    async def rotate(self, name_or_id: str, grace_s: int) -> CreatedKey:
        path = f"{PATH}/{quote(name_or_id, safe='')}/rotate"
        return _parse_created(await self.gateway.write("POST", path, {"grace_s": grace_s}))


@asynccontextmanager
async def open_key_access(config: Config, root: str | None, *, named: bool = False) -> AsyncIterator[KeyAccess]:
    """Use the running gateway, if the key in this shell may administer it, else the configured store.

    A gateway that the user named is used in any case; raises AdminError if this shell has no key for it.
    """
    async with HttpClient() as http:
        if named and root is not None:
            if config.client_key is None:
                raise AdminError(f"The owner's key of {root} is needed: set $DRAGOMAN_API_KEY.")
            yield RemoteKeys(GatewayClient(root, config.client_key.reveal(), http))
        elif (remote := await _find_remote(config, root, http)) is not None:
            yield remote
        else:
            async with open_keyring(config) as keyring:
                yield StoredKeys(keyring)


async def _find_remote(config: Config, root: str | None, http: HttpClient) -> RemoteKeys | None:
    if root is None or config.client_key is None:
        return None
    remote = RemoteKeys(GatewayClient(root, config.client_key.reveal(), http))
    try:
        await remote.list()
    except GatewayRefused as refused:
        if refused.status in NO_ADMIN_STATUSES:
            return None
        raise
    except (ConnectionLost, UpstreamTimeout, SizeLimitExceeded, *JSON_ERRORS):
        return None
    return remote


class _Key(Struct):
    """A key as the admin API describes it."""

    id: str
    name: str
    prefix: str
    last4: str
    created_at: int
    role: str
    version: int
    revoked_at: int | None = None
    last_used_at: int | None = None
    scopes: list[str] = field(default_factory=list)
    expires_at: int | None = None
    old_secret_until: int | None = None
    default_thinking: str | int | None = None
    secret: str = ""

    @property
    def row(self) -> KeyRow:
        return KeyRow(
            id=KeyId(self.id),
            name=self.name,
            prefix=self.prefix,
            last4=self.last4,
            created_at=self.created_at,
            revoked_at=self.revoked_at,
            last_used_at=self.last_used_at,
            role=self.role,
            scopes=" ".join(self.scopes),
            expires_at=self.expires_at,
            old_secret_until=self.old_secret_until,
            version=self.version,
            default_thinking=None if self.default_thinking is None else str(self.default_thinking),
        )


class _Listed(Struct):
    keys: list[_Key]
    next: str | None = None


def _parse_created(body: bytes) -> CreatedKey:
    key = msgspec.json.decode(body, type=_Key)
    return CreatedKey(key.row, Secret(key.secret))


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
