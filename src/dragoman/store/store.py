"""The operations of a store, the rows of its small tables, and how to open the one that a URL names."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NewType, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, fields

from dragoman.store.response_rows import ResponseStore, RunStore
from dragoman.store.rollup import SumQuery
from dragoman.store.usage_rows import RequestPage, RequestSearch, UsageRow, UsageSpan, UsageSum

SQLITE = "sqlite:///"
POSTGRESQL = "postgresql://"
NO_POSTGRES_DRIVER = (
    "store.url names PostgreSQL, whose driver is not installed. "
    "Run: pip install asyncpg (with pipx: pipx inject dragoman asyncpg)"
)

# Tool calls that a reply cut off are kept for the conversation's next request. One client key cannot displace what
# is kept for the others; the oldest are removed first.
MAX_CUT_CALLS = 1000
MAX_CUT_CALLS_PER_TENANT = 200
CUT_CALL_LIFE_S = 3600

KeyId = NewType("KeyId", str)


class StoreError(Exception):
    """The store cannot be opened, read or written; the message names it and the cause, never a password."""


class DriverMissing(StoreError):
    """The store needs a package that is not installed."""


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


KEY_COLUMNS = tuple(field.name for field in fields(KeyRow))  # of the table of keys, in this order


class LiveKey(Struct, frozen=True):
    """A secret that is accepted until `expires_at`; its key may have another one for a while, after a rotation."""

    digest: bytes
    id: KeyId
    role: str
    scopes: str
    expires_at: int | None


class Rotation(Struct, frozen=True):
    """A key's new secret, and until when the old one is accepted."""

    digest: bytes
    prefix: str
    last4: str
    old_secret_until: int


class AuditRow(Struct, frozen=True):
    """Who changed something or read a request's content, without a secret or content.

    The store gives the number, which grows, and `previous`, the hash of the row before.
    """

    time_ms: int  # since the epoch
    actor: str  # the id of the key
    action: str
    subject: str
    address: str  # of the peer
    detail: str = ""  # JSON: what changed
    number: int = 0
    previous: bytes = b""


AUDIT_DAYS = 400  # rows are kept that long
AUDIT_COLUMNS = "time_ms, actor, action, subject, address, detail, number, previous"


def hash_audit_row(row: AuditRow | None) -> bytes:
    """Return what the next row holds of this one, so that a row cannot be changed or removed unnoticed."""
    return b"" if row is None else hashlib.sha256(msgspec.msgpack.encode(astuple(row))).digest()


class SessionRow(Struct, frozen=True):
    """A session of the console, or a link that makes one: digests of its secrets. Times are Unix seconds."""

    digest: bytes  # of the cookie, or of the link's token
    header_digest: bytes  # of the token that requests carry in a header; empty for a link
    id: str  # names the session in lists
    key: str  # the id of the client key whose rights it has
    created_at: int
    used_at: int
    expires_at: int
    address: str  # of the browser, or of the reverse proxy in front
    browser: str  # its user agent


SESSION_COLUMNS = tuple(SessionRow.__struct_fields__)


class Store(Protocol):
    """Client keys, cut tool calls, usage, the audit log, sessions of the console, and stored responses, in a database.

    Every operation may raise StoreError, does not block the event loop, and works again without a restart once the
    database does.
    """

    @property
    def name(self) -> str:
        """The store's location as shown to users, without a password."""

    @property
    def responses(self) -> ResponseStore:
        """Stored responses and conversations."""

    @property
    def runs(self) -> RunStore:
        """Background responses that have not ended, and their events."""

    async def open(self) -> None:
        """Connect and migrate the schema; every other operation does so too if it has not been possible yet."""

    async def close(self) -> None:
        """Finish the operations that have begun, then close; no operation may be called afterwards."""

    async def version(self) -> int:
        """Return a number that changes whenever another process changes the client keys."""

    async def add_key(self, row: KeyRow, digest: bytes) -> None:
        """Add a key; raises NameTaken if a valid key has its name."""

    async def add_first_key(self, row: KeyRow, digest: bytes) -> bool:
        """Add a key unless one has ever been added; return whether it was."""

    async def list_keys(self) -> tuple[KeyRow, ...]:
        """Return every key, including revoked ones, oldest first."""

    async def list_live_keys(self) -> tuple[LiveKey, ...]:
        """Return the secrets of the keys that are not revoked, including those that have expired."""

    async def find_key(self, digest: bytes) -> KeyRow | None:
        """Return the key with this digest, even if it is revoked."""

    async def revoke_key(self, which: str, now: int, version: int | None = None) -> KeyRow | None:
        """Revoke the valid key with this id or name and return it; None if there is none, or it has another version."""

    async def rotate_key(self, which: str, rotation: Rotation, version: int | None = None) -> KeyRow | None:
        """Give the valid key with this id or name a new secret; None if there is none, or it has another version."""

    async def touch_keys(self, used: frozenset[KeyId], now: int) -> None:
        """Set the time at which these keys were last used."""

    async def remember_cut(self, tenant: str, digest: bytes, lost: bytes, now: int) -> None:
        """Keep the tool calls that the last reply of a conversation cut off, for CUT_CALL_LIFE_S."""

    async def recall_cut(self, tenant: str, digests: tuple[bytes, ...], now: int) -> bytes | None:
        """Return what is kept for the first of these conversations that is known.

        It is not removed by reading, because a client may retry.
        """

    async def has_cuts(self, now: int) -> bool:
        """Return whether anything is kept for any conversation."""

    async def append_usage(self, rows: Sequence[UsageRow]) -> None:
        """Add all rows or none. A row whose id exists already is not changed."""

    async def remove_usage(self, before_ms: int, limit: int) -> int:
        """Remove at most `limit` requests that began before this time, oldest first; return how many."""

    async def read_usage_rows(self, span: UsageSpan) -> tuple[UsageRow, ...]:
        """Return the requests that began in this span, oldest first."""

    async def read_usage_sums(self, query: SumQuery) -> tuple[UsageSum, ...]:
        """Return the sums of the requests that began in this time; see `search_requests` for how it is read."""

    async def read_ttft_counts(self, query: SumQuery) -> dict[str, dict[int, int]]:
        """Return the number of requests by route and bucket (store/rollup.py) of the time to the first token."""

    async def search_requests(self, search: RequestSearch) -> RequestPage:
        """Return a page of requests, on one of MAX_QUERIES connections that no other operation waits for.

        Raises StoreError if it takes longer than QUERY_TIMEOUT_S.
        """

    async def add_audit(self, row: AuditRow) -> None:
        """Add a row to the audit log, which gets its number and the hash of the row before."""

    async def remove_audit(self, before_ms: int) -> int:
        """Remove the rows of the audit log that are older than this time; return how many."""

    async def list_audit_rows(self, before: int, limit: int) -> tuple[AuditRow, ...]:
        """Return the newest audit rows whose number is smaller than `before`, newest first."""

    async def add_session(self, row: SessionRow) -> None:
        """Add a session of the console or a link that makes one, and remove those that have expired."""

    async def find_session(self, digest: bytes) -> SessionRow | None:
        """Return the session or link with this digest, even if it has expired."""

    async def touch_session(self, id: str, used_at: int) -> None:
        """Set the time at which a session was last used."""

    async def end_session(self, id: str) -> bool:
        """Remove a session or link; return whether it was there, which is true for one caller only."""

    async def list_sessions(self) -> tuple[SessionRow, ...]:
        """Return all sessions and links, oldest first."""


async def open_store(url: str) -> Store:
    """Open the store at this URL, creating its file, directory and tables if they are missing."""
    store = make_store(url)
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store


def make_store(url: str) -> Store:
    """Return the store at this URL unopened: its first operation opens it."""
    if url.startswith(POSTGRESQL):
        return _make_postgres_store(url)
    if url.startswith(SQLITE):
        from dragoman.store.sqlite.store import SqliteStore

        return SqliteStore(Path(url.removeprefix(SQLITE)).expanduser())
    raise StoreError(f"store.url: expected {SQLITE}PATH or {POSTGRESQL}USER@HOST/NAME")


def _make_postgres_store(url: str) -> Store:
    try:
        from dragoman.store.postgres.store import PostgresStore  # slow to import, and most users have no PostgreSQL
    except ModuleNotFoundError as missing:
        if missing.name != "asyncpg":
            raise
        raise DriverMissing(NO_POSTGRES_DRIVER) from None
    return PostgresStore(url)
