"""Tool calls that a reply cut off, kept for the conversation's next request.

One client key cannot displace what is kept for the others; the oldest are removed first.
"""

from msgspec import Struct

from dragoman.store.database import Session, StorePart, fetch_among, find, reads, writes

MAX_CUT_CALLS = 1000
MAX_CUT_CALLS_PER_TENANT = 200
CUT_CALL_LIFE_S = 3600


class CutCallRow(Struct, frozen=True):
    tenant: str
    digest: bytes  # of the conversation
    lost: bytes  # the calls


class CutCallTable(StorePart):
    @writes
    async def remember_cut(self, session: Session, row: CutCallRow, now: int) -> None:
        """Keep the tool calls that the last reply of a conversation cut off, for CUT_CALL_LIFE_S."""
        await session.execute(
            "INSERT INTO dragoman.cut_calls (tenant, digest, lost, expires_at) VALUES ($1, $2, $3, $4)"
            " ON CONFLICT (tenant, digest) DO UPDATE SET lost = excluded.lost, expires_at = excluded.expires_at",
            *(row.tenant, row.digest, row.lost, now + CUT_CALL_LIFE_S),
        )
        await session.execute("DELETE FROM dragoman.cut_calls WHERE expires_at <= $1", now)
        await session.execute(
            "DELETE FROM dragoman.cut_calls WHERE tenant = $1 AND digest NOT IN (SELECT digest FROM dragoman.cut_calls"
            " WHERE tenant = $1 ORDER BY digest = $2 DESC, expires_at DESC LIMIT $3)",
            *(row.tenant, row.digest, MAX_CUT_CALLS_PER_TENANT),
        )
        await session.execute(
            "DELETE FROM dragoman.cut_calls WHERE (tenant, digest) NOT IN (SELECT tenant, digest"
            " FROM dragoman.cut_calls ORDER BY (tenant = $1 AND digest = $2) DESC, expires_at DESC LIMIT $3)",
            *(row.tenant, row.digest, MAX_CUT_CALLS),
        )

    @reads
    async def recall_cut(self, session: Session, tenant: str, digests: tuple[bytes, ...], now: int) -> bytes | None:
        """Return what is kept for the first of these conversations that is known.

        It is not removed by reading, because a client may retry.
        """
        kept = dict(
            await fetch_among(
                session,
                lambda digest, lost: (bytes(digest), bytes(lost)),
                "SELECT digest, lost FROM dragoman.cut_calls"
                " WHERE tenant = $1 AND expires_at > $2 AND digest IN ({among})",
                digests,
                *(tenant, now),
            )
        )
        return next((kept[digest] for digest in digests if digest in kept), None)

    @reads
    async def has_cuts(self, session: Session, now: int) -> bool:
        """Return whether anything is kept for any conversation."""
        found = await find(session, int, "SELECT 1 FROM dragoman.cut_calls WHERE expires_at > $1 LIMIT 1", now)
        return found is not None
