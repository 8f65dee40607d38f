"""Background responses of two gateways on one store, their limits, and what a gateway that stops leaves behind."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from asking import Reply, send
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import KEY, Running, provider_section, running
from scripting import write_reply
from state.state_rig import endless
from store.stories import open_at
from waiting import wait_until
from wire_json import JsonObject

SETTINGS = """
[server]
drain_s = 0.5
[retry]
attempts = 1
[responses]
background_lease_s = 600.0
max_background = {most}
max_unfinished_per_key = 3
"""
BODY: JsonObject = {"model": "up/m", "background": True, "stream": True}


def ask(gateway: Running, method: str, path: str, body: object = None, key: str = KEY) -> Reply:
    return send(gateway, method, f"/v1{path}", body, key=key)


@contextmanager
def start(directory: Path, fake: FakeUpstream, most: int, key: str) -> Iterator[Running]:
    """Start a gateway that runs so many background responses at a time."""
    settings = SETTINGS.format(most=most) + provider_section("chat", fake.url)
    with running(settings, directory, stored=(key,)) as gateway:
        yield gateway


@dataclass
class Pair:
    """Two gateways on one store; the first runs one response at a time, the second two."""

    first: Running
    second: Running
    fake: FakeUpstream

    def queue(self, gateway: Running, text: str, key: str = KEY) -> str:
        made = ask(gateway, "POST", "/responses", BODY | {"input": text, "stream": False}, key)
        assert made.status == 200, made.body
        return str(made.json["id"])

    def fill(self) -> list[str]:
        """Have the first gateway run one response, and the second one two, that do not end."""
        self.fake.choose = choose
        ids = [self.queue(self.first, "endless 0")]
        self.wait_for(self.first, ids[0], "in_progress")
        ids += [self.queue(self.second, f"endless {number}") for number in (1, 2)]
        for id in ids:
            self.wait_for(self.second, id, "in_progress")
        wait_until(lambda: len(self.fake.calls) == 3)
        return ids

    def wait_for(self, gateway: Running, id: str, *statuses: str, key: str = KEY) -> JsonObject:
        found: JsonObject = {}

        def has_status() -> bool:
            found.update(ask(gateway, "GET", f"/responses/{id}", key=key).json)
            return found["status"] in statuses

        wait_until(has_status)
        return found


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with (
        FakeUpstream(keep_alive=False) as fake,
        start(tmp_path, fake, 1, "first") as first,
        start(tmp_path, fake, 2, "second") as second,
    ):
        yield Pair(first, second, fake)


def choose(request: ReceivedRequest) -> Answer:
    return endless() if b"endless" in request.body else write_reply("chat", "one two")


def test_a_response_is_followed_and_cancelled_through_another_gateway(pair: Pair) -> None:
    pair.fake.choose = choose
    first = ask(pair.first, "POST", "/responses", BODY | {"input": "Hi"})
    id = first.events[0]["response"]["id"]
    assert ask(pair.second, "GET", f"/responses/{id}?stream=true").body == first.body
    running = pair.queue(pair.first, "endless")
    wait_until(lambda: len(pair.fake.calls) == 2)
    pair.fake.closed.clear()
    assert ask(pair.second, "POST", f"/responses/{running}/cancel").json["status"] == "cancelled"
    wait_until(lambda: pair.fake.closed)
    assert ask(pair.first, "GET", f"/responses/{running}").json["status"] == "cancelled"


def test_what_one_gateway_cannot_run_another_one_runs_once(pair: Pair) -> None:
    pair.fake.choose = choose
    ids = [pair.queue(pair.first, f"endless {number}") for number in range(3)]
    for id in ids:
        pair.wait_for(pair.second, id, "in_progress")
    wait_until(lambda: len(pair.fake.calls) >= 3)
    assert len({request.body for request in pair.fake.calls}) == len(pair.fake.calls) == 3
    refused = ask(pair.first, "POST", "/responses", BODY | {"input": "Hi"})
    assert (refused.status, "retry-after" in refused.headers, b"max_unfinished_per_key" in refused.body) == (
        *(429, True),
        True,
    )
    other = pair.second.keys["second"]
    waiting = pair.queue(pair.second, "Hi", other)
    assert ask(pair.second, "GET", f"/responses/{waiting}", key=other).json["status"] == "queued"
    for id in ids:
        ask(pair.second, "POST", f"/responses/{id}/cancel")
    assert pair.wait_for(pair.second, waiting, "completed", key=other)["usage"] is not None


def test_a_response_that_waits_can_be_cancelled_and_is_never_run(pair: Pair) -> None:
    running = pair.fill()
    key = pair.first.keys["first"]
    waiting = pair.queue(pair.first, "waiting", key)
    assert ask(pair.second, "POST", f"/responses/{waiting}/cancel", key=key).json["status"] == "cancelled"
    for id in running:
        ask(pair.second, "POST", f"/responses/{id}/cancel")
    last = pair.queue(pair.first, "last", key)
    pair.wait_for(pair.first, last, "completed", key=key)
    assert not any(b"waiting" in request.body for request in pair.fake.calls)


def test_a_gateway_that_stops_fails_what_it_runs_and_leaves_what_waits_to_others(tmp_path: Path) -> None:
    with ExitStack() as stack:
        fake = stack.enter_context(FakeUpstream(keep_alive=False, choose=choose))
        first = stack.enter_context(start(tmp_path, fake, 1, "first"))
        threads = stack.enter_context(ThreadPoolExecutor(1))
        following = threads.submit(ask, first, "POST", "/responses", BODY | {"input": "endless 0"})
        wait_until(lambda: len(fake.calls) == 1)
        second = stack.enter_context(start(tmp_path, fake, 2, "second"))  # not sooner: it might run the response itself
        pair, key = Pair(first, second, fake), first.keys["first"]
        running = [pair.queue(second, f"endless {number}") for number in (1, 2)]
        wait_until(lambda: len(fake.calls) == 3)
        waiting = pair.queue(first, "Hi", key)
        first.stop_soon().result(timeout=60)
        *_, last = following.result(timeout=60).events
        assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
        ended = ask(second, "GET", f"/responses/{last['response']['id']}").json
        assert (ended["error"]["code"], ended["error"]) == ("server_error", last["response"]["error"])
        assert ask(second, "GET", f"/responses/{waiting}", key=key).json["status"] == "queued"
        ask(second, "POST", f"/responses/{running[0]}/cancel")
        pair.wait_for(second, waiting, "completed", key=key)
        assert len(fake.calls) == 4


def test_a_response_whose_key_was_revoked_is_not_run(pair: Pair, tmp_path: Path) -> None:
    running = pair.fill()
    id = pair.queue(pair.second, "Hi", pair.second.keys["second"])
    revoking = pair.second.app.keyring.revoke("second")
    asyncio.run_coroutine_threadsafe(revoking, pair.second.loop).result(60)
    for one in running:
        ask(pair.second, "POST", f"/responses/{one}/cancel")

    async def read_status() -> str:
        async with open_at(f"sqlite:///{tmp_path}/store.db") as store:
            return next(row.status for row in await store.responses.list_responses(None, 9, 0) if row.id == id)

    wait_until(lambda: asyncio.run(read_status()) == "failed")
    assert len(pair.fake.calls) == 3
