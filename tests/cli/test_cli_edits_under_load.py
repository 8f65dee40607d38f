"""Many requests while the configuration is edited again and again, half of the edits broken: none fails."""

import itertools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from asking import Reply, ask, send
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from scripting import write_reply
from shell import Served, Shell
from waiting import wait_until
from wire_json import JsonObject

REQUESTS_PER_EDIT = 10
CLIENTS = 6
KEY = "dgm_fake-key-of-the-one-who-asks-all-the-time"
MARK = "# this is wrong"

BROKEN = (
    f"this is no toml {MARK}",
    f"[servr] {MARK}\nport = 1",
    f'[server]\ndrain_s = "long" {MARK}',
    f"[server]\ndrian_s = 3 {MARK}",
    f'[providers.lost]\nkind = "opnai" {MARK}',
    f'[providers.lost]\nkind = "openai"\napi_key = "env:NOT_SET_ANYWHERE" {MARK}',
    f'[providers.lost]\nkind = "openai"\nheaders = {{ x-team = "file:no-such-file" }} {MARK}',
    f'[providers.lost]\nkind = "openai"\nproxy = "ftp://127.0.0.1" {MARK}',
    f'[[models]]\nname = "x"\nto = "no list" {MARK}',
)


@dataclass
class Results:
    texts: Counter[str] = field(default_factory=Counter)
    routes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.texts.total() + len(self.wrong)

    def wait_for(self, count: int) -> None:
        wait_until(lambda: self.count >= count)


@pytest.mark.rest
@pytest.mark.parametrize("edits", [10, pytest.param(100, marks=pytest.mark.rest)])
def test_edits_of_the_configuration_fail_no_request(shell: Shell, edits: int) -> None:
    path = shell.write("edited.toml", "")
    results, over = Results(), threading.Event()
    with FakeUpstream(choose=make_answers("one")) as one, FakeUpstream(choose=make_answers("two")) as two:
        replace_file(path, make_config(0, one, two))
        with shell.serve("--config", str(path), DRAGOMAN_API_KEY=KEY) as served:
            clients = [threading.Thread(target=send_requests, args=(served, results, over)) for _ in range(CLIENTS)]
            for client in clients:
                client.start()
            try:
                for number in range(1, edits + 1):
                    edit(served, path, number, one, two)
                    results.wait_for(number * REQUESTS_PER_EDIT)
            finally:
                over.set()
                for client in clients:
                    client.join(30)
            assert results.wrong == []
            assert set(results.texts) == {"one says this slowly", "two says this slowly", "one", "two"}
            assert len(results.routes) > edits // 4, results.routes
            assert served.end() == 0


def edit(served: Served, path: Path, number: int, one: FakeUpstream, two: FakeUpstream) -> None:
    """Write an edit, every other one invalid, and wait until the log or the list of models shows it."""
    if number % 2 == 0:
        replace_file(path, make_config(number, one, two))
        served.send_signal(signal.SIGHUP)
        wait_until(lambda: f"edit-{number}" in models(served))
        return
    text = "\n" * number + BROKEN[number // 2 % len(BROKEN)] + "\n" + make_config(number, one, two)
    line = next(place for place, words in enumerate(text.splitlines(), start=1) if MARK in words)
    replace_file(path, text)
    served.send_signal(signal.SIGHUP)
    wait_until(lambda: f"{path}:{line}: " in served.err)
    assert f"edit-{number}" not in models(served)


def make_config(number: int, one: FakeUpstream, two: FakeUpstream) -> str:
    """Return a configuration with other providers, names and settings for each number."""
    first, second = (one, two) if number % 4 else (two, one)
    sections = [
        f'[providers.{name}]\nkind = "openai-compatible"\nendpoint = "{fake.url}"\n'
        f'api_key = "sk-fake-{number % 6}"\nmodels = ["m"]\n'
        for name, fake in ((f"p{number}", first), ("steady", second))
    ]
    routes = f'[[models]]\nname = "edit-{number}"\nto = ["steady/m"]\n[[models]]\nname = "any"\nto = ["p{number}/m"]\n'
    return f"[retry]\nattempts = {1 + number % 3}\n" + "".join(sections) + routes


def replace_file(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(text)
    os.replace(beside, path)


def models(served: Served) -> str:
    return send(served, "GET", "/v1/models", key=KEY).body.decode()


def send_requests(served: Served, results: Results, over: threading.Event) -> None:
    """Request whole replies and slow streams in turn, some with a name that every edit routes elsewhere."""
    for turn in itertools.count():
        if over.is_set():
            return
        slow = turn % 5 == 0
        try:
            reply = ask(served, "chat", "steady/m" if turn % 3 == 0 else "any", stream=slow, key=KEY)
            text = (join_deltas if slow else read_text)(reply) if reply.status == 200 else ""
        except Exception as error:
            results.wrong.append(repr(error))
            continue
        if not text:
            results.wrong.append(f"{reply.status} {reply.body[:300]!r}")
            continue
        results.texts[text] += 1
        results.routes[reply.headers["x-dragoman-route"]] += 1


def read_text(reply: Reply) -> str:
    text: str = msgspec.json.decode(reply.body)["choices"][0]["message"]["content"]
    return text


def join_deltas(reply: Reply) -> str:
    assert reply.body.endswith(b"data: [DONE]\n\n"), reply.body[-100:]
    chunks = msgspec.convert(reply.events, list[JsonObject])
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def make_answers(name: str) -> Callable[[ReceivedRequest], Answer]:
    slow = write_reply("chat", f"{name} says this slowly", cut=300, pause_s=0.02)
    at_once = write_reply("chat", name, stream=False)
    return lambda request: slow if request.json.get("stream") else at_once
