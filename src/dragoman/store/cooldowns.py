"""Cooldowns of credentials that several gateways agree on: as rows of the store, and as what they send each other."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import astuple, fields

from dragoman.store.database import Session, StorePart, reads, writes

MAX_ROWS = 2000


class CooldownRow(Struct, frozen=True, array_like=True):
    """Until when a credential is not used for a model, and when one request finds out whether that still holds."""

    member: str  # a digest of the provider and the credential
    model: str  # empty: all models
    until_ms: int
    reason: str
    probe_at_ms: int
    probe_interval_ms: int


class EndedCooldown(Struct, frozen=True):
    member: str
    model: str


CooldownChange = CooldownRow | EndedCooldown
COLUMNS = ", ".join(field.name for field in fields(CooldownRow))
SAVE = f"""
    INSERT INTO dragoman.cooldowns ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (member, model) DO UPDATE SET until_ms = excluded.until_ms, reason = excluded.reason,
        probe_at_ms = excluded.probe_at_ms, probe_interval_ms = excluded.probe_interval_ms
"""  # noqa: S608 - names of our own columns
REMOVE = "DELETE FROM dragoman.cooldowns WHERE member = $1 AND model = $2"
REMOVE_OLD = "DELETE FROM dragoman.cooldowns WHERE until_ms <= $1"
REMOVE_MANY = f"""
    DELETE FROM dragoman.cooldowns WHERE (member, model) IN (
        SELECT member, model FROM dragoman.cooldowns ORDER BY until_ms DESC LIMIT {MAX_ROWS} OFFSET {MAX_ROWS}
    )
"""  # noqa: S608 - no value of others


class CooldownRows(StorePart):
    @reads
    async def list_cooldowns(self, session: Session, now_ms: int) -> list[CooldownRow]:
        """Return the cooldowns that last, of too many those that end last."""
        lasting = "FROM dragoman.cooldowns WHERE until_ms > $1 ORDER BY until_ms DESC LIMIT"
        statement = f"SELECT {COLUMNS} {lasting} {MAX_ROWS}"
        return await session.fetch(CooldownRow, statement, now_ms)

    @writes
    async def change_cooldowns(self, session: Session, changes: Sequence[CooldownChange], now_ms: int) -> None:
        """Make changes, in one order for all processes; remove what is over, and of too many those that end first."""
        for change in sorted(changes, key=lambda one: (one.member, one.model)):
            if isinstance(change, CooldownRow):
                await session.execute(SAVE, *astuple(change))
            else:
                await session.execute(REMOVE, change.member, change.model)
        await session.execute(REMOVE_OLD, now_ms)
        await session.execute(REMOVE_MANY)
