"""Ask a gateway over HTTP, in the protocol of any client, and return the reply as it came.

`raw_http` sends bytes that no HTTP library would, `sdk_replies` reads replies with the official SDKs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Protocol

import msgspec

from gateway import KEY
from wire_json import Json, JsonObject

CLIENTS = ("chat", "responses", "messages", "gemini")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
NO_HEADERS: Mapping[str, str] = {}
EXPLAIN: Mapping[str, str] = {"x-dragoman-explain": "1"}  # asks for `Reply.losses`
TIMEOUT_S = 60.0


class Listening(Protocol):
    """A server on the loopback: a gateway in this process or in its own, or a fake upstream."""

    @property
    def port(self) -> int: ...


@dataclass(frozen=True)
class Reply:
    status: int
    fields: tuple[tuple[str, str], ...]  # the headers in order, their names in lower case
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        return dict(self.fields)

    @property
    def json(self) -> Json:
        return msgspec.json.decode(self.body)

    @property
    def losses(self) -> list[tuple[str, str]]:
        """Return path and kind of each loss; the request must have been sent with `EXPLAIN`."""
        return [(loss["path"], loss["how"]) for loss in msgspec.json.decode(self.headers["x-dragoman-loss-detail"])]

    @property
    def events(self) -> list[Json]:
        """Return the JSON values of a stream of server-sent events, without Chat's `[DONE]`."""
        lines = (line.removeprefix(b"data:").strip() for line in self.body.splitlines() if line.startswith(b"data:"))
        return [msgspec.json.decode(line) for line in lines if line != b"[DONE]"]


def send(
    server: Listening,
    method: str,
    path: str,
    body: object = None,
    *,
    key: str | None = KEY,
    headers: Mapping[str, str] = NO_HEADERS,
) -> Reply:
    """Send one request on a connection of its own; a body that is not bytes is sent as JSON."""
    fields = {} if key is None else {"authorization": f"Bearer {key}"}
    data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
    if data is not None:
        fields["content-type"] = "application/json"
    connection = HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, data, {**fields, **headers})
        response = connection.getresponse()
        received = tuple((name.lower(), value) for name, value in response.getheaders())
        return Reply(response.status, received, response.read())
    finally:
        connection.close()


def ask(
    server: Listening,
    protocol: str,
    model: str,
    text: str = "Hello",
    *,
    stream: bool = False,
    key: str | None = KEY,
    headers: Mapping[str, str] = NO_HEADERS,
    **fields: object,
) -> Reply:
    """Ask a model in a client's protocol; `fields` are added to the body, and replace what is there."""
    body = make_body(protocol, model, text, stream=stream) | fields
    return send(server, "POST", find_path(protocol, model, stream=stream), body, key=key, headers=headers)


def find_path(protocol: str, model: str, *, stream: bool = False) -> str:
    """Return the path for a request; Gemini's has the model and the mode in it."""
    if protocol != "gemini":
        return PATHS[protocol]
    return f"/v1beta/models/{model}:" + ("streamGenerateContent?alt=sse" if stream else "generateContent")


def make_body(protocol: str, model: str, text: str = "Hello", *, stream: bool = False) -> JsonObject:
    """Return the smallest request with this text that the protocol allows."""
    match protocol:
        case "gemini":
            return {"contents": [{"role": "user", "parts": [{"text": text}]}]}
        case "responses":
            return {"model": model, "stream": stream, "input": text}
        case "messages":
            turns = [{"role": "user", "content": text}]
            return {"model": model, "stream": stream, "max_tokens": 500, "messages": turns}
        case "chat":
            body: JsonObject = {"model": model, "stream": stream, "messages": [{"role": "user", "content": text}]}
            return body | {"stream_options": {"include_usage": True}} if stream else body
    raise AssertionError(f"no client speaks {protocol}")
