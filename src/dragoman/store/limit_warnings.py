"""Which limits have been warned of: only one of all processes warns, once per window."""

from dragoman.store.database import Session, StorePart, find, writes

CLAIM = "INSERT INTO dragoman.limit_warnings (counter, percent, until_ms) VALUES ($1, $2, $3)"
SELECT = "SELECT percent FROM dragoman.limit_warnings WHERE counter = $1 AND percent = $2"
PAST = "DELETE FROM dragoman.limit_warnings WHERE until_ms > 0 AND until_ms < $1"


class LimitWarnings(StorePart):
    @writes
    async def claim_warning(self, session: Session, counter: str, percent: int, until_ms: int, now_ms: int) -> bool:
        """Return whether this is the first warning at this percentage; `until_ms` is 0 for a window without an end."""
        await session.lock("limit warnings")
        await session.execute(PAST, now_ms)
        if await find(session, int, SELECT, counter, percent) is not None:
            return False
        await session.execute(CLAIM, counter, percent, until_ms)
        return True
