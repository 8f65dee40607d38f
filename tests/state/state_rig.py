"""A gateway with a store and two client keys, in front of upstreams that keep nothing, and the SDK that judges it."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPConnection
from pathlib import Path

from openai import OpenAI
from openai.types.responses import Response, ResponseCompletedEvent, ResponseCreatedEvent

from asking import NO_HEADERS, Reply
from fakes.upstream import Answer, End, FakeUpstream
from narrowing import expect
from rig import ONCE, Rig, run_rig
from scripting import Scripted, write_reply
from scripting.replies import Ending, ScriptedReply, Text, Thinking, ToolCall
from waiting import wait_until
from wire_json import JsonObject

STATELESS = ("chat", "messages", "kiro")  # upstreams for which the gateway keeps everything
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
BACKGROUND_SETTINGS = f"{ONCE}[responses]\nbackground_lease_s = 60.0\n[server]\ndrain_s = 1\n"


@dataclass
class StateRig(Rig):
    @cached_property
    def clients(self) -> dict[str, OpenAI]:
        """OpenAI's SDK with each of the keys."""
        keys = self.gateway.keys.items()
        return {name: OpenAI(base_url=f"{self.gateway.url}/v1", api_key=key, max_retries=0) for name, key in keys}

    @property
    def openai(self) -> OpenAI:
        return self.clients["alice"]

    def create(self, key: str = "alice", *, stream: bool = False, **fields: object) -> Response:
        """Return a response, whole or as the end of a stream whose events all have its id."""
        sdk = self.clients[key]
        if not stream:
            return sdk.responses.create(extra_body=fields)
        events = list(sdk.responses.create(stream=True, extra_body=fields))
        named = [event for event in events if isinstance(event, ResponseCreatedEvent | ResponseCompletedEvent)]
        assert len({event.response.id for event in named}) == 1
        return expect(ResponseCompletedEvent, events[-1]).response

    def play(self, upstream: str, *answers: Answer | Scripted, stream: bool = False) -> FakeUpstream:
        return super().play(upstream, *answers, stream=stream)

    def http(
        self, method: str, path: str, key: str = "alice", body: object = None, headers: Mapping[str, str] = NO_HEADERS
    ) -> Reply:
        return self.send(method, f"/v1{path}", body, key=self.gateway.keys[key], headers=headers)

    def wait_for_end(self, id: object, key: str = "alice") -> JsonObject:
        """Poll a response, as a client does, until it has ended."""
        found: JsonObject = {}

        def has_ended() -> bool:
            found.update(self.http("GET", f"/responses/{id}", key).json)
            return found["status"] not in ("queued", "in_progress")

        wait_until(has_ended)
        return found

    def break_store(self) -> None:
        """Take the tables away, as a database that was replaced would."""
        # In a process of its own: two SQLite libraries in one process break each other's locks.
        drop = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=60).execute('DROP TABLE responses')"
        subprocess.run([sys.executable, "-c", drop, str(self.directory / "store.db")], check=True, timeout=60)

    def close(self) -> None:
        super().close()
        for client in self.__dict__.get("clients", {}).values():
            client.close()


@contextmanager
def state_rigged(directory: Path, settings: str = ONCE, openai: str = "") -> Iterator[StateRig]:
    """Start a rig whose keys are alice's and bob's; `openai` are further lines of that provider's section."""
    upstreams, options = ("chat", "messages", "openai", "kiro"), {"openai": openai}
    with run_rig(directory, settings, upstreams=upstreams, keys=("alice", "bob"), options=options) as rig:
        made = StateRig(rig.gateway, rig.fakes, directory)
        yield made
        made.close()


class OpenStream:
    """A streamed reply of which a client reads as much as it likes."""

    def __init__(self, rig: StateRig, method: str, path: str, body: object = None, key: str = "alice") -> None:
        self.connection = HTTPConnection("127.0.0.1", rig.port, timeout=60)
        headers = {"authorization": f"Bearer {rig.gateway.keys[key]}"}
        self.connection.request(method, f"/v1{path}", None if body is None else json.dumps(body), headers)
        self.answer = self.connection.getresponse()

    def events(self) -> Iterator[JsonObject]:
        for line in self.answer:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])

    def leave(self) -> None:
        self.answer.close()
        self.connection.close()


def endless(text: str = "Hello Ada.") -> Answer:
    """Return a reply that begins and never ends."""
    return write_reply("chat", ScriptedReply((Text(text),), ending=Ending.NONE), end=End.HANG)


HELLO, AGAIN = (Text("Hello Ada."),), (Text("Your name is Ada."),)
THOUGHT = (Thinking("She greets me.", "sig-1"), Text("Hello Ada."))
CALL = (ToolCall("call_1", "weather", '{"city": "Oslo"}'),)


def read_store_field(response: Response) -> object:
    """Return what a response says about its storage; the SDK's type has no field for it."""
    return response.model_dump()["store"]
