"""A gateway with a store and two client keys, in front of upstreams that keep nothing, and the SDK that judges it."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import msgspec
from openai import OpenAI
from openai.types.responses import Response, ResponseCompletedEvent, ResponseCreatedEvent

from fakes.eventstream import event
from fakes.kiro import FakeKiro, make_framed, sign, tail, tool, words
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import Running, provider_section, running
from narrowing import expect
from scripting import encode_chat, encode_messages, encode_responses
from scripting.replies import Part, ScriptedReply, Stop, Text, Thinking, ToolCall
from wire_json import JsonObject

STATELESS = ("chat", "messages", "kiro")  # upstreams for which the gateway keeps everything
MODELS = {
    "chat": "chat/m",
    "messages": "messages/claude-opus-4-6",
    "kiro": "kiro/claude-sonnet-4.5",
    "openai": "openai/m",
}
ENCODERS = {"chat": encode_chat, "messages": encode_messages, "openai": encode_responses}
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
NO_HEADERS: Mapping[str, str] = {}
SETTINGS = "[retry]\nattempts = 1\n"


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> JsonObject:
        return msgspec.json.decode(self.body, type=JsonObject)


@dataclass
class StateRig:
    gateway: Running
    fakes: dict[str, FakeUpstream]
    clients: dict[str, OpenAI]
    directory: Path

    @property
    def sdk(self) -> OpenAI:
        return self.clients["alice"]

    def create(self, key: str = "alice", *, stream: bool = False, **fields: object) -> Response:
        """Return a response, whole or as the end of a stream whose events all have its id."""
        sdk = self.clients[key]
        if not stream:
            return sdk.responses.create(extra_body=fields)
        events = list(sdk.responses.create(stream=True, extra_body=fields))
        ids = {
            event.response.id for event in events if isinstance(event, ResponseCreatedEvent | ResponseCompletedEvent)
        }
        assert len(ids) == 1
        return expect(ResponseCompletedEvent, events[-1]).response

    def play(self, upstream: str, *replies: Sequence[Part], stream: bool = False) -> FakeUpstream:
        """Prepare the upstream's next answers, and forget its requests so far."""
        fake = self.fakes[upstream]
        fake.requests.clear()
        answers = [_answer(upstream, parts, stream) for parts in replies]
        if isinstance(fake, FakeKiro):
            fake.replies, fake.played = answers, 0
            fake.counts.clear()
        else:
            fake.answers = answers
        return fake

    def calls(self, upstream: str) -> list[ReceivedRequest]:
        """Return the requests for a reply, as the upstream got them."""
        calls = self.fakes[upstream].calls
        return [request for request in calls if upstream != "kiro" or b"conversationState" in request.body]

    def break_store(self) -> None:
        """Take the tables away, as a database that was replaced would."""
        # In a process of its own: two SQLite libraries in one process break each other's locks.
        drop = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=60).execute('DROP TABLE responses')"
        subprocess.run([sys.executable, "-c", drop, str(self.directory / "store.db")], check=True, timeout=60)

    def http(
        self, method: str, path: str, key: str = "alice", body: object = None, headers: Mapping[str, str] = NO_HEADERS
    ) -> "Reply":
        connection = HTTPConnection("127.0.0.1", self.gateway.port, timeout=60)
        try:
            fields = {"authorization": f"Bearer {self.gateway.keys[key]}", **headers}
            connection.request(method, f"/v1{path}", None if body is None else json.dumps(body), fields)
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()


def _answer(upstream: str, parts: Sequence[Part], stream: bool) -> Answer:
    if upstream == "kiro":
        return make_framed(*(_frame(part) for part in parts), tail("TOOL_USE" if _calls(parts) else "END_TURN"))
    scripted = ScriptedReply(tuple(parts), Stop.TOOL if _calls(parts) else Stop.NATURAL)
    encoder = ENCODERS[upstream]
    return (
        Answer(encoder.encode_stream(scripted))
        if stream
        else Answer(encoder.encode_whole(scripted), content_type="application/json")
    )


def _calls(parts: Sequence[Part]) -> bool:
    return any(isinstance(part, ToolCall) for part in parts)


def _frame(part: Part) -> bytes:
    match part:
        case Text(text):
            return words(text)
        case Thinking(text, seal):
            thought = event("reasoningContentEvent", {"text": text})
            return thought + event("reasoningContentEvent", {"signature": seal}) if seal else thought
        case ToolCall(id, name, arguments):
            return tool(id, name, input=arguments) + tool(id, name, stop=True)
        case _:
            raise AssertionError(f"the fake Kiro does not say {part}")


@contextmanager
def state_rigged(directory: Path, settings: str = SETTINGS, openai: str = "") -> Iterator[StateRig]:
    with ExitStack() as stack:
        fakes: dict[str, FakeUpstream] = {
            name: stack.enter_context(FakeUpstream(keep_alive=False)) for name in ("chat", "messages", "openai")
        }
        sections = [provider_section(name, fakes[name].url, name) for name in ("chat", "messages")]
        vendor = f'[providers.openai]\nkind = "openai"\nendpoint = "{fakes["openai"].url}"\napi_key = "sk-fake"\n'
        sections.append(vendor + openai)
        kiro = stack.enter_context(FakeKiro())
        tokens, file = kiro.issue(), directory / "kiro-auth-token.json"
        sign(file, str(tokens["accessToken"]), str(tokens["refreshToken"]), 7200)
        fakes["kiro"] = kiro
        sections.append(kiro.section(str(file), "kiro"))
        gateway = stack.enter_context(running("\n".join([settings, *sections]), directory, stored=("alice", "bob")))
        clients = {
            name: stack.enter_context(OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0))
            for name, key in gateway.keys.items()
        }
        yield StateRig(gateway, fakes, clients, directory)


HELLO, AGAIN = (Text("Hello Ada."),), (Text("Your name is Ada."),)
THOUGHT = (Thinking("She greets me.", "sig-1"), Text("Hello Ada."))
CALL = (ToolCall("call_1", "weather", '{"city": "Oslo"}'),)


def read_store_field(response: Response) -> object:
    """Return what a response says about its storage; the SDK's type has no field for it."""
    return response.model_dump()["store"]
