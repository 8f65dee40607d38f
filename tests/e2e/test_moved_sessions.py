"""A conversation stays with the target that took it over, as long as that answers: its prompt cache is there."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from asking import PATHS, Listening, send
from fakes.upstream import Answer, FakeUpstream
from gateway import Running, provider_section, running, running_workers
from rig import ONCE
from scripting import write_error, write_reply
from waiting import wait_until
from wire_json import Json

MODEL = '[[models]]\nname = "model"\nto = ["first/m", "second/m"]\n'
YES = write_reply("chat", "Yes.", stream=False)
DOWN = write_error(503, "Busy.")


class Targets:
    def __init__(self, first: FakeUpstream, second: FakeUpstream) -> None:
        self.fakes = {"first": first, "second": second}

    @property
    def toml(self) -> str:
        sections = [provider_section("chat", fake.url, name) for name, fake in self.fakes.items()]
        return ONCE + "".join(sections) + MODEL

    def answer(self, first: Answer = YES, second: Answer = YES) -> None:
        for name, answer in (("first", first), ("second", second)):
            self.fakes[name].answers = [answer]


@pytest.fixture
def targets() -> Iterator[Targets]:
    with FakeUpstream(answers=[YES]) as first, FakeUpstream(answers=[YES]) as second:
        yield Targets(first, second)


@pytest.fixture
def gateway(targets: Targets, tmp_path: Path) -> Iterator[Running]:
    with running(targets.toml, tmp_path) as gateway:
        yield gateway


NEW: list[Json] = [{"role": "user", "content": "one"}]
CONTINUED: list[Json] = [*NEW, {"role": "assistant", "content": "a"}, {"role": "user", "content": "two"}]


def ask(
    gateway: Listening, targets: Targets, session: str = "s", *, protocol: str = "messages", new: bool = False
) -> list[str]:
    """Return which targets got the request."""
    counts = {name: len(fake.calls) for name, fake in targets.fakes.items()}
    body = {"model": "model", "max_tokens": 9, "messages": NEW if new else CONTINUED}
    headers = {"session-id": session} if session else {}
    reply = send(gateway, "POST", PATHS[protocol], body, headers=headers)
    assert reply.status == 200, reply.body
    return [name for name, fake in targets.fakes.items() if len(fake.calls) > counts[name]]


@pytest.mark.parametrize("protocol", ["messages", "chat"], ids=["translated", "passed"])
@pytest.mark.parametrize("session", ["s", ""], ids=["named", "nameless"])
def test_a_conversation_that_has_moved_stays(gateway: Running, targets: Targets, session: str, protocol: str) -> None:
    assert ask(gateway, targets, session, protocol=protocol) == ["first"]
    targets.answer(first=DOWN)
    assert ask(gateway, targets, session, protocol=protocol) == ["first", "second"]
    targets.answer()
    assert ask(gateway, targets, session, protocol=protocol) == ["second"]
    assert ask(gateway, targets, session, protocol=protocol) == ["second"]
    targets.answer(second=DOWN)
    assert ask(gateway, targets, session, protocol=protocol) == ["first", "second"]
    targets.answer()
    assert ask(gateway, targets, session, protocol=protocol) == ["first"]


def test_others_and_new_conversations_begin_at_the_first_target(gateway: Running, targets: Targets) -> None:
    targets.answer(first=DOWN)
    ask(gateway, targets)
    targets.answer()
    assert ask(gateway, targets, "other") == ["first"]
    assert ask(gateway, targets, new=True) == ["first"]
    assert ask(gateway, targets) == ["second"], "another conversation with the same name does not matter"


def test_a_conversation_returns_once_its_cache_has_expired(gateway: Running, targets: Targets) -> None:
    targets.answer(first=DOWN)
    ask(gateway, targets)
    targets.answer()
    began = time.time()
    for later, target in ((3500.0, "second"), (7000.0, "second"), (10_700.0, "first")):
        gateway.app.gateway.moved_sessions.clock = partial(float, began + later)
        assert ask(gateway, targets) == [target]


def test_the_other_workers_know_of_the_move(targets: Targets, tmp_path: Path) -> None:
    with running_workers(targets.toml, tmp_path) as both:
        targets.answer(first=DOWN)
        ask(both[0], targets)
        targets.answer()
        wait_until(lambda: both[1].app.gateway.moved_sessions.count)
        assert ask(both[1], targets) == ["second"]
        assert ask(both[0], targets) == ["second"]
