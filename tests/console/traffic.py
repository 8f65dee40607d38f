"""Requests to a gateway with echo, so that the console has something to show."""

import http.client

import msgspec

from fakes.upstream import Answer, Gate
from gateway import KEY, Running

ECHO = '[providers.echo]\nkind = "echo"\n'
PRICED = """
[[prices]]
model = "echo/*"
input = 3.0
output = 15.0
"""


def make_capturing_config(directory: object) -> str:
    """Return a configuration with echo that captures every request."""
    routes = '[[models]]\nname = "claude-*"\nto = ["echo/echo"]\n'
    return f'{ECHO}{PRICED}[debug]\ncapture = "all"\ndirectory = "{directory}"\n{routes}'


def make_stream(words: list[str], gate: Gate) -> Answer:
    """Return a Chat stream with one event for each word; the bytes after the gate wait until it is opened."""
    deltas: list[object] = [{"role": "assistant"}, *({"content": f"{word} "} for word in words)]
    choices: list[dict[str, object]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    events = [b"data: %b\n\n" % msgspec.json.encode({**head, "choices": [choice]}) for choice in choices]
    return Answer(b"".join([*events, b"data: [DONE]\n\n"]), cut=len(events[1]), gate=gate)


def ask(
    gateway: Running,
    text: str = "What is a dragoman?",
    model: str = "echo",
    request_id: str = "",
    key: str = KEY,
    agent: str = "claude-cli/2.1",
    max_tokens: int = 100,
    **fields: object,
) -> int:
    """Send a streamed Messages request, with these fields too, and return the status of the response."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    body = {"model": model, "max_tokens": max_tokens, "stream": True, "messages": [{"role": "user", "content": text}]}
    body |= fields
    headers = {"x-api-key": key, "content-type": "application/json", "user-agent": agent}
    if request_id:
        headers["x-request-id"] = request_id
    connection.request("POST", "/v1/messages", msgspec.json.encode(body), headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status
