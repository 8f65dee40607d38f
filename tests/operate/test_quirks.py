"""What was learned is listed with the name of its key, and forgotten."""

import asyncio
import time
from pathlib import Path

from dragoman.config.load import ConfigSource
from dragoman.operate.quirks import forget_learned, list_learned
from dragoman.store import open_store
from dragoman.store.learned_rules import RuleRow
from dragoman.tenancy.keys import Keyring


def test_rules_are_listed_by_the_name_of_their_key_and_forgotten(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text(f'[store]\nurl = "sqlite:///{tmp_path}/store.db"\n')
    config = ConfigSource(None, {}, tmp_path, tmp_path).read()
    now = int(time.time())

    async def learn() -> None:
        store = await open_store(config.store.url)
        laptop = await Keyring(store).create("laptop")
        for number, tenant in enumerate((str(laptop.row.id), "environment:abc", "key_gone")):
            row = RuleRow(tenant, "up", "extra_field", "/tools/*/new", "m", "", now + number)
            await store.add_rule(row, now)
        await store.close()

    asyncio.run(learn())
    rules = asyncio.run(list_learned(config))
    assert [rule.key for rule in rules] == ["laptop", "$DRAGOMAN_API_KEY", "key_gone"]
    assert (rules[0].rule, rules[0].path, rules[0].provider, rules[0].model) == (
        "extra_field",
        "/tools/*/new",
        "up",
        "m",
    )
    assert rules[0].learnt[:10] < rules[0].until[:10]
    assert asyncio.run(forget_learned(config, "other")) == 0
    assert asyncio.run(forget_learned(config, None)) == 3
    assert asyncio.run(list_learned(config)) == []
