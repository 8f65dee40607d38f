"""Sessions of the console, and the links that make one: only digests of their secrets are stored."""

from msgspec import Struct
from msgspec.structs import astuple

from dragoman.store.database import Session, StorePart, find, insert, reads, writes


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


COLUMNS = ", ".join(SessionRow.__struct_fields__)
SELECT_SESSIONS = f"SELECT {COLUMNS} FROM dragoman.console_sessions"  # noqa: S608 - names of our own fields


class ConsoleSessionTable(StorePart):
    @writes
    async def add_session(self, session: Session, row: SessionRow) -> None:
        """Add a session of the console or a link that makes one, and remove those that have expired."""
        await session.execute("DELETE FROM dragoman.console_sessions WHERE expires_at <= $1", row.created_at)
        await insert(session, f"dragoman.console_sessions ({COLUMNS})", [astuple(row)])

    @reads
    async def find_session(self, session: Session, digest: bytes) -> SessionRow | None:
        """Return the session or link with this digest, even if it has expired."""
        return await find(session, SessionRow, f"{SELECT_SESSIONS} WHERE digest = $1", digest)

    @writes
    async def touch_session(self, session: Session, id: str, used_at: int) -> None:
        """Set the time at which a session was last used."""
        await session.execute("UPDATE dragoman.console_sessions SET used_at = $1 WHERE id = $2", used_at, id)

    @writes
    async def end_session(self, session: Session, id: str) -> bool:
        """Remove a session or link; return whether it was there, which is true for one caller only."""
        return await session.execute("DELETE FROM dragoman.console_sessions WHERE id = $1", id) > 0

    @reads
    async def list_sessions(self, session: Session) -> tuple[SessionRow, ...]:
        """Return all sessions and links, oldest first."""
        return tuple(await session.fetch(SessionRow, f"{SELECT_SESSIONS} ORDER BY created_at, id"))
