"""What upstreams have rejected: rules that hold for one tenant and provider until they expire; the oldest go first."""

from msgspec import Struct
from msgspec.structs import astuple, fields

from dragoman.store.database import Session, StorePart, reads, writes

MAX_RULES = 10_000  # in all
MAX_RULES_OF_ONE = 100  # of one tenant and provider
RULE_LIFE_S = 24 * 3600


class RuleRow(Struct, frozen=True):
    """A rule without the words that it was learned from; the time is in Unix seconds."""

    tenant: str
    provider: str
    rule: str
    path: str
    model: str  # empty: every model
    section: str  # a digest of the provider's section
    learnt_at: int


COLUMNS = ", ".join(field.name for field in fields(RuleRow))
KEY = "tenant, provider, rule, path, model"
CHANGED = "UPDATE dragoman.rule_changes SET number = number + 1"


class LearnedRules(StorePart):
    @reads
    async def rules_version(self, session: Session) -> int:
        """Return a number that changes whenever a process learns or forgets a rule."""
        [number] = await session.fetch(int, "SELECT number FROM dragoman.rule_changes")
        return number

    @reads
    async def list_rules(self, session: Session, now: int) -> list[RuleRow]:
        """Return the rules that have not expired, the oldest first."""
        statement = f"SELECT {COLUMNS} FROM dragoman.learned_rules WHERE learnt_at > $1 ORDER BY learnt_at, {KEY}"  # noqa: S608
        return await session.fetch(RuleRow, statement, now - RULE_LIFE_S)

    @writes
    async def add_rule(self, session: Session, row: RuleRow, now: int) -> None:
        """Keep a rule; one that is kept already stays as old as it is, unless the provider's section has changed."""
        await session.execute("DELETE FROM dragoman.learned_rules WHERE learnt_at <= $1", now - RULE_LIFE_S)
        await session.execute(
            f"INSERT INTO dragoman.learned_rules ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7)"  # noqa: S608
            f" ON CONFLICT ({KEY}) DO UPDATE SET section = excluded.section, learnt_at = excluded.learnt_at"
            " WHERE learned_rules.section <> excluded.section",
            *astuple(row),
        )
        await _remove_oldest(session, "WHERE tenant = $1 AND provider = $2", MAX_RULES_OF_ONE, row.tenant, row.provider)
        await _remove_oldest(session, "", MAX_RULES)
        await session.execute(CHANGED)

    @writes
    async def forget_rules(self, session: Session, provider: str | None) -> int:
        """Remove the rules of a provider, or all; return how many there were."""
        if provider is None:
            count = await session.execute("DELETE FROM dragoman.learned_rules")
        else:
            count = await session.execute("DELETE FROM dragoman.learned_rules WHERE provider = $1", provider)
        await session.execute(CHANGED)
        return count


async def _remove_oldest(session: Session, among: str, most: int, *values: str) -> None:
    [count] = await session.fetch(int, f"SELECT count(*) FROM dragoman.learned_rules {among}", *values)  # noqa: S608
    if count > most:
        await session.execute(
            f"DELETE FROM dragoman.learned_rules WHERE ({KEY}) IN (SELECT {KEY} FROM dragoman.learned_rules {among}"  # noqa: S608
            f" ORDER BY learnt_at, {KEY} LIMIT ${len(values) + 1})",
            *values,
            count - most,
        )
