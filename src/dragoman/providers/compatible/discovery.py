"""Ports of this machine come in; the model servers that answer there go out, soon, whoever keeps silent."""

import asyncio
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from dragoman.config.discovery import HOST, LocalServer
from dragoman.config.settings import ServerName
from dragoman.net.client import (
    ConnectionLost,
    DialOptions,
    HttpClient,
    OutgoingRequest,
    SizeLimitExceeded,
    UpstreamTimeout,
)

CONNECT_TIMEOUT_S = 0.2
LIST_TIMEOUT_S = 0.3  # for connecting and listing
ROOT_TIMEOUT_S = 0.1
MAX_BYTES = 4 * 1024 * 1024
DIAL = DialOptions(connect_timeout_s=CONNECT_TIMEOUT_S)

# What a port's usual tenant is known for, and whom a list of models gives away, whatever the port.
USUAL_SERVERS: Mapping[str, tuple[ServerName, ...]] = {
    "ollama": ("ollama",),
    "lmstudio": (),
    "vllm": (),
    "llamacpp": (),
}
OWNERS: Mapping[str, tuple[str, tuple[ServerName, ...]]] = {
    "vllm": ("vllm", ()),
    "llamacpp": ("llamacpp", ()),
    "me": ("llamacpp", ("llama-cpp-python",)),
}


class _Model(Struct, frozen=True):
    id: str
    owned_by: str | None = None


class _Listed(Struct, frozen=True):
    data: list[_Model]


class _Root(Struct, frozen=True):
    message: str = ""


async def discover(ports: Mapping[str, int], *, besides: int) -> tuple[LocalServer, ...]:
    """Who lists models on those ports, asked all at once; `besides` is our own port, which is not asked."""
    wanted = [(name, port) for name, port in ports.items() if port != besides]
    if not wanted:
        return ()
    http = HttpClient()
    try:
        found = await asyncio.gather(*(_at(http, name, port) for name, port in wanted))
    finally:
        await http.close()
    return _named_apart(server for server in found if server is not None)


async def _at(http: HttpClient, name: str, port: int) -> LocalServer | None:
    """The server on a port. One without a single model can answer nobody, and is left alone."""
    body = await _get(http, f"http://{HOST}:{port}/v1/models", LIST_TIMEOUT_S)
    try:
        listed = msgspec.json.decode(body, type=_Listed)
    except msgspec.MsgspecError:
        return None
    if not listed.data or await _is_dragoman(http, port):
        return None
    name, quirks = OWNERS.get(listed.data[0].owned_by or "", (name, USUAL_SERVERS[name]))
    return LocalServer(name, port, quirks)


async def _is_dragoman(http: HttpClient, port: int) -> bool:
    body = await _get(http, f"http://{HOST}:{port}/", ROOT_TIMEOUT_S)
    try:
        return msgspec.json.decode(body, type=_Root).message.startswith("dragoman")
    except msgspec.MsgspecError:
        return False


async def _get(http: HttpClient, url: str, timeout_s: float) -> bytes:
    """The body of a good answer that comes in time, else nothing."""
    try:
        async with asyncio.timeout(timeout_s):
            response = await http.send(OutgoingRequest("GET", url, ()), DIAL, head_timeout_s=timeout_s)
            try:
                body = await response.read(MAX_BYTES, timeout_s)
            finally:
                response.close()
    except (ConnectionLost, UpstreamTimeout, SizeLimitExceeded, TimeoutError):
        return b""
    return body if response.status == 200 else b""


def _named_apart(servers: Iterable[LocalServer]) -> tuple[LocalServer, ...]:
    """A second server of a name is called by its port as well."""
    named: dict[str, LocalServer] = {}
    for server in servers:
        name = f"{server.name}-{server.port}" if server.name in named else server.name
        named[name] = msgspec.structs.replace(server, name=name)
    return tuple(named.values())
