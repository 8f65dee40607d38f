"""Requests that are not to be stored leave nothing of their content on the disk, whatever way they take."""

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import pytest
from websockets.sync.client import connect

from asking import CLIENTS, find_path
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import KEY, provider_section
from raw_http import Answered, ask, dial, request_bytes
from scripting import write_error, write_reply
from shell import Served, Shell
from waiting import wait_until

CANARY = re.compile(rb"canary-[0-9a-f]{24}")
WORD = "xxxxx"  # the piece of text that an event has; each becomes the canary of the request


@dataclass
class Canaries:
    """A unique text for each request; replies repeat it, and have one of their own."""

    sent: dict[str, str] = field(default_factory=dict)  # by what was done

    def new(self, what: str) -> str:
        self.sent[what] = f"canary-{secrets.token_hex(12)}"
        return self.sent[what]

    def find_in(self, files: dict[str, bytes]) -> dict[str, set[str]]:
        """Return in which files the text of which request is."""
        found: dict[str, set[str]] = {}
        for what, canary in self.sent.items():
            places = {name for name, data in files.items() if canary.encode() in data}
            if places:
                found[what] = places
        return found


def answer(protocol: str, request: ReceivedRequest) -> Answer:
    found = CANARY.search(request.body)
    canary = b"" if found is None else found[0]
    if b"refuse" in request.body:
        return write_error(400, canary.decode())
    is_stream = "stream" in request.path or b'"stream":true' in request.body.replace(b" ", b"")
    reply = write_reply(protocol, WORD * 20, stream=is_stream)
    paced = replace(reply, cut=400, pause_s=0.002) if is_stream else reply
    return replace(paced, body=reply.body.replace(WORD.encode(), canary))


@dataclass(frozen=True)
class Way:
    """One client protocol before one upstream, in one mode."""

    client: str
    upstream: str
    stream: bool

    @property
    def name(self) -> str:
        return f"{self.client}>{self.upstream} {'stream' if self.stream else 'whole'}"

    def request(self, text: str, *fields: str, **body: object) -> bytes:
        turns = [{"role": "user", "content": f"Repeat {text}"}]
        bodies: dict[str, dict[str, object]] = {
            "chat": {"messages": [{"role": "system", "content": text}, *turns], "user": text},
            "messages": {"system": text, "messages": turns, "max_tokens": 99},
            "responses": {"instructions": text, "input": turns, "store": False, "metadata": {"name": text}},
            "gemini": {"contents": [{"role": "user", "parts": [{"text": text}]}]},
        }
        named = {} if self.client == "gemini" else {"model": f"{self.upstream}/m", "stream": self.stream}
        return request_bytes(
            find_path(self.client, f"{self.upstream}/m", stream=self.stream),
            json.dumps({**named, **bodies[self.client], **body}).encode(),
            *fields,
        )


@contextmanager
def serve(shell: Shell) -> Iterator[Served]:
    """Run a gateway in front of an upstream of each protocol."""
    fakes = {name: FakeUpstream(keep_alive=False) for name in CLIENTS}
    try:
        for name, fake in fakes.items():
            fake.__enter__()
            fake.choose = lambda request, name=name: answer(name, request)
        sections = [provider_section(name, fake.url, name) for name, fake in fakes.items()]
        sections.append(provider_section("openai", fakes["responses"].url, "openai"))
        toml = shell.write("all.toml", "[retry]\nattempts = 1\n[responses]\npark_s = 0.5\n" + "\n".join(sections))
        with shell.serve("--config", str(toml), "--verbose", "--log-json", DRAGOMAN_API_KEY=KEY) as served:
            yield served
    finally:
        for fake in fakes.values():
            fake.__exit__(None, None, None)


def send_all(port: int, canaries: Canaries) -> None:
    for client, upstream, stream in product(CLIENTS, CLIENTS, (False, True)):
        send_each(port, canaries, Way(client, upstream, stream))


def send_each(port: int, canaries: Canaries, way: Way) -> None:
    """Send a request that is answered, keyed, parked, cancelled and refused."""
    for fields in ((), (f"idempotency-key: {way.name}",)):
        answered = ask(port, way.request(canaries.new(f"{way.name} {fields}"), *fields))
        assert (answered.status, CANARY.search(answered.body) is not None) == (200, True), (way.name, answered)
    leave(port, way.request(canaries.new(f"{way.name} parked"), "x-dragoman-park: 1"))
    leave(port, way.request(canaries.new(f"{way.name} cancelled")))
    assert ask(port, way.request(f"refuse {canaries.new(f'{way.name} refused')}")).status == 400


def leave(port: int, request: bytes) -> None:
    with dial(port) as opened:
        opened.sendall(request)
        opened.recv(200)


def talk(port: int, canaries: Canaries) -> None:
    """Send a conversation over a WebSocket, whose memory is that of the connection."""
    with connect(
        f"ws://127.0.0.1:{port}/v1/responses", additional_headers={"authorization": f"Bearer {KEY}"}
    ) as opened:
        previous = None
        for turn in range(2):
            fields = {"input": canaries.new(f"socket {turn}"), "store": False, "previous_response_id": previous}
            opened.send(json.dumps({"type": "response.create", "model": "chat/m", **fields}))
            while (event := json.loads(opened.recv(timeout=60)))["type"] != "response.completed":
                pass
            previous = event["response"]["id"]


def read_files(home: Path) -> dict[str, bytes]:
    files = (path for path in sorted(home.rglob("*")) if path.is_file() and path.suffix != ".toml")
    return {str(path.relative_to(home)): path.read_bytes() for path in files}


@pytest.mark.rest
def test_what_is_not_to_be_stored_is_in_no_file_and_no_log_line(shell: Shell) -> None:
    canaries, kept = Canaries(), Canaries()
    with serve(shell) as served:
        send_all(served.port, canaries)
        talk(served.port, canaries)
        for upstream in ("chat", "messages", "gemini"):
            store(served.port, upstream, kept.new(f"stored, {upstream}"))
        store(served.port, "openai", canaries.new("stored by the upstream"))
        wait_until(lambda: served.err.count('"request_id"') > len(canaries.sent))  # parked replies end, too
        files = read_files(shell.home)
        assert any(name.endswith("-wal") for name in files)
        assert served.end() == 0
    files |= {f"{name} after the end": data for name, data in read_files(shell.home).items()}
    files |= {"stdout": served.out.encode(), "stderr": served.err.encode()}
    assert canaries.find_in(files) == {}
    stored = kept.find_in(files)
    assert stored.keys() == kept.sent.keys()
    assert all("dragoman.db" in name for places in stored.values() for name in places)


def store(port: int, upstream: str, canary: str) -> Answered:
    answered = ask(port, Way("responses", upstream, True).request(canary, store=True))
    assert (answered.status, canary.encode() in answered.body) == (200, True)
    return answered
