"""Find model servers on ports of this machine, within a short time."""

import asyncio
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from dragoman.config.discovery import HOST, LocalServer
from dragoman.config.settings import ServerName
from dragoman.net.bodies import read_and_close
from dragoman.net.client import (
    ConnectionLost,
    DialOptions,
    HttpClient,
    OutgoingRequest,
    SizeLimitExceeded,
    UpstreamTimeout,
)
from dragoman.translate.framing.jsonread import parse_or

CONNECT_TIMEOUT_S = 0.2
LIST_TIMEOUT_S = 0.3  # for connecting and reading the list
ROOT_TIMEOUT_S = 0.1
MAX_BYTES = 4 * 1024 * 1024
DIAL = DialOptions(connect_timeout_s=CONNECT_TIMEOUT_S)

# The quirks of the server that usually has a port, and the servers that `owned_by` in a model list identifies.
USUAL_SERVERS: Mapping[str, tuple[ServerName, ...]] = {
    "ollama": ("ollama",),
    "lmstudio": (),
    "vllm": ("vllm",),
    "llamacpp": ("llama.cpp",),
}
OWNERS: Mapping[str, tuple[str, tuple[ServerName, ...]]] = {
    "vllm": ("vllm", ("vllm",)),
    "llamacpp": ("llamacpp", ("llama.cpp",)),
    "me": ("llamacpp", ("llama-cpp-python",)),
}


class _Model(Struct, frozen=True):
    id: str
    owned_by: str | None = None


class _Listed(Struct, frozen=True):
    data: list[_Model]


class _Root(Struct, frozen=True):
    message: str = ""


async def discover(ports: Mapping[str, int], *, own_port: int) -> tuple[LocalServer, ...]:
    """Return the servers that list models on those ports, other than on our own."""
    others = [(name, port) for name, port in ports.items() if port != own_port]
    if not others:
        return ()
    async with HttpClient() as http:
        found = await asyncio.gather(*(_find_server(http, name, port) for name, port in others))
    return _make_names_unique(server for server in found if server is not None)


async def _find_server(http: HttpClient, name: str, port: int) -> LocalServer | None:
    """Return the server on a port; None if there is none, or if it lists no model."""
    body = await _get(http, f"http://{HOST}:{port}/v1/models", LIST_TIMEOUT_S)
    listed = parse_or(body, _Listed, _Listed([]))
    if not listed.data or await _is_dragoman(http, port):
        return None
    name, quirks = OWNERS.get(listed.data[0].owned_by or "", (name, USUAL_SERVERS[name]))
    return LocalServer(name, port, quirks, tuple(model.id for model in listed.data))


async def _is_dragoman(http: HttpClient, port: int) -> bool:
    body = await _get(http, f"http://{HOST}:{port}/", ROOT_TIMEOUT_S)
    return parse_or(body, _Root, _Root()).message.startswith("dragoman")


async def _get(http: HttpClient, url: str, timeout_s: float) -> bytes:
    """Return the body of a response with status 200, else b""."""
    try:
        async with asyncio.timeout(timeout_s):
            response = await http.send(OutgoingRequest("GET", url, ()), DIAL, head_timeout_s=timeout_s)
            body = await read_and_close(response, MAX_BYTES, timeout_s)
    except (ConnectionLost, UpstreamTimeout, SizeLimitExceeded, TimeoutError):
        return b""
    return body if response.status == 200 else b""


def _make_names_unique(servers: Iterable[LocalServer]) -> tuple[LocalServer, ...]:
    """Add the port to the name of a second server of the same name."""
    named: dict[str, LocalServer] = {}
    for server in servers:
        name = f"{server.name}-{server.port}" if server.name in named else server.name
        named[name] = msgspec.structs.replace(server, name=name)
    return tuple(named.values())
