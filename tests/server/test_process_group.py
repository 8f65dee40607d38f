"""Questions between the processes of two replicas, one of which has two workers: each finds and asks all others."""

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from console.browser import sign_in
from console.feed_reader import Client, reading, run_clients
from console.traffic import ECHO
from dragoman.server.process_group import ProcessGroup
from dragoman.server.worker_group import MAX_ANSWER_BYTES, GroupMember
from gateway import KEY, Running
from narrowing import present
from valkey_server import ValkeyServer
from waiting import wait_until

T = TypeVar("T")


class Process:
    """One of the processes, from outside of its loop."""

    def __init__(self, gateway: Running) -> None:
        self.gateway = gateway
        self.group: ProcessGroup = present(gateway.app.processes)

        async def echo(question: dict[str, str]) -> bytes:
            return self.group.own.encode() + b" " + question["text"].encode() * int(question.get("times", "1"))

        self.group.answer("echo", echo)

    def run(self, question: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(question, self.gateway.loop).result(60)

    def ask_all(self, **question: str) -> dict[str, bytes]:
        return self.run(self.group.ask_all("echo", question))


@pytest.fixture
def processes(tmp_path: Path, valkey: ValkeyServer) -> Iterator[list[Process]]:
    toml = f'{ECHO}\n[store]\nshared = "{valkey.url}"\n'
    members = [GroupMember(number, 2, str(tmp_path), b"secret-of-this-test") for number in (0, 1)]
    folders = [tmp_path / name for name in ("workers", "alone")]
    for folder in folders:
        folder.mkdir()
    with (
        Running(toml, folders[0], member=members[0]) as one,
        Running(toml, folders[0], member=members[1]) as two,
        Running(toml, folders[1]) as three,
    ):
        found = [Process(gateway) for gateway in (one, two, three)]
        wait_until(lambda: all(len(process.group.names) == 3 for process in found))
        yield found


def test_workers_and_replicas_find_and_ask_each_other(processes: list[Process]) -> None:
    names = {process.group.own for process in processes}
    assert len(names) == 3
    for process in processes:
        assert {*process.group.names} == names
        assert process.ask_all(text="Hi") == {
            name: f"{name} Hi".encode() for name in names if name != process.group.own
        }
        assert not process.group.is_partial


@pytest.mark.rest
def test_workers_go_on_without_valkey_and_find_the_replicas_again(
    processes: list[Process], valkey: ValkeyServer
) -> None:
    one, two, three = processes
    with reading(sign_in(one.gateway, KEY)) as feed:
        run_clients(*(Client(process.gateway, f"from-{number}", text="Hi") for number, process in enumerate(processes)))
        feed.wait_for_end("from-0", "from-1", "from-2")
        valkey.freeze()
        try:
            wait_until(lambda: one.group.is_partial and two.group.is_partial)
            assert one.ask_all(text="Hi") == {two.group.own: f"{two.group.own} Hi".encode()}
            assert three.ask_all(text="Hi") == {}
            feed.wait_for(lambda: feed.row("from-2") == {})
            assert {} not in (feed.row("from-0"), feed.row("from-1"))
        finally:
            valkey.thaw()
        wait_until(lambda: len(one.ask_all(text="Hi")) == 2, patience_s=10.0)
        wait_until(lambda: feed.row("from-2") != {}, patience_s=10.0)


@pytest.mark.rest
def test_an_answer_that_is_too_large_or_missing_is_none(processes: list[Process]) -> None:
    one, _, three = processes
    most = MAX_ANSWER_BYTES - len(three.group.own) - 1
    whole = one.run(one.group.ask(three.group.own, "echo", {"text": "x", "times": str(most)}))
    assert len(present(whole)) == MAX_ANSWER_BYTES
    assert one.run(one.group.ask(three.group.own, "echo", {"text": "x", "times": str(most + 1)})) is None
    assert one.run(one.group.ask(three.group.own, "unknown", {})) is None
    assert one.run(one.group.ask(three.group.own, "echo", {})) is None  # it fails there
    assert one.run(one.group.ask("nobody-0", "echo", {"text": "x"})) is None
    assert len(one.ask_all(text="Hi")) == 2
