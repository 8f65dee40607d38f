"""What the gateway has learned from rejections: list it, and forget it."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import Struct

from dragoman.config.settings import Config
from dragoman.store import open_store
from dragoman.store.store import Store
from dragoman.tenancy.keys import ENVIRONMENT_KEY
from dragoman.upstreams.learned_quirks import Learned


class LearnedRule(Struct, frozen=True):
    """A rule, with the name of the key whose requests it applies to."""

    rule: str
    path: str
    provider: str
    model: str  # empty: every model
    key: str
    learnt: str
    until: str


async def list_learned(config: Config) -> list[LearnedRule]:
    """Return the rules in effect, the oldest first. Raises StoreError."""
    async with await open_store(config.store.url) as store:
        rows = await store.list_rules(int(time.time()))
        learned = [
            Learned(row.tenant, row.provider, row.rule, row.path, row.model, float(row.learnt_at)) for row in rows
        ]
        return await describe_rules(learned, store)


async def describe_rules(rules: Iterable[Learned], store: Store) -> list[LearnedRule]:
    """Return rules as they are shown. Raises StoreError."""
    names = {str(key.id): key.name for key in await store.list_keys()}
    return [_describe(rule, names) for rule in rules]


async def forget_learned(config: Config, provider: str | None) -> int:
    """Forget the rules of a provider, or all, and return how many there were; a running gateway follows."""
    async with await open_store(config.store.url) as store:
        return await store.forget_rules(provider)


def _describe(rule: Learned, names: dict[str, str]) -> LearnedRule:
    is_environment = rule.tenant.startswith(f"{ENVIRONMENT_KEY}:")
    key = "$DRAGOMAN_API_KEY" if is_environment else names.get(rule.tenant, rule.tenant)
    learned, until = (datetime.fromtimestamp(int(moment), UTC).isoformat() for moment in (rule.time, rule.until))
    return LearnedRule(rule.rule, rule.path, rule.provider, rule.model, key, learned, until)
