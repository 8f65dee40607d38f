"""Rules that were learnt: kept until they expire, bounded, and forgotten by provider."""

import pytest
from msgspec.structs import replace

from dragoman.store import Store
from dragoman.store.learned_rules import MAX_RULES_OF_ONE, RULE_LIFE_S, RuleRow
from store.stories import on_both_stores

ROW = RuleRow("key_1", "up", "extra_field", "/tools/*/new", "m", "digest", 1000)


@on_both_stores
async def test_a_rule_is_kept_until_it_expires_and_keeps_its_time(store: Store) -> None:
    before = await store.rules_version()
    await store.add_rule(ROW, 1000)
    await store.add_rule(replace(ROW, learnt_at=2000), 2000)
    other = replace(ROW, model="", learnt_at=1500)
    await store.add_rule(other, 2000)
    assert await store.rules_version() > before
    assert await store.list_rules(2000) == [ROW, other]
    assert await store.list_rules(1000 + RULE_LIFE_S) == [other]
    late = replace(ROW, tenant="key_2", learnt_at=1500 + RULE_LIFE_S)
    await store.add_rule(late, 1500 + RULE_LIFE_S)
    assert await store.list_rules(0) == [late]


@on_both_stores
async def test_a_rule_of_a_changed_section_is_learnt_anew(store: Store) -> None:
    await store.add_rule(ROW, 1000)
    changed = replace(ROW, section="another", learnt_at=3000)
    await store.add_rule(changed, 3000)
    assert await store.list_rules(3000) == [changed]


@on_both_stores
async def test_the_oldest_rules_of_a_tenant_and_provider_go_first(store: Store) -> None:
    for number in range(MAX_RULES_OF_ONE + 3):
        await store.add_rule(replace(ROW, path=f"/f{number}", learnt_at=1000 + number), 2000)
    await store.add_rule(replace(ROW, provider="other"), 2000)
    kept = await store.list_rules(2000)
    assert len(kept) == MAX_RULES_OF_ONE + 1
    assert "/f2" not in [row.path for row in kept]
    assert "/f3" in [row.path for row in kept]


@on_both_stores
async def test_there_is_a_limit_for_all_together(store: Store) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dragoman.store.learned_rules.MAX_RULES", 5)
        for number in range(9):
            await store.add_rule(replace(ROW, tenant=f"t{number}", learnt_at=1000 + number), 2000)
    assert [row.tenant for row in await store.list_rules(2000)] == ["t4", "t5", "t6", "t7", "t8"]


@on_both_stores
async def test_rules_are_forgotten_by_provider_or_all(store: Store) -> None:
    for provider in ("up", "other"):
        await store.add_rule(replace(ROW, provider=provider), 1000)
    assert await store.forget_rules("up") == 1
    assert [row.provider for row in await store.list_rules(1000)] == ["other"]
    assert await store.forget_rules(None) == 1
    assert await store.list_rules(1000) == []
