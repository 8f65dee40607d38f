"""What the tests of background responses share."""

import json
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse

from fakes.upstream import Answer, End
from scripting import encode_chat
from scripting.replies import Ending, ScriptedReply, Text
from state.state_rig import SETTINGS, Reply, StateRig
from wire_json import JsonObject

BACKGROUND_SETTINGS = SETTINGS + "[responses]\nbackground_lease_s = 60.0\n[server]\ndrain_s = 1\n"
UNFINISHED = ("queued", "in_progress")


def wait_for_end(rig: StateRig, id: object, key: str = "alice") -> JsonObject:
    """Poll a response, as a client does, until it has ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = rig.http("GET", f"/responses/{id}", key).json
        if found["status"] not in UNFINISHED:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{id} did not end")


def wait_until(condition: object, what: str) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def endless(text: str = "Hello Ada.") -> Answer:
    """Return a reply that begins and never ends."""
    return Answer(encode_chat.encode_stream(ScriptedReply((Text(text),), ending=Ending.NONE)), end=End.HANG)


def slow(*words: str, pause_s: float = 0.02) -> Answer:
    """Return a streamed reply whose bytes come bit by bit."""
    body = encode_chat.encode_stream(ScriptedReply((Text(" ".join(words)),)))
    return Answer(body, cut=max(40, len(body) // 40), pause_s=pause_s)


def read_events(reply: Reply | bytes) -> list[JsonObject]:
    body = reply if isinstance(reply, bytes) else reply.body
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]


class OpenStream:
    """A streamed reply of which a client reads as much as it likes."""

    def __init__(self, rig: StateRig, method: str, path: str, body: object = None, key: str = "alice") -> None:
        self.connection = HTTPConnection("127.0.0.1", rig.gateway.port, timeout=60)
        headers = {"authorization": f"Bearer {rig.gateway.keys[key]}"}
        self.connection.request(method, f"/v1{path}", None if body is None else json.dumps(body), headers)
        self.answer: HTTPResponse = self.connection.getresponse()

    def events(self) -> Iterator[JsonObject]:
        for line in self.answer:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])

    def leave(self) -> None:
        self.answer.close()
        self.connection.close()


def gather(work: list[threading.Thread]) -> None:
    for thread in work:
        thread.start()
    for thread in work:
        thread.join(60)
