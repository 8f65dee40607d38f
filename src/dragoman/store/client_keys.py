"""Client keys: only digests of their secrets are stored."""

from typing import NewType

from msgspec import Struct
from msgspec.structs import astuple, fields

from dragoman.store.database import NotUnique, Session, StorePart, find, insert, reads, writes

KeyId = NewType("KeyId", str)


class NameTaken(Exception):
    """Another key with this name is valid."""


class KeyRow(Struct, frozen=True):
    """A key without its secret; times are Unix seconds."""

    id: KeyId
    name: str
    prefix: str
    last4: str
    created_at: int
    revoked_at: int | None
    last_used_at: int | None
    role: str = "client"  # or owner, or admin
    scopes: str = ""  # of an admin token, separated by spaces
    expires_at: int | None = None
    old_secret_until: int | None = None  # the secret before the last rotation is valid until then
    version: int = 1  # grows with every change
    default_thinking: str | None = None  # an effort, or a budget in tokens as digits


class LiveKey(Struct, frozen=True):
    """A secret that is accepted until `expires_at`; its key may have another one for a while, after a rotation."""

    digest: bytes
    id: KeyId
    role: str
    scopes: str
    expires_at: int | None
    default_thinking: str | None = None


class Rotation(Struct, frozen=True):
    """A key's new secret, and until when the old one is accepted."""

    digest: bytes
    prefix: str
    last4: str
    old_secret_until: int


COLUMNS = ", ".join(field.name for field in fields(KeyRow))
SELECT_KEYS = f"SELECT {COLUMNS} FROM dragoman.client_keys"  # noqa: S608 - names of our own fields
SELECT_LIVE_KEYS = """
    SELECT digest, id, role, scopes, expires_at, default_thinking FROM dragoman.client_keys WHERE revoked_at IS NULL
    UNION ALL
    SELECT old_digest, id, role, scopes, least(old_secret_until, coalesce(expires_at, old_secret_until)),
        default_thinking
    FROM dragoman.client_keys WHERE revoked_at IS NULL AND old_digest IS NOT NULL
"""
CHOSEN_KEY = f"""
    WHERE id = (SELECT id FROM dragoman.client_keys WHERE revoked_at IS NULL AND (id = $1 OR name = $1)
                ORDER BY id = $1 DESC LIMIT 1)
        AND ($2::bigint IS NULL OR version = $2)
    RETURNING {COLUMNS}
"""  # noqa: S608 - names of our own fields
REVOKE_KEY = f"UPDATE dragoman.client_keys SET revoked_at = $3, version = version + 1 {CHOSEN_KEY}"  # noqa: S608
ROTATE_KEY = f"""
    UPDATE dragoman.client_keys SET old_digest = digest, digest = $3, prefix = $4, last4 = $5, old_secret_until = $6,
        version = version + 1 {CHOSEN_KEY}
"""  # noqa: S608 - names of our own fields


class ClientKeys(StorePart):
    @reads
    async def version(self, session: Session) -> int:
        """Return a number that changes whenever another process changes the client keys."""
        [number] = await session.fetch(int, "SELECT number FROM dragoman.key_changes")
        return number

    @writes
    async def add_key(self, session: Session, row: KeyRow, digest: bytes) -> None:
        """Add a key; raises NameTaken if a valid key has its name."""
        await _add_key(session, row, digest)

    @writes
    async def add_first_key(self, session: Session, row: KeyRow, digest: bytes) -> bool:
        """Add a key unless one has ever been added; return whether it was."""
        await session.lock("client keys")  # two processes that start at the same time must not both add a first key
        if await find(session, int, "SELECT 1 FROM dragoman.client_keys LIMIT 1"):
            return False
        await _add_key(session, row, digest)
        return True

    @reads
    async def list_keys(self, session: Session) -> tuple[KeyRow, ...]:
        """Return every key, including revoked ones, oldest first."""
        return tuple(await session.fetch(KeyRow, f"{SELECT_KEYS} ORDER BY @row"))

    @reads
    async def list_live_keys(self, session: Session) -> tuple[LiveKey, ...]:
        """Return the secrets of the keys that are not revoked, including those that have expired."""
        return tuple(await session.fetch(LiveKey, SELECT_LIVE_KEYS))

    @reads
    async def find_key(self, session: Session, digest: bytes) -> KeyRow | None:
        """Return the key with this digest, even if it is revoked."""
        return await find(session, KeyRow, f"{SELECT_KEYS} WHERE digest = $1", digest)

    @writes
    async def revoke_key(self, session: Session, which: str, now: int, version: int | None = None) -> KeyRow | None:
        """Revoke the valid key with this id or name and return it; None if there is none, or it has another version."""
        return await find(session, KeyRow, REVOKE_KEY, which, version, now)

    @writes
    async def rotate_key(
        self, session: Session, which: str, rotation: Rotation, version: int | None = None
    ) -> KeyRow | None:
        """Give the valid key with this id or name a new secret; None if there is none, or it has another version."""
        return await find(session, KeyRow, ROTATE_KEY, which, version, *astuple(rotation))

    @writes
    async def touch_keys(self, session: Session, used: frozenset[KeyId], now: int) -> None:
        """Set the time at which these keys were last used."""
        await session.execute_many(
            "UPDATE dragoman.client_keys SET last_used_at = $1 WHERE id = $2", [(now, key) for key in sorted(used)]
        )


async def _add_key(session: Session, row: KeyRow, digest: bytes) -> None:
    try:
        await insert(session, f"dragoman.client_keys ({COLUMNS}, digest)", [(*astuple(row), digest)])
    except NotUnique as error:
        raise NameTaken(row.name) from error
