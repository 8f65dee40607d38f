"""Rejections within bounds: what errors, requests, tenants and time may cost, and what other clients notice of it."""

import asyncio
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from asking import ask
from dragoman.app import KEY_POLL_S
from dragoman.config.settings import ProviderConfig
from dragoman.store import Store, open_store
from dragoman.store.learned_rules import MAX_RULES, MAX_RULES_OF_ONE
from dragoman.translate.framing.jsonedit import Change, edit
from dragoman.translate.framing.jsonedit import Path as JsonPath
from dragoman.upstreams.kept_rules import KeptRules
from dragoman.upstreams.learned_quirks import KEPT_S, LearnedQuirks
from dragoman.upstreams.rejections.rules import Found
from e2e.rejecting import has
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import running
from narrowing import expect
from rig import QUICK
from scripting import write_reply
from waiting import wait_until_async
from wire_json import JsonObject

SECTION = '[providers.up]\nkind = "openai-compatible"\nprotocol = "chat"\nendpoint = "{}"\napi_key = "sk-fake"\n'
WORDS = b"Unsupported parameter: 'seed'"
SEED: JsonObject = {"seed": 1}


def make_memory(store: Store) -> KeptRules:
    memory = KeptRules(store)
    memory.adopt({"up": ProviderConfig(name="up", kind="openai-compatible", endpoint="http://127.0.0.1:9/v1")})
    return memory


def refuse_seed(request: ReceivedRequest) -> Answer:
    if has("seed")(request):
        return Answer(b'{"error":{"message":"' + WORDS + b'"}}', 400, "application/json")
    return write_reply("chat", "Fine.", stream=False)


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"' + WORDS + b" " * 16_000_000 + b'x"}}',
        b'{"error":{"message":"Bad.","input":"' + WORDS * 500_000 + b'"}}',
        WORDS,
        b'{"error":{"message":"' + WORDS + b'\xff"}}',
        b'{"error":{"message":[1],"param":2,"code":[3]}}',
    ],
    ids=["16 MB", "16 MB of input", "no JSON", "no UTF-8", "wrong types"],
)
def test_a_strange_error_is_passed_on_and_teaches_nothing(body: bytes, tmp_path: Path) -> None:
    with (
        FakeUpstream([Answer(body, 400, "application/json")]) as fake,
        running(QUICK + SECTION.format(fake.url), tmp_path) as gateway,
    ):
        refused = ask(gateway, "chat", "up/m", **SEED)
        assert (refused.status, len(fake.calls)) == (400, 1)
        assert gateway.app.gateway.runtime.learned_quirks.list_all() == []


def test_after_a_day_by_the_clock_the_full_form_is_tried_once(tmp_path: Path) -> None:
    with FakeUpstream(choose=refuse_seed) as fake, running(SECTION.format(fake.url), tmp_path) as gateway:
        memory = expect(LearnedQuirks, gateway.app.gateway.runtime.learned_quirks)
        for count in (2, 3):
            assert (ask(gateway, "chat", "up/m", **SEED).status, len(fake.calls)) == (200, count)
        memory._clock = lambda: time.time() + KEPT_S
        for count in (5, 6):
            assert (ask(gateway, "chat", "up/m", **SEED).status, len(fake.calls)) == (200, count)
        assert ["seed" in call.json for call in fake.calls] == [True, False, False, True, False, False]


@pytest.mark.alone
def test_two_processes_agree_within_a_second(tmp_path: Path) -> None:
    async def follow() -> float:
        store = await open_store(f"sqlite:///{tmp_path}/store.db")
        one, two = make_memory(store), make_memory(store)
        watching = [asyncio.create_task(memory.watch(KEY_POLL_S)) for memory in (one, two)]
        await two.load()
        began = time.monotonic()
        one.add("key", "up", "m", Found("extra_field", "/a"))
        await wait_until_async(lambda: bool(two.find("key", "up", "m")))
        took = time.monotonic() - began
        for task in watching:
            task.cancel()
        await store.close()
        return took

    assert asyncio.run(follow()) < 1.0


def test_bytes_of_four_megabytes_are_edited_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}, "newField": True, "text": "t" * 2000}}
    body: JsonObject = {"tools": [tool] * 2_000}
    assert len(msgspec.json.encode(body)) > 4_000_000
    threads: list[int] = []

    def watch(text: bytes, edits: Iterable[tuple[JsonPath, Change]]) -> bytes:
        threads.append(threading.get_ident())
        return edit(text, edits)

    def refuse(request: ReceivedRequest) -> Answer:
        if b'"newField"' in request.body:
            error = {"error": {"message": "tools.0.function.newField: Extra inputs are not permitted"}}
            return Answer(msgspec.json.encode(error), 400, "application/json")
        return write_reply("chat", "Fine.", stream=False)

    async def find_loop() -> int:
        return threading.get_ident()

    monkeypatch.setattr("dragoman.upstreams.rejections.changes.edit", watch)
    with FakeUpstream(choose=refuse) as fake, running(SECTION.format(fake.url), tmp_path) as gateway:
        for count in (2, 3):
            assert (ask(gateway, "chat", "up/m", **body).status, len(fake.calls)) == (200, count)
        loop = asyncio.run_coroutine_threadsafe(find_loop(), gateway.loop).result(timeout=30)
    assert len(threads) == 2
    assert loop not in threads


@pytest.mark.rest
def test_ten_thousand_tenants_fill_neither_memory_nor_store(tmp_path: Path) -> None:
    async def learn() -> None:
        store = await open_store(f"sqlite:///{tmp_path}/store.db")
        memory = make_memory(store)
        for number in range(MAX_RULES_OF_ONE + 20):
            memory.add("greedy", "up", f"model-{number}", Found("extra_field", "/a"))
        assert len(memory.list_all()) == MAX_RULES_OF_ONE
        for number in range(MAX_RULES + 1):
            memory.add(f"tenant-{number}", "up", "m", Found("extra_field", "/a"))
            if number % 100 == 0:
                await asyncio.sleep(0)
        assert len(memory.list_all()) == MAX_RULES
        await wait_until_async(lambda: not memory._unsaved)
        rows = await store.list_rules(int(time.time()))
        assert len(rows) <= MAX_RULES
        await store.close()

    asyncio.run(learn())
