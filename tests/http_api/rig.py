"""Call the admin API of a gateway that runs in this process."""

import asyncio
import http.client
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dragoman.accounts.keys import Grant, KeyRole, Scope
from gateway import KEY, Running
from waiting import wait_until
from wire_json import Json

ECHO = '[providers.echo]\nkind = "echo"\n'


@dataclass
class ApiResponse:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        return msgspec.json.decode(self.body)


def call(gateway: Running, method: str, path: str, *, key: str | None = KEY, body: object = None,
         headers: dict[str, str] | None = None) -> ApiResponse:  # fmt: skip
    """Send a request; the body is sent as JSON, or as it is if it is bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    fields = {} if key is None else {"authorization": f"Bearer {key}"}
    data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
    if data is not None:
        fields["content-type"] = "application/json"
    connection.request(method, path, data, fields | (headers or {}))
    response = connection.getresponse()
    received = response.read()
    connection.close()
    return ApiResponse(response.status, {name.lower(): value for name, value in response.getheaders()}, received)


def chat(gateway: Running, key: str, model: str = "echo", request_id: str = "") -> int:
    """Make a request for a model, which leaves a usage row."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    headers = {"x-request-id": request_id} if request_id else {}
    return call(gateway, "POST", "/v1/chat/completions", key=key, body=body, headers=headers).status


def make_token(gateway: Running, *scopes: Scope) -> str:
    """Make an admin token, as its owner would on the command line."""
    grant = Grant(KeyRole.ADMIN, frozenset(scopes))
    making = gateway.app.keyring.create(f"token {' '.join(scopes) or 'without scopes'}", grant)
    return asyncio.run_coroutine_threadsafe(making, gateway.loop).result(timeout=60).secret.reveal()


def capture_all(directory: Path) -> str:
    return f'{ECHO}[debug]\ncapture = "all"\ndirectory = "{directory}/captures"\n'


def wait_for_captures(gateway: Running, count: int) -> None:
    """Wait until so many requests are captured: their files are written by a thread, after the responses."""
    wait_until(lambda: len(call(gateway, "GET", "/api/v1/captures").json["captures"]) == count)
