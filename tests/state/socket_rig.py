"""A client of the gateway's WebSocket: opens a connection, sends requests and reads events."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from websockets.sync.client import ClientConnection, connect

from state.state_rig import StateRig
from wire_json import JsonObject

ASK = {"type": "response.create", "model": "chat/m", "input": "Hi", "store": False}


@contextmanager
def socket(rig: StateRig, key: str = "alice") -> Iterator[ClientConnection]:
    url = f"ws://127.0.0.1:{rig.gateway.port}/v1/responses"
    headers = {"authorization": f"Bearer {rig.gateway.keys[key]}"}
    with connect(url, additional_headers=headers, open_timeout=60, close_timeout=1) as opened:
        yield opened


def receive(opened: ClientConnection) -> JsonObject:
    message: JsonObject = json.loads(opened.recv(timeout=60))
    return message


def run(opened: ClientConnection, **fields: object) -> list[JsonObject]:
    """Send a request and return its events, to the last one or to an error."""
    opened.send(json.dumps({**ASK, **fields}))
    return events(opened)


def events(opened: ClientConnection) -> list[JsonObject]:
    found: list[JsonObject] = []
    while not found or found[-1]["type"] not in ("response.completed", "response.failed", "error"):
        found.append(receive(opened))
    return found


def response(found: list[JsonObject]) -> JsonObject:
    body = found[-1]["response"]
    assert isinstance(body, dict)
    return body


def error(found: list[JsonObject]) -> JsonObject:
    body = found[-1]["error"]
    assert isinstance(body, dict), found[-1]
    return body
