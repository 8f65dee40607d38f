"""The gateway from outside: three fake upstreams send bytes, and the answer to a request is returned as it is."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

import grammar_chat
import grammar_messages
import grammar_responses
from fakes.upstream import Answer, FakeUpstream
from gateway import KEY, Running, provider_section, running
from narrowing import expect
from wire_json import JsonObject

PROTOCOLS = ("chat", "responses", "messages")
GRAMMARS = {"chat": grammar_chat, "responses": grammar_responses, "messages": grammar_messages}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
ONCE = "[retry]\nattempts = 1\n"
JSON = "application/json"
TOOL = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS: dict[str, list[JsonObject]] = {
    "chat": [{"type": "function", "function": {"name": "weather", "parameters": TOOL}}],
    "responses": [{"type": "function", "name": "weather", "parameters": TOOL, "strict": False}],
    "messages": [{"name": "weather", "input_schema": TOOL}],
}


@dataclass
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> JsonObject:
        return expect(dict, json.loads(self.body))

    @property
    def losses(self) -> list[tuple[str, str]]:
        return [(loss["path"], loss["how"]) for loss in json.loads(self.headers["x-dragoman-loss-detail"])]


@dataclass
class Outside:
    gateway: Running
    fakes: dict[str, FakeUpstream] = field(default_factory=dict)

    def play(self, upstream: str, *answers: Answer) -> FakeUpstream:
        fake = self.fakes[upstream]
        fake.requests.clear()
        fake.answers = list(answers)
        return fake

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answered:
        """Header names are written with underscores."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        fields.setdefault("authorization", f"Bearer {KEY}")
        connection = HTTPConnection("127.0.0.1", self.gateway.port, timeout=60)
        try:
            connection.request(method, path, body, fields)
            answer = connection.getresponse()
            response = {name.lower(): value for name, value in answer.getheaders()}
            return Answered(answer.status, response, answer.read())
        finally:
            connection.close()

    def ask(self, client: str, model: str, stream: bool = False, **fields: object) -> Answered:
        body = request_body(client, model, stream, **fields)
        return self.send("POST", PATHS[client], body, content_type=JSON, x_dragoman_explain="1")

    def read_reply(
        self, client: str, upstream: str, answer: Answer, stream: bool = True, **fields: object
    ) -> JsonObject:
        """The reply as the client's own grammar folds it."""
        self.play(upstream, answer)
        response = self.ask(client, f"{upstream}/m", stream, **fields)
        assert response.status == 200, response.body
        return fold_events(client, response.body) if stream else GRAMMARS[client].whole(response.body)


def fold_events(client: str, body: bytes) -> JsonObject:
    """Return the reply of a stream; raises Illegal if it violates the grammar."""
    return grammar_chat.fold(body, usage_requested=True) if client == "chat" else GRAMMARS[client].fold(body)


def request_body(client: str, model: str, stream: bool = False, **fields: object) -> bytes:
    body: dict[str, object] = {"model": model, "stream": stream, "tools": TOOLS[client]}
    match client:
        case "responses":
            body |= {"input": "Go on.", "include": ["reasoning.encrypted_content"]}
        case "messages":
            body |= {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": 500}
        case "chat":
            body |= {"messages": [{"role": "user", "content": "Go on."}]}
            if stream:
                body["stream_options"] = {"include_usage": True}
    return json.dumps(body | fields).encode()


def sse(*events: JsonObject | str) -> bytes:
    """Events as their vendor writes them; those that have a type are named by it."""
    return b"".join(_block(event) for event in events)


def _block(event: JsonObject | str) -> bytes:
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


@contextmanager
def outside(
    directory: Path, settings: str = ONCE, models: tuple[str, ...] = (), pages: dict[str, Answer] | None = None
) -> Iterator[Outside]:
    with ExitStack() as stack:
        fakes = {name: stack.enter_context(FakeUpstream(models=models, pages=pages or {})) for name in PROTOCOLS}
        sections = [provider_section(name, fake.url, name) for name, fake in fakes.items()]
        yield Outside(stack.enter_context(running("\n".join([settings, *sections]), directory)), fakes)
