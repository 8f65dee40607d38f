"""A configuration comes in; a gateway to talk to goes out: the one that runs, or one of our own for this moment."""

import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from msgspec import Struct

from dragoman.cli.faults import Trouble
from dragoman.cli.settings import base_url
from dragoman.config import Config, Secret
from dragoman.net.client import (
    ConnectionLost,
    HttpClient,
    HttpResponse,
    OutgoingRequest,
    SizeLimitExceeded,
    UpstreamTimeout,
)
from dragoman.net.headers import JSON, Header, Headers
from dragoman.providers.connection import USER_AGENT

PROBE_S = 3.0  # where nobody listens, it is known at once
ANSWER_S = 60.0
MAX_BODY = 16 * 1024 * 1024


class _Root(Struct):
    status: str = ""
    message: str = ""
    version: str = ""


class _Error(Struct, frozen=True):
    message: str = ""


class _ErrorBody(Struct):
    error: _Error = _Error()


class Gateway(Struct, frozen=True):
    """One gateway and the key that it takes."""

    root: str
    key: str
    http: HttpClient

    async def get(self, path: str) -> bytes:
        _, body = await self.get_with_headers(path)
        return body

    async def get_with_headers(self, path: str) -> tuple[Headers, bytes]:
        answer = await self.send("GET", path, b"", ANSWER_S)
        try:
            return answer.headers, await answer.read(MAX_BODY, ANSWER_S)
        finally:
            answer.close()

    async def send(self, method: str, path: str, body: bytes, patience_s: float) -> HttpResponse:
        """The answer, from its head on; Trouble with the gateway's own words where it refuses."""
        agent = (b"user-agent", USER_AGENT.encode())
        headers: tuple[Header, ...] = ((b"authorization", b"Bearer " + self.key.encode()), agent)
        if body:
            headers = (*headers, JSON)
        answer = await self.http.send(
            OutgoingRequest(method, self.root + path, headers, body), head_timeout_s=patience_s
        )
        if answer.status == 200:
            return answer
        try:
            refusal = await answer.read(MAX_BODY, ANSWER_S)
        finally:
            answer.close()
        raise Trouble(self._refused(answer.status, refusal))

    def _refused(self, status: int, body: bytes) -> str:
        try:
            message = msgspec.json.decode(body, type=_ErrorBody).error.message
        except msgspec.MsgspecError:
            message = ""
        if status == 401:
            advice = "`dragoman keys create` makes a valid one; give it as $DRAGOMAN_API_KEY or --key."
            return f"the gateway at {self.root} refuses the key. {advice}"
        return f"{message or 'the gateway refused'} (HTTP {status})"


@asynccontextmanager
async def reach(config: Config, key: str | None) -> AsyncIterator[Gateway]:
    """The running gateway, if there is one and a key for it is known; else one in this process."""
    http = HttpClient()
    try:
        root = await find_running(config) if key else None
        if root is not None and key:
            yield Gateway(root, key, http)
        else:
            async with _own_gateway(config) as (own_root, own_key):
                yield Gateway(own_root, own_key, http)
    finally:
        await http.close()


def known_key(config: Config, given: str | None) -> str | None:
    key = given or (config.client_key.reveal() if config.client_key is not None else None)
    if key is not None and not key.isprintable():  # undecodable bytes are not, either
        where = "--key" if given else "$DRAGOMAN_API_KEY"
        raise Trouble(f"the key in {where} holds characters that no key has: was it copied whole, on one line?")
    return key


async def find_running(config: Config) -> str | None:
    """The address of the gateway that listens where the configuration says; None if nobody, or another, does."""
    root = base_url(config.server.host, config.server.port)
    return root if await version_at(root) is not None else None


async def version_at(root: str) -> str | None:
    """The version of the dragoman at an address, or None."""
    http = HttpClient()
    try:
        answer = await http.send(OutgoingRequest("GET", f"{root}/", ()), head_timeout_s=PROBE_S)
        try:
            found = msgspec.json.decode(await answer.read(MAX_BODY, PROBE_S), type=_Root)
        finally:
            answer.close()
    except (ConnectionLost, UpstreamTimeout, SizeLimitExceeded, msgspec.MsgspecError):
        return None
    finally:
        await http.close()
    return found.version if found.message.startswith("dragoman") else None


async def accepts(root: str, key: str) -> bool:
    """Whether the gateway at an address takes a key."""
    http = HttpClient()
    try:
        headers = ((b"authorization", b"Bearer " + key.encode()),)
        # A path that needs a key and costs nothing: this model exists nowhere.
        answer = await http.send(OutgoingRequest("GET", f"{root}/v1/models/-", headers), head_timeout_s=PROBE_S)
        answer.close()
    except (ConnectionLost, UpstreamTimeout):
        return False
    finally:
        await http.close()
    return answer.status != 401


@asynccontextmanager
async def _own_gateway(config: Config) -> AsyncIterator[tuple[str, str]]:
    """The same server and the same code path, on a port and with a key that nobody else knows."""
    from dragoman.accounts.keys import Keyring
    from dragoman.app import App

    key = secrets.token_urlsafe(32)
    server = msgspec.structs.replace(config.server, host="127.0.0.1", port=0, drain_s=0.0)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        app = App(msgspec.structs.replace(config, server=server), Keyring(None, Secret(key)), os.environ)
        await app.start(sock)
        try:
            yield base_url("127.0.0.1", app.server.port), key
        finally:
            await app.stop()
