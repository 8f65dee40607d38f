"""Client keys: only digests of their secrets are stored."""

from typing import NewType

from msgspec import Struct
from msgspec.structs import astuple, fields

from dragoman.config.limits import Limits
from dragoman.store.audit import AuditRow, append_audit_row
from dragoman.store.database import NotUnique, Session, StorePart, find, insert, reads, writes
from dragoman.store.limit_tables import COUNT_CHANGE, KEY, put_limits

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
    user: str = ""
    team: str = ""  # of its own, whatever team its user is in; of an admin token, the only one that it sees
    settings: str = ""  # JSON of tenancy/policies.py's KeySettings


class RevokedKey(Struct, frozen=True):
    id: KeyId
    settings: str


class LiveKey(Struct, frozen=True):
    """A secret that is accepted until `expires_at`; its key may have another one for a while, after a rotation."""

    digest: bytes
    id: KeyId
    role: str
    scopes: str
    expires_at: int | None
    default_thinking: str | None = None
    team: str = ""


class KeyChange(Struct, frozen=True):
    """What may be changed of a key, as it is to be from now on; `limits` None leaves them as they are."""

    expires_at: int | None
    default_thinking: str | None
    user: str
    team: str
    settings: str
    limits: Limits | None = None


class Rotation(Struct, frozen=True):
    """A key's new secret, and until when the old one is accepted."""

    digest: bytes
    prefix: str
    last4: str
    old_secret_until: int


IN_SQL = {"user": "user_name"}  # a word of SQL's own
COLUMNS = ", ".join(IN_SQL.get(field.name, field.name) for field in fields(KeyRow))
SELECT_KEYS = f"SELECT {COLUMNS} FROM dragoman.client_keys"  # noqa: S608 - names of our own fields
SELECT_LIVE_KEYS = """
    SELECT digest, id, role, scopes, expires_at, default_thinking, team
    FROM dragoman.client_keys WHERE revoked_at IS NULL
    UNION ALL
    SELECT old_digest, id, role, scopes, least(old_secret_until, coalesce(expires_at, old_secret_until)),
        default_thinking, team
    FROM dragoman.client_keys WHERE revoked_at IS NULL AND old_digest IS NOT NULL
"""
CHOSEN_KEY = f"""
    WHERE id = (SELECT id FROM dragoman.client_keys WHERE revoked_at IS NULL AND (id = $1 OR name = $1)
                ORDER BY id = $1 DESC LIMIT 1)
        AND ($2::bigint IS NULL OR version = $2)
    RETURNING {COLUMNS}
"""  # noqa: S608 - names of our own fields
REVOKE_KEY = f"""
    UPDATE dragoman.client_keys SET revoked_at = $3, settings = coalesce($4::text, settings), version = version + 1
    {CHOSEN_KEY}
"""  # noqa: S608 - names of our own fields
SELECT_REVOKED = "SELECT id, settings FROM dragoman.client_keys WHERE revoked_at >= $1"
ROTATE_KEY = f"""
    UPDATE dragoman.client_keys SET old_digest = digest, digest = $3, prefix = $4, last4 = $5, old_secret_until = $6,
        version = version + 1 {CHOSEN_KEY}
"""  # noqa: S608 - names of our own fields
CHANGE_KEY = f"""
    UPDATE dragoman.client_keys SET expires_at = $3, default_thinking = $4, user_name = $5, team = $6, settings = $7,
        version = version + 1 WHERE id = $1 AND version = $2 AND revoked_at IS NULL RETURNING {COLUMNS}
"""  # noqa: S608 - names of our own fields


class ClientKeys(StorePart):
    @reads
    async def version(self, session: Session) -> int:
        """Return a number that changes whenever another process changes the client keys."""
        [number] = await session.fetch(int, "SELECT number FROM dragoman.key_changes")
        return number

    @writes
    async def add_key(
        self,
        session: Session,
        row: KeyRow,
        digest: bytes,
        limits: Limits | None = None,
        audit: AuditRow | None = None,
    ) -> None:
        """Add a key with its limits; raises NameTaken if a valid key has its name."""
        await _add_key(session, row, digest)
        if limits:
            await put_limits(session, KEY, row.id, limits)
        await append_audit_row(session, audit)

    @writes
    async def change_key(
        self, session: Session, id: KeyId, version: int, change: KeyChange, audit: AuditRow | None = None
    ) -> KeyRow | None:
        """Change a valid key and return it; None if it has another version, or is no longer valid."""
        values = change.expires_at, change.default_thinking, change.user, change.team, change.settings
        row = await find(session, KeyRow, CHANGE_KEY, id, version, *values)
        if row is None:
            return None
        if change.limits is not None:
            await put_limits(session, KEY, id, change.limits)
        await session.execute(COUNT_CHANGE)
        await append_audit_row(session, audit)
        return row

    @writes
    async def add_first_key(self, session: Session, row: KeyRow, digest: bytes, audit: AuditRow | None = None) -> bool:
        """Add a key unless one has ever been added; return whether it was."""
        await session.lock("client keys")  # two processes that start at the same time must not both add a first key
        if await find(session, int, "SELECT 1 FROM dragoman.client_keys LIMIT 1"):
            return False
        await _add_key(session, row, digest)
        await append_audit_row(session, audit)
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
    async def list_revoked_keys(self, session: Session, since: int) -> tuple[RevokedKey, ...]:
        """Return the keys that were revoked at this time or later, in Unix seconds."""
        return tuple(await session.fetch(RevokedKey, SELECT_REVOKED, since))

    @reads
    async def find_key(self, session: Session, digest: bytes) -> KeyRow | None:
        """Return the key with this digest, even if it is revoked."""
        return await find(session, KeyRow, f"{SELECT_KEYS} WHERE digest = $1", digest)

    @writes
    async def revoke_key(
        self,
        session: Session,
        which: str,
        now: int,
        version: int | None = None,
        audit: AuditRow | None = None,
        settings: str | None = None,
    ) -> KeyRow | None:
        """Revoke the valid key with this id or name and return it; None if there is none, or it has another version.

        `settings` replace what it has, unless they are None.
        """
        row = await find(session, KeyRow, REVOKE_KEY, which, version, now, settings)
        await append_audit_row(session, None if row is None else audit)
        return row

    @writes
    async def rotate_key(
        self,
        session: Session,
        which: str,
        rotation: Rotation,
        version: int | None = None,
        audit: AuditRow | None = None,
    ) -> KeyRow | None:
        """Give the valid key with this id or name a new secret; None if there is none, or it has another version."""
        row = await find(session, KeyRow, ROTATE_KEY, which, version, *astuple(rotation))
        await append_audit_row(session, None if row is None else audit)
        return row

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
