"""What the gateway has learnt from rejections: list it, and forget it."""

import time
from datetime import UTC, datetime

from msgspec import Struct

from dragoman.config.settings import Config
from dragoman.store import open_store
from dragoman.store.learned_rules import RULE_LIFE_S, RuleRow
from dragoman.tenancy.keys import ENVIRONMENT_KEY


class LearnedRule(Struct, frozen=True):
    """A rule, with the name of the key whose requests it holds for."""

    rule: str
    path: str
    provider: str
    model: str  # empty: every model
    key: str
    learnt: str
    until: str


async def list_learned(config: Config) -> list[LearnedRule]:
    """Return the rules that hold now, the oldest first. Raises StoreError."""
    store = await open_store(config.store.url)
    try:
        rows = await store.list_rules(int(time.time()))
        names = {str(key.id): key.name for key in await store.list_keys()}
    finally:
        await store.close()
    return [_describe(row, names) for row in rows]


async def forget_learned(config: Config, provider: str | None) -> int:
    """Forget the rules of a provider, or all, and return how many there were; a running gateway follows."""
    store = await open_store(config.store.url)
    try:
        return await store.forget_rules(provider)
    finally:
        await store.close()


def _describe(row: RuleRow, names: dict[str, str]) -> LearnedRule:
    is_environment = row.tenant.startswith(f"{ENVIRONMENT_KEY}:")
    key = "$DRAGOMAN_API_KEY" if is_environment else names.get(row.tenant, row.tenant)
    learnt, until = (
        datetime.fromtimestamp(moment, UTC).isoformat() for moment in (row.learnt_at, row.learnt_at + RULE_LIFE_S)
    )
    return LearnedRule(row.rule, row.path, row.provider, row.model, key, learnt, until)
