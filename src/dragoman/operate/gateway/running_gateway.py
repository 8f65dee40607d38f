"""Find a gateway that runs on this machine, and call it."""

from collections.abc import AsyncGenerator, Mapping
from types import MappingProxyType
from typing import Protocol, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from dragoman.config.settings import Config
from dragoman.net.bodies import read_and_close
from dragoman.net.client import (
    ConnectionLost,
    HttpClient,
    HttpResponse,
    OutgoingRequest,
    SizeLimitExceeded,
    UpstreamTimeout,
)
from dragoman.net.headers import JSON, Header, Headers
from dragoman.operate import AdminError, InvalidArgument, NotFound
from dragoman.operate.configuration.effective import base_url
from dragoman.operate.gateway.gateway_process import GatewayProcess, find_process, list_gateways
from dragoman.translate.framing.jsonread import JSON_ERRORS, parse_or
from dragoman.upstreams.section import USER_AGENT

PROBE_TIMEOUT_S = 3.0  # a port on which nothing listens is refused at once
RESPONSE_TIMEOUT_S = 60.0
MAX_BODY_BYTES = 16 * 1024 * 1024


NO_QUERY: Mapping[str, str] = MappingProxyType({})


class Page(Protocol):
    @property
    def next(self) -> str | None: ...


P = TypeVar("P", bound=Page)


class _Root(Struct):
    status: str = ""
    message: str = ""
    version: str = ""


class _Error(Struct, frozen=True):
    message: str = ""


class _ErrorBody(Struct):
    error: _Error = _Error()


class GatewayRefused(AdminError):
    """The gateway answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class GatewayClient(Struct, frozen=True):
    """One gateway and a key that it accepts."""

    root: str
    key: str
    http: HttpClient

    async def get(self, path: str) -> bytes:
        _, body = await self.get_with_headers(path)
        return body

    async def read_pages(self, path: str, kind: type[P], query: Mapping[str, str] = NO_QUERY) -> AsyncGenerator[P]:
        """Yield the pages of a list, each in a request of its own."""
        cursor: str | None = ""
        while cursor is not None:
            parameters = {**query, "cursor": cursor} if cursor else query
            page = msgspec.json.decode(
                await self.get(f"{path}?{urlencode(parameters)}" if parameters else path), type=kind
            )
            yield page
            cursor = page.next

    async def get_with_headers(self, path: str) -> tuple[Headers, bytes]:
        response = await self.send(self.make_request("GET", path), RESPONSE_TIMEOUT_S)
        return response.headers, await read_and_close(response, MAX_BODY_BYTES, RESPONSE_TIMEOUT_S)

    async def write(self, method: str, path: str, body: object = None, version: int | None = None) -> bytes:
        """Send a value as JSON and return the body of the response; what is changed must have this version."""
        content = b"" if body is None else msgspec.json.encode(body)
        response = await self.send(self.make_request(method, path, content, version), RESPONSE_TIMEOUT_S)
        return await read_and_close(response, MAX_BODY_BYTES, RESPONSE_TIMEOUT_S)

    def make_request(self, method: str, path: str, body: bytes = b"", version: int | None = None) -> OutgoingRequest:
        agent = (b"user-agent", USER_AGENT.encode())
        headers: tuple[Header, ...] = ((b"authorization", b"Bearer " + self.key.encode()), agent)
        if body:
            headers = (*headers, JSON)
        if version is not None:
            headers = (*headers, (b"if-match", f'"{version}"'.encode()))
        return OutgoingRequest(method, self.root + path, headers, body)

    async def send(self, request: OutgoingRequest, timeout_s: float) -> HttpResponse:
        """Return the response once its head has arrived; raise GatewayRefused where the status is not 200 or 201."""
        response = await self.http.send(request, head_timeout_s=timeout_s)
        if response.status in (200, 201):
            return response
        error_body = await read_and_close(response, MAX_BODY_BYTES, RESPONSE_TIMEOUT_S)
        raise GatewayRefused(response.status, self._describe_refusal(response.status, error_body))

    def _describe_refusal(self, status: int, body: bytes) -> str:
        if status == 401:
            return (
                f"The gateway at {self.root} rejects the key. `dragoman keys create` makes a valid one; "
                "set it as $DRAGOMAN_API_KEY, or pass it with --key."
            )
        message = parse_or(body, _ErrorBody, _ErrorBody()).error.message
        return f"{message or 'The gateway rejected the request.'} (HTTP {status})"


def choose_key(config: Config, given: str | None) -> str | None:
    """Return the client key to use: the given one, else the one of the environment."""
    key = given or (config.client_key.reveal() if config.client_key is not None else None)
    if key is not None and not key.isprintable():  # undecodable bytes are not printable either
        where = "--key" if given else "$DRAGOMAN_API_KEY"
        raise InvalidArgument(
            f"The key in {where} contains characters that no key has. Was it copied completely, on one line?"
        )
    return key


async def find_gateway(config: Config, environ: Mapping[str, str], url: str | None = None) -> str | None:
    """Return the address of the gateway that a command talks to; None if none runs.

    It is the one at the given address, else the one where the configuration says, else the newest of this user's.
    Raises AdminError if no gateway answers at the given address.
    """
    if url is not None:
        root = trim_url(url)
        if await read_version(root) is None:
            raise AdminError(f"No dragoman answers at {root}.")
        return root
    noted = (process.root for process in list_gateways(environ))
    for root in dict.fromkeys((base_url(config.server.host, config.server.port), *noted)):
        if await read_version(root) is not None:
            return root
    return None


async def require_gateway(config: Config, environ: Mapping[str, str], url: str | None = None) -> str:
    """Return the address of the gateway that a command talks to; raises NotFound if none runs."""
    root = await find_gateway(config, environ, url)
    if root is None:
        address = base_url(config.server.host, config.server.port)
        raise NotFound(f"No gateway is running at {address}. Start one: dragoman serve")
    return root


async def find_gateway_process(config: Config, environ: Mapping[str, str], url: str | None = None) -> GatewayProcess:
    """Return the process of the gateway to stop: of the one that answers, else of one that drains and does not.

    Raises AdminError if there is none, or if it is not a process of this user on this machine.
    """
    try:
        root = await require_gateway(config, environ, url)
    except AdminError:
        address = base_url(config.server.host, config.server.port) if url is None else trim_url(url)
        draining = find_process(environ, address)
        if draining is None and url is None:
            draining = next(iter(list_gateways(environ)), None)
        if draining is None:
            raise
        return draining
    process = find_process(environ, root)
    if process is None:
        raise AdminError(
            f"The gateway at {root} is not a process of yours on this machine, or has another data directory "
            "($DRAGOMAN_DATA, $XDG_DATA_HOME). Stop it where it was started."
        )
    return process


def trim_url(url: str) -> str:
    """Return a gateway's address without the API version, which clients add."""
    return url.rstrip("/").removesuffix("/v1")


def require_key(key: str | None, url: str) -> str:
    """Return the key for a gateway that the user named; raises AdminError if there is none."""
    if key is None:
        raise AdminError(f"A key for {url} is needed: set $DRAGOMAN_API_KEY, or pass --key.")
    return key


async def read_version(root: str) -> str | None:
    """Return the version of the dragoman at an address, or None where there is none."""
    try:
        async with HttpClient() as http:
            response = await http.send(OutgoingRequest("GET", f"{root}/", ()), head_timeout_s=PROBE_TIMEOUT_S)
            body = msgspec.json.decode(await read_and_close(response, MAX_BODY_BYTES, PROBE_TIMEOUT_S), type=_Root)
    except (ConnectionLost, UpstreamTimeout, SizeLimitExceeded, *JSON_ERRORS):
        return None
    return body.version if body.message.startswith("dragoman") else None


async def accepts_key(root: str, key: str) -> bool:
    """Return whether the gateway at an address accepts a key."""
    headers = ((b"authorization", b"Bearer " + key.encode()),)
    out = OutgoingRequest("GET", f"{root}/v1/models/-", headers)  # needs a key and costs nothing: no such model
    try:
        async with HttpClient() as http:
            response = await http.send(out, head_timeout_s=PROBE_TIMEOUT_S)
    except (ConnectionLost, UpstreamTimeout):
        return False
    return response.status != 401
