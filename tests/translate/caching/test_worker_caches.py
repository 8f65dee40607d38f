"""Two workers of one gateway have one memory of a session, and do without the one that does not answer."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from asking import PATHS, Listening, send
from dragoman.proxy.shared_prompts import find_holder
from dragoman.tenancy.keys import ENVIRONMENT_KEY
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import KEY, Running, provider_section, running_workers
from narrowing import present
from rig import ONCE
from scripting import write_reply
from shell import Shell
from translate.caching.agent import prose
from waiting import wait_until
from wire_json import Json, JsonObject

SYSTEM: JsonObject = {"role": "system", "content": prose(3000, "rule")}
ONE: list[Json] = [{"role": "user", "content": "one"}]
THREE: list[Json] = [
    *ONE,
    {"role": "assistant", "content": "a"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "three"},
]
BY_MEMORY, STATELESS = ["one", "three"], ["two", "three"]  # what is marked behind the system prompt


def ask(server: Listening, session: str, messages: list[Json]) -> None:
    body = {"model": "up/claude-sonnet-5", "max_tokens": 99, "messages": [SYSTEM, *messages]}
    reply = send(server, "POST", PATHS["chat"], body, headers={"session-id": session})
    assert reply.status == 200, reply.body


def read_marked(body: JsonObject) -> list[str]:
    """Return the marked texts behind the system prompt."""
    blocks = [block for message in body["messages"] for block in message["content"]]
    return [block["text"] for block in blocks if "cache_control" in block]


class Workers:
    def __init__(self, both: tuple[Running, Running], fake: FakeUpstream) -> None:
        self.both = both
        self.fake = fake

    def ask(self, worker: int, session: str, messages: list[Json]) -> JsonObject:
        """Return what the upstream gets."""
        ask(self.both[worker], session, messages)
        got: JsonObject = self.fake.calls[-1].json
        return got

    def list_marked(self, worker: int, session: str) -> list[str]:
        return read_marked(self.ask(worker, session, THREE))

    def find_session(self, holder: int, about: str) -> str:
        """Return a name of which this worker is the holder."""
        tenant = self.both[0].app.keyring.tenant(ENVIRONMENT_KEY)
        processes = [present(worker.app.processes).own for worker in self.both]
        names = (f"{about} {number}" for number in range(100))
        return next(name for name in names if find_holder(tenant, name, processes) == processes[holder])


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    def choose(request: ReceivedRequest) -> Answer:
        return write_reply("messages" if request.path.endswith("/messages") else "chat", "Yes.", stream=False)

    with FakeUpstream(choose=choose) as fake:
        sections = provider_section("messages", fake.url) + provider_section("openai", fake.url, "keyed")
        with running_workers(ONCE + sections, tmp_path) as both:
            yield Workers(both, fake)


@pytest.mark.parametrize("second", [0, 1], ids=["first the holder", "first the other"])
def test_what_one_worker_sent_is_known_to_the_other(workers: Workers, second: int) -> None:
    tries = iter(range(1000))

    def is_shared() -> bool:  # a busy machine may answer after the time that is waited for
        session = workers.find_session(1, f"try {next(tries)}")
        workers.ask(1 - second, session, ONE)
        return workers.list_marked(second, session) == BY_MEMORY

    wait_until(is_shared)


def test_a_session_has_one_key_at_both_workers(workers: Workers) -> None:
    for worker in workers.both:
        body = {"model": "keyed/gpt-5.5", "max_tokens": 99, "messages": ONE}
        send(worker, "POST", PATHS["messages"], body, headers={"session-id": "one"})
    assert len({call.json["prompt_cache_key"] for call in workers.fake.calls}) == 1


@contextmanager
def stay_silent(path: Path) -> Iterator[None]:
    """Listen where a worker did, and answer nothing."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(50)
        yield


def leave_socket_away(path: Path) -> AbstractContextManager[None]:
    return nullcontext()


@pytest.mark.rest
@pytest.mark.parametrize("instead", [leave_socket_away, stay_silent], ids=["killed", "silent"])
def test_a_holder_that_does_not_answer_costs_no_request(
    workers: Workers, instead: Callable[[Path], AbstractContextManager[None]]
) -> None:
    session, own = workers.find_session(1, "other"), workers.find_session(0, "own")
    for name in (session, own):
        workers.ask(0, name, ONE)
    other = workers.both[1]
    asyncio.run_coroutine_threadsafe(present(other.app.group).stop(0), other.loop).result(60)
    with instead(Path(present(other.member).socket_path(1))):
        assert workers.list_marked(0, session) == STATELESS
        assert workers.list_marked(0, own) == BY_MEMORY
        for number in range(30):
            assert workers.list_marked(0, workers.find_session(1, f"more {number % 9}")) == STATELESS


@pytest.mark.rest
def test_real_processes_share_what_their_sessions_sent(tmp_path: Path) -> None:
    """The kernel chooses which of them gets a request."""
    with FakeUpstream(choose=lambda request: write_reply("messages", "Yes.", stream=False)) as fake:
        shell = Shell(tmp_path)
        path = shell.write("up.toml", ONCE + provider_section("messages", fake.url))
        with shell.serve("--config", str(path), "--workers", "2", DRAGOMAN_API_KEY=KEY) as served:
            wait_until(lambda: len(served.workers) == 2)
            tries = iter(range(1000))

            def are_shared() -> bool:
                sessions = [f"session {next(tries)}" for _ in range(12)]
                for session in sessions:
                    ask(served, session, ONE)
                for session in sessions:
                    ask(served, session, THREE)
                return all(read_marked(one.json) == BY_MEMORY for one in fake.calls[-len(sessions) :])

            wait_until(are_shared)
