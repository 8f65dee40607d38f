"""Create, list and revoke client keys, and find out what a running gateway makes of one."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct

from dragoman.accounts.keys import CLIENT_GRANT, CreatedKey, Grant, Keyring, KeyRow, NameTaken, UnknownKey
from dragoman.admin.errors import AdminError, Conflict, InvalidArgument, NotFound
from dragoman.admin.running_gateway import accepts_key, find_running
from dragoman.config import Config, Secret
from dragoman.store import open_store

ACCEPT_TIMEOUT_S = 5.0
ACCEPT_POLL_S = 0.1
MAX_GRACE_S = 7 * 86_400
DEFAULT_GRACE_S = 86_400
REVOKE_S = 0.8  # longer than the pause between two reads of the store by a gateway


class KeyAcceptance(Struct, frozen=True):
    """Whether the gateway that runs here accepts a key; `root` is None where none runs."""

    root: str | None
    is_accepted: bool


@asynccontextmanager
async def open_keyring(config: Config) -> AsyncIterator[Keyring]:
    """Open the keys of the configured store."""
    store = await open_store(config.store.url)
    try:
        yield Keyring(store)
    finally:
        await store.close()


async def create_key(keyring: Keyring, name: str | None, grant: Grant = CLIENT_GRANT) -> CreatedKey:
    """Create a key; without a name it becomes key-1, key-2 and so on."""
    try:
        return await keyring.create(name if name is not None else await _free_name(keyring), grant)
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
        raise _not_found(name_or_id)
    return next((row for row in rows if row.id == name_or_id), rows[0])


class VersionMismatch(AdminError):
    """The key was changed since the caller has read it."""


async def _explain_unknown(keyring: Keyring, name_or_id: str) -> AdminError:
    try:
        row = await find_valid_key(keyring, name_or_id)
    except NotFound as unknown:
        return unknown
    return VersionMismatch(f'The key "{row.name}" was changed since you read it; it has version {row.version} now.')


def _not_found(name_or_id: str) -> NotFound:
    return NotFound(f'There is no valid key "{name_or_id}". `dragoman keys list` shows all.')


async def find_key(config: Config, secret: Secret) -> KeyRow | None:
    """Return the stored key with this secret, valid or revoked."""
    async with open_keyring(config) as keyring:
        return await keyring.find(secret)


async def check_with_gateway(config: Config, secret: Secret) -> KeyAcceptance:
    """Ask the gateway that runs where the configuration says whether it accepts a key."""
    root = await find_running(config)
    return KeyAcceptance(root, root is not None and await accepts_key(root, secret.reveal()))


async def wait_until_accepted(config: Config, secret: Secret) -> KeyAcceptance:
    """Wait until the running gateway accepts a new key; one with another store never does."""
    root = await find_running(config)
    deadline = time.monotonic() + ACCEPT_TIMEOUT_S
    while root is not None and not await accepts_key(root, secret.reveal()):
        if time.monotonic() > deadline:
            return KeyAcceptance(root, is_accepted=False)
        await asyncio.sleep(ACCEPT_POLL_S)
    return KeyAcceptance(root, root is not None)


async def wait_until_rejected(config: Config) -> None:
    """Wait until a running gateway has read from the store that a key is revoked."""
    if await find_running(config) is not None:
        await asyncio.sleep(REVOKE_S)


async def _free_name(keyring: Keyring) -> str:
    taken = {row.name for row in await keyring.list()}
    number = len(taken) + 1
    while f"key-{number}" in taken:
        number += 1
    return f"key-{number}"
