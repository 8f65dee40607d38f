"""What was learned is in the store: another process knows it soon, and a changed section forgets it."""

import asyncio
from pathlib import Path

from dragoman.config.settings import ProviderConfig
from dragoman.store import Store, open_store
from dragoman.upstreams.kept_rules import KeptRules
from dragoman.upstreams.rejections.rules import Found

FIELD = Found("extra_field", "/tools/*/new")
SECTIONS = {"up": ProviderConfig(name="up", kind="openai-compatible", endpoint="http://127.0.0.1:9/v1")}
CHANGED = {"up": ProviderConfig(name="up", kind="openai-compatible", endpoint="http://127.0.0.1:10/v1")}


def make_memory(store: Store | None) -> KeptRules:
    memory = KeptRules(store)
    memory.adopt(SECTIONS)
    return memory


async def learn(memory: KeptRules) -> None:
    memory.add("key_1", "up", "m", FIELD)
    await asyncio.sleep(0.2)  # it is written meanwhile


def test_what_one_process_learns_and_forgets_another_one_follows(tmp_path: Path) -> None:
    async def follow() -> None:
        store = await open_store(f"sqlite:///{tmp_path}/store.db")
        one, two = make_memory(store), make_memory(store)
        await two.load()
        await learn(one)
        await two.load()
        assert one.find("key_1", "up", "m") == two.find("key_1", "up", "m") == (FIELD,)
        assert (one.counts, two.counts) == ({"extra_field": 1}, {})
        await store.forget_rules("up")
        await one.load()
        assert one.find("key_1", "up", "m") == ()
        await store.close()

    asyncio.run(follow())


def test_a_provider_whose_section_changes_starts_anew_also_after_a_restart(tmp_path: Path) -> None:
    async def change() -> None:
        store = await open_store(f"sqlite:///{tmp_path}/store.db")
        one, later = make_memory(store), KeptRules(store)
        await learn(one)
        later.adopt(CHANGED)
        await later.load()
        assert later.find("key_1", "up", "m") == ()
        one.adopt(SECTIONS)
        await one.load()
        assert one.find("key_1", "up", "m") == (FIELD,)
        one.adopt(CHANGED)
        assert one.find("key_1", "up", "m") == ()
        await one.load()
        assert one.find("key_1", "up", "m") == ()
        await store.close()

    asyncio.run(change())


def test_a_rule_learnt_just_before_its_section_changes_is_forgotten(tmp_path: Path) -> None:
    async def change() -> None:
        store = await open_store(f"sqlite:///{tmp_path}/store.db")
        memory = make_memory(store)
        memory.add("key_1", "up", "m", FIELD)
        memory.adopt(CHANGED)  # before the rule is written
        await wait_until_written(store)
        await memory.load()
        assert memory.find("key_1", "up", "m") == ()
        await store.close()

    asyncio.run(change())


async def wait_until_written(store: Store) -> None:
    for _ in range(1000):
        if await store.list_rules(0):
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


def test_without_a_store_it_is_known_to_this_process() -> None:
    async def alone() -> None:
        memory = make_memory(None)
        await learn(memory)
        await memory.load()
        await memory.watch(0.0)
        assert memory.find("key_1", "up", "m") == (FIELD,)

    asyncio.run(alone())
