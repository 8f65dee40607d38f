"""A thousand requests while the configuration is edited a hundred times, half of the edits broken: none fails."""

import itertools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

import msgspec

from fakes.service import json_answer
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from shell import Served, Shell
from waiting import wait_until

EDITS = 100
REQUESTS = 1000
CLIENTS = 6
KEY = "dgm_fake-key-of-the-one-who-asks-all-the-time"
HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
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


def test_edits_of_the_configuration_fail_no_request(shell: Shell) -> None:
    path = shell.write("edited.toml", "")
    results, over = Results(), threading.Event()
    with FakeUpstream(choose=make_answers("one")) as one, FakeUpstream(choose=make_answers("two")) as two:
        replace_file(path, make_config(0, one, two))
        with shell.serve("--config", str(path), DRAGOMAN_API_KEY=KEY) as served:
            clients = [threading.Thread(target=send_requests, args=(served, results, over)) for _ in range(CLIENTS)]
            for client in clients:
                client.start()
            try:
                for number in range(1, EDITS + 1):
                    edit(served, path, number, one, two)
                    results.wait_for(number * REQUESTS // EDITS)
            finally:
                over.set()
                for client in clients:
                    client.join(30)
            assert results.wrong == []
            assert results.count >= REQUESTS
            assert set(results.texts) == {"one says this slowly", "two says this slowly", "one", "two"}
            assert len(results.routes) > EDITS // 4, results.routes
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
    return ask(served, "GET", "/v1/models", None)[2].decode()


def ask(served: Served, method: str, path: str, body: object) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection("127.0.0.1", served.port, timeout=60)
    try:
        connection.request(method, path, None if body is None else msgspec.json.encode(body), HEADERS)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def send_requests(served: Served, results: Results, over: threading.Event) -> None:
    """Request whole replies and slow streams in turn, some with a name that every edit routes elsewhere."""
    for turn in itertools.count():
        if over.is_set():
            return
        slow = turn % 5 == 0
        body = {"model": "steady/m" if turn % 3 == 0 else "any", "stream": slow}
        try:
            status, headers, content = ask(
                served, "POST", "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": "?"}]}
            )
            text = (join_deltas if slow else read_text)(content) if status == 200 else ""
        except Exception as error:
            results.wrong.append(repr(error))
            continue
        if status != 200 or not text:
            results.wrong.append(f"{status} {content[:300]!r}")
            continue
        results.texts[text] += 1
        results.routes[headers["x-dragoman-route"]] += 1


def read_text(body: bytes) -> str:
    text: str = msgspec.json.decode(body)["choices"][0]["message"]["content"]
    return text


def join_deltas(body: bytes) -> str:
    blocks = body.decode().strip().split("\n\n")
    assert blocks[-1] == "data: [DONE]", blocks[-1]
    chunks = [msgspec.json.decode(block.removeprefix("data: ")) for block in blocks[:-1]]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def make_answers(name: str) -> Callable[[ReceivedRequest], Answer]:
    head = {"id": "chatcmpl-1", "created": 1, "model": "m"}

    def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        value = {**head, "object": "chat.completion.chunk", "choices": [choice]}
        return b"data: %b\n\n" % msgspec.json.encode(value)

    words = [chunk({"role": "assistant", "content": name})]
    words += [chunk({"content": f" {word}"}) for word in ("says", "this", "slowly")]
    slow = b"".join(words) + chunk({}, "stop") + b"data: [DONE]\n\n"
    message = {"role": "assistant", "content": name}
    at_once = {
        **head,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }

    def choose(request: ReceivedRequest) -> Answer:
        return Answer(slow, cut=100, pause_s=0.02) if request.json.get("stream") else json_answer(at_once)

    return choose
