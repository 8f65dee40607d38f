"""Administer keys through the gateway that runs here, or in the configured store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol
from urllib.parse import quote

import msgspec
from msgspec import Struct, field

from dragoman.accounts.keys import CLIENT_GRANT, CreatedKey, Grant, KeyId, Keyring, KeyRow
from dragoman.admin.keys import create_key, open_keyring, revoke_key, rotate_key
from dragoman.admin.running_gateway import GatewayClient, GatewayRefused, find_running
from dragoman.config import Config, Secret
from dragoman.net.client import ConnectionLost, HttpClient, SizeLimitExceeded, UpstreamTimeout

PATH = "/api/v1/keys"
NOT_OURS = (401, 403, 404)  # the key in this shell is not an admin's there, or the gateway has no such path


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
        body = {
            "name": name,
            "role": grant.role.value,
            "scopes": sorted(grant.scopes),
            "expires_at": grant.expires_at,
        }
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
async def open_key_access(config: Config) -> AsyncIterator[KeyAccess]:
    """Use the gateway that runs here, if the key in this shell may administer it, else the configured store."""
    http = HttpClient()
    try:
        remote = await _find_remote(config, http)
        if remote is not None:
            yield remote
            return
        async with open_keyring(config) as keyring:
            yield StoredKeys(keyring)
    finally:
        await http.close()


async def _find_remote(config: Config, http: HttpClient) -> RemoteKeys | None:
    root = await find_running(config) if config.client_key is not None else None
    if root is None or config.client_key is None:
        return None
    remote = RemoteKeys(GatewayClient(root, config.client_key.reveal(), http))
    try:
        await remote.list()
    except GatewayRefused as refused:
        if refused.status in NOT_OURS:
            return None
        raise
    except (ConnectionLost, UpstreamTimeout, SizeLimitExceeded, msgspec.MsgspecError):
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
    secret: str = ""

    @property
    def row(self) -> KeyRow:
        return KeyRow(
            KeyId(self.id),
            *(self.name, self.prefix, self.last4, self.created_at, self.revoked_at, self.last_used_at),
            *(self.role, " ".join(self.scopes), self.expires_at, self.old_secret_until, self.version),
        )


class _Listed(Struct):
    keys: list[_Key]
    next: str | None = None


def _parse_created(body: bytes) -> CreatedKey:
    key = msgspec.json.decode(body, type=_Key)
    return CreatedKey(key.row, Secret(key.secret))
