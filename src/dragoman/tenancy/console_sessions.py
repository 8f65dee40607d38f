"""Sessions of the web console: signing in with a key or a one-time link, and finding the key of a session.

A session has two secrets. The browser sends one as a cookie by itself; the page sends the other in a header. Cookies
are shared by all ports of a host, so the cookie alone opens nothing.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from dragoman.store.console_sessions import SessionRow
from dragoman.tenancy.keys import KeyId, Keyring

LINK_S = 60
IDLE_S = 12 * 3600
TOTAL_S = 7 * 86_400
TOUCH_S = 60  # how exactly the last use is stored
TOKEN_BYTES = 32
MAX_TOKEN_BYTES = 100
MAX_TEXT = 200
LINK = "link_"
SESSION = "ses_"


class SessionStore(Protocol):
    """Where sessions are kept: the store, shared by all workers, or the memory of one process."""

    async def add_session(self, row: SessionRow) -> None: ...
    async def find_session(self, digest: bytes) -> SessionRow | None: ...
    async def touch_session(self, id: str, used_at: int) -> None: ...
    async def end_session(self, id: str) -> bool: ...
    async def list_sessions(self) -> tuple[SessionRow, ...]: ...


class MemorySessions:
    """Sessions of a gateway without a store."""

    def __init__(self) -> None:
        self._rows: dict[str, SessionRow] = {}

    async def add_session(self, row: SessionRow) -> None:
        self._rows = {id: kept for id, kept in self._rows.items() if kept.expires_at > row.created_at}
        self._rows[row.id] = row

    async def find_session(self, digest: bytes) -> SessionRow | None:
        return next((row for row in self._rows.values() if row.digest == digest), None)

    async def touch_session(self, id: str, used_at: int) -> None:
        if id in self._rows:
            self._rows[id] = replace(self._rows[id], used_at=used_at)

    async def end_session(self, id: str) -> bool:
        return self._rows.pop(id, None) is not None

    async def list_sessions(self) -> tuple[SessionRow, ...]:
        return tuple(self._rows.values())


class Browser(Struct, frozen=True):
    """Who signs in, as lists of sessions show it."""

    address: str
    name: str  # the user agent


class NewSession(Struct, frozen=True):
    """A session that was just made, with its two secrets."""

    row: SessionRow
    cookie: str
    token: str


class ConsoleSessions:
    """Makes, finds and ends sessions. A session is valid as long as its key is."""

    def __init__(self, store: SessionStore, keyring: Keyring, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._keyring = keyring
        self._clock = clock

    async def sign_in(self, presented: bytes, browser: Browser) -> NewSession | None:
        """Make a session for a client key; None if the key is not valid."""
        key = self._keyring.check(presented)
        return None if key is None else await self._begin(key, browser)

    async def make_link(self) -> str | None:
        """Return the token of a link that signs the owner in once, within LINK_S; None if there is no owner's key."""
        key = self._keyring.owner_key()
        if key is None:
            return None
        token, now = secrets.token_urlsafe(TOKEN_BYTES), int(self._clock())
        name = LINK + secrets.token_hex(8)
        await self._store.add_session(SessionRow(_digest(token), b"", name, key, now, now, now + LINK_S, "", ""))
        return token

    async def open_link(self, token: str, browser: Browser) -> NewSession | None:
        """Make a session for a link's token; None if it was used, has expired or never was."""
        row = await self._find(token)
        if row is None or not row.id.startswith(LINK) or not await self._store.end_session(row.id):
            return None
        return await self._begin(KeyId(row.key), browser) if self._is_valid(row) else None

    async def find(self, cookie: str, token: str) -> SessionRow | None:
        """Return the session that has both secrets; None if there is none, or it has ended."""
        row = await self._find(cookie)
        if row is None or not row.id.startswith(SESSION) or not self._is_valid(row):
            return None
        if not hmac.compare_digest(row.header_digest, _digest(token)):
            return None
        now = int(self._clock())
        if now >= row.used_at + TOUCH_S:
            await self._store.touch_session(row.id, now)
        return row

    async def is_open(self, row: SessionRow) -> bool:
        """Return whether a session that was found before is still valid."""
        return self._is_valid(row) and await self._store.find_session(row.digest) is not None

    async def end(self, id: str) -> bool:
        return await self._store.end_session(id)

    async def end_by_cookie(self, cookie: str) -> None:
        """End the session that a browser had before it signed in again."""
        row = await self._find(cookie)
        if row is not None and row.id.startswith(SESSION):
            await self._store.end_session(row.id)

    async def list_valid(self) -> list[SessionRow]:
        """Return the sessions that are valid now, the oldest first."""
        return [row for row in await self._store.list_sessions() if row.id.startswith(SESSION) and self._is_valid(row)]

    async def _begin(self, key: KeyId, browser: Browser) -> NewSession:
        cookie, token = secrets.token_urlsafe(TOKEN_BYTES), secrets.token_urlsafe(TOKEN_BYTES)
        now, name = int(self._clock()), SESSION + secrets.token_hex(8)
        digests = _digest(cookie), _digest(token)
        address, agent = browser.address[:MAX_TEXT], browser.name[:MAX_TEXT]
        row = SessionRow(*digests, name, key, now, now, now + TOTAL_S, address, agent)
        await self._store.add_session(row)
        return NewSession(row, cookie, token)

    async def _find(self, token: str) -> SessionRow | None:
        return await self._store.find_session(_digest(token)) if 0 < len(token) <= MAX_TOKEN_BYTES else None

    def _is_valid(self, row: SessionRow) -> bool:
        now = self._clock()
        return now < row.expires_at and now < row.used_at + IDLE_S and self._keyring.is_valid(KeyId(row.key))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def console_address(root: str, token: str) -> str:
    """Return the address of a one-time link. Browsers do not send the fragment, so no log has the token."""
    return f"{root}/console#t={token}"
