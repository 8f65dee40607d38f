"""Answers of the admin API to requests with an Idempotency-Key, for a client that repeats one."""

from msgspec import Struct
from msgspec.structs import astuple

from dragoman.store.database import Session, StorePart, find, writes

KEPT_S = 86_400
CLAIM_S = 60  # after which a request that was begun and has no answer counts as failed
CLAIM = """
    INSERT INTO dragoman.repeatable_requests (actor, key, request, status, etag, body, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
"""
SELECT = (
    "SELECT request, status, etag, body, created_at FROM dragoman.repeatable_requests WHERE actor = $1 AND key = $2"
)


class RepeatedAnswer(Struct, frozen=True):
    """What a request with this key was answered; the status is 0 while it is being handled."""

    request: bytes  # the digest of what was asked
    status: int
    etag: str
    body: bytes
    created_at: int  # of the claim, in Unix seconds


class RepeatableRequests(StorePart):
    @writes
    async def claim_request(
        self, session: Session, actor: str, key: str, claim: RepeatedAnswer
    ) -> RepeatedAnswer | None:
        """Return the answer to the first request with this key, or None if this is the first: it is claimed."""
        await session.lock("repeatable requests")
        old = "DELETE FROM dragoman.repeatable_requests WHERE created_at < $1 OR (status = 0 AND created_at < $2)"
        await session.execute(old, claim.created_at - KEPT_S, claim.created_at - CLAIM_S)
        found = await find(session, RepeatedAnswer, SELECT, actor, key)
        if found is None:
            await session.execute(CLAIM, actor, key, *astuple(claim))
        return found

    @writes
    async def keep_answer(self, session: Session, actor: str, key: str, answer: RepeatedAnswer) -> None:
        """Keep the answer to a request that was claimed."""
        statement = """
            UPDATE dragoman.repeatable_requests SET status = $3, etag = $4, body = $5 WHERE actor = $1 AND key = $2
        """
        await session.execute(statement, actor, key, answer.status, answer.etag, answer.body)

    @writes
    async def forget_request(self, session: Session, actor: str, key: str) -> None:
        """Let a request that failed be repeated."""
        await session.execute("DELETE FROM dragoman.repeatable_requests WHERE actor = $1 AND key = $2", actor, key)
