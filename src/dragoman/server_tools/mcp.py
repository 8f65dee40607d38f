"""A small MCP client: calls one tool of a server, over streamable HTTP or over the pipes of a subprocess.

Only what a tool call needs is here: the handshake, `tools/call`, `tools/list` for a check, and answers to a server's
pings. The official SDK can do far more, and would add 24 packages to an installation that has 11.
"""

import asyncio
import contextlib
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from dragoman.net.client import ConnectionLost, IncomingResponse, OutgoingRequest, UpstreamTimeout
from dragoman.net.headers import JSON, Header
from dragoman.net.tasks import spawn
from dragoman.server_tools.service import MAX_BYTES, ToolService
from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.translate.framing.sse import Frame, SseFramer
from dragoman.translate.hub.request import Json
from dragoman.translate.hub.server_tools import ToolErrorCode, ToolFailure

log = logging.getLogger(__name__)

PROTOCOL_VERSION = "2025-06-18"
INVALID_PARAMS = -32602
METHOD_NOT_FOUND = -32601
ACCEPT: Header = (b"accept", b"application/json, text/event-stream")
KEPT_VARIABLES = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "TMPDIR")
LINE_LIMIT = 4 * 1024 * 1024
CLOSE_S = 2.0


class ToolContent(Struct):
    type: str = ""
    text: str | None = None


class McpToolResult(Struct, rename="camel"):
    """What `tools/call` returned."""

    content: list[ToolContent] = []
    structured_content: Json = None
    is_error: bool = False

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.content if part.text)

    @property
    def size(self) -> int:
        """Return the number of characters of the text."""
        return sum(len(part.text) for part in self.content if part.text)


class ListedTool(Struct, rename="camel"):
    name: str = ""
    description: str | None = None
    input_schema: Json = None

    def describe_argument(self, name: str) -> str:
        """Return what the schema says of an argument; "" if nothing."""
        schema = self.input_schema
        for key in ("properties", name, "description"):
            schema = schema.get(key) if isinstance(schema, dict) else None
        return schema if isinstance(schema, str) else ""


class ToolList(Struct):
    """What `tools/list` returned."""

    tools: list[ListedTool] = []


T = TypeVar("T", McpToolResult, ToolList)


class _RpcError(Struct):
    code: int = 0
    message: str = ""


class RpcMessage(Struct):
    """Any JSON-RPC message: a response to us, or a request of the server."""

    id: int | str | None = None
    method: str | None = None
    result: Raw = Raw(b"")
    error: _RpcError | None = None


class McpServer(ABC):
    """A server whose tools can be called; the transports differ."""

    async def call_tool(
        self, name: str, arguments: Mapping[str, Json], timeout_s: float
    ) -> McpToolResult | ToolFailure:
        return await self._call("tools/call", {"name": name, "arguments": arguments}, timeout_s, McpToolResult)

    async def list_tools(self, timeout_s: float) -> ToolList | ToolFailure:
        return await self._call("tools/list", {}, timeout_s, ToolList)

    @abstractmethod
    async def _call(
        self, method: str, params: Mapping[str, Json], timeout_s: float, result_type: type[T]
    ) -> T | ToolFailure:
        """Send a request and return its result."""

    @abstractmethod
    async def close(self) -> None:
        """End the session, or the process."""


class _Refused(Exception):
    """The server answered with a JSON-RPC error."""

    def __init__(self, error: _RpcError) -> None:
        super().__init__(error.message)
        self.error = error


class _SessionLost(Exception):
    """The server no longer knows our session."""


class HttpMcpServer(McpServer):
    """An MCP server at a URL. The session is opened by the first call, and again when the server has forgotten it."""

    def __init__(self, url: str, service: ToolService, headers: tuple[Header, ...] = ()) -> None:
        self._url = url
        self._service = service
        self._headers = headers
        self._session: bytes | None = None
        self._version: str | None = None  # None: the handshake is still to be done
        self._opening = asyncio.Lock()
        self._next_id = 0

    async def _call(
        self, method: str, params: Mapping[str, Json], timeout_s: float, result_type: type[T]
    ) -> T | ToolFailure:
        try:
            await self._open(timeout_s)
            try:
                result = await self._request(method, params, timeout_s)
            except _SessionLost:
                self._version = self._session = None
                await self._open(timeout_s)
                result = await self._request(method, params, timeout_s)
            return msgspec.json.decode(result, type=result_type)
        except _Refused as refused:
            return _failure_of(self._service, refused.error)
        except _SessionLost:
            return self._service.fail("HTTP 404")
        except (ConnectionLost, UpstreamTimeout, ValueError, *JSON_ERRORS) as fault:
            return self._service.fail(str(fault))

    async def close(self) -> None:
        if self._session is None:
            return
        try:
            await self._send("DELETE", b"", CLOSE_S)
        except (ConnectionLost, UpstreamTimeout, ValueError, _SessionLost):
            return

    async def _open(self, timeout_s: float) -> None:
        async with self._opening:
            if self._version is not None:
                return
            result = await self._request("initialize", _hello(), timeout_s)
            self._version = msgspec.json.decode(result, type=_Initialized).protocol_version
            await self._notify("notifications/initialized", timeout_s)

    async def _request(self, method: str, params: Mapping[str, Json], timeout_s: float) -> bytes:
        """Return the result's JSON."""
        self._next_id += 1
        number = self._next_id
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        answer = await self._send("POST", msgspec.json.encode(message), timeout_s)
        try:
            if method == "initialize":
                self._session = answer.headers.get(b"mcp-session-id")
            return await self._find_response(answer, number, timeout_s)
        finally:
            answer.close()

    async def _notify(self, method: str, timeout_s: float) -> None:
        answer = await self._send("POST", msgspec.json.encode({"jsonrpc": "2.0", "method": method}), timeout_s)
        answer.close()

    async def _send(self, method: str, body: bytes, timeout_s: float) -> IncomingResponse:
        headers: tuple[Header, ...] = (*self._headers, ACCEPT, *((JSON,) if body else ()))
        if self._session is not None:
            headers = (*headers, (b"mcp-session-id", self._session))
        if self._version is not None:
            headers = (*headers, (b"mcp-protocol-version", self._version.encode()))
        service = self._service
        answer = await service.send(
            OutgoingRequest(method, self._url, headers, body), service.dial, head_timeout_s=timeout_s
        )
        if answer.status in (200, 202, 204):
            return answer
        answer.close()
        if answer.status == 404 and self._session is not None:
            raise _SessionLost
        raise ValueError(f"HTTP {answer.status}")

    async def _find_response(self, answer: IncomingResponse, number: int, timeout_s: float) -> bytes:
        """Read one JSON message, or an event stream as far as the response to this request."""
        if b"text/event-stream" not in (answer.headers.get(b"content-type") or b""):
            body = await answer.read(MAX_BYTES, timeout_s)
            return _result_of(msgspec.json.decode(body, type=RpcMessage))
        framer, size = SseFramer(), 0
        while chunk := await answer.chunk(timeout_s):
            size += len(chunk)
            if size > MAX_BYTES:
                raise ValueError(f"more than {MAX_BYTES} bytes")
            for frame in framer.feed(chunk):
                if not isinstance(frame, Frame) or not frame.data:
                    continue
                message = msgspec.json.decode(frame.data, type=RpcMessage)
                if message.method is None and message.id == number:
                    return _result_of(message)
                if message.method is not None and message.id is not None:
                    (await self._send("POST", _reply_to(message), timeout_s)).close()
        raise ValueError("the event stream ended without a response")


class StdioMcpServer(McpServer):
    """An MCP server that we start. It is started by the first call, and again when it has exited."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._name = name
        self._command = command
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[RpcMessage]] = {}
        self._starting = asyncio.Lock()
        self._next_id = 0

    async def _call(
        self, method: str, params: Mapping[str, Json], timeout_s: float, result_type: type[T]
    ) -> T | ToolFailure:
        try:
            async with asyncio.timeout(timeout_s):
                await self._start()
                result = await self._request(method, params)
            return msgspec.json.decode(result, type=result_type)
        except TimeoutError:
            return self._fail(f"no answer within {timeout_s:g} s")
        except _Refused as refused:
            code = _code_of(refused.error)
            return ToolFailure(code, f"{self._name}: {refused.error.message}")
        except (OSError, ValueError, *JSON_ERRORS) as fault:
            return self._fail(str(fault))

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()  # which tells an MCP server to exit
        if self._reader is None:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await asyncio.shield(self._reader)
        except TimeoutError:
            if process is not None:
                _kill(process)
            await self._reader

    def _fail(self, why: str) -> ToolFailure:
        return ToolFailure(ToolErrorCode.UNAVAILABLE, f"{self._name}: {why}")

    async def _start(self) -> None:
        async with self._starting:
            if self._process is not None:
                return
            if self._reader is not None:
                await self._reader  # of the process that has exited
            kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={**kept, **self._environment},
                limit=LINE_LIMIT,
                start_new_session=True,  # Ctrl-C in the gateway's terminal is for the gateway
            )
            self._reader = spawn(self._read_lines(process), name=f"read {self._name}")
            try:
                await self._request("initialize", _hello())
                self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})
            except BaseException:
                _kill(process)
                self._process = None
                raise

    async def _request(self, method: str, params: Mapping[str, Json]) -> bytes:
        self._next_id += 1
        number = self._next_id
        response = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            return _result_of(await response)
        finally:
            del self._waiting[number]

    def _write(self, message: Mapping[str, Json]) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise ValueError("the server has exited")
        process.stdin.write(msgspec.json.encode(message) + b"\n")

    async def _read_lines(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        why = "the server has exited"
        try:
            while line := await process.stdout.readline():
                self._take(line)
        except ValueError:
            why = f"the server wrote a line of more than {LINE_LIMIT} bytes"
        _kill(process)
        if self._process is process:
            self._process = None
        for response in self._waiting.values():
            if not response.done():
                response.set_exception(ValueError(why))
        await process.wait()

    def _take(self, line: bytes) -> None:
        try:
            message = msgspec.json.decode(line, type=RpcMessage)
        except JSON_ERRORS:
            log.warning("%s wrote a line that is not JSON-RPC", self._name)
            return
        if message.method is not None:
            if message.id is not None and self._process is not None and self._process.stdin is not None:
                self._process.stdin.write(_reply_to(message) + b"\n")
            return
        response = self._waiting.get(message.id) if isinstance(message.id, int) else None
        if response is not None and not response.done():
            response.set_result(message)


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has exited by itself
        process.kill()


class _Initialized(Struct, rename="camel"):
    protocol_version: str = PROTOCOL_VERSION


def _hello() -> dict[str, Json]:
    about = {"name": "dragoman", "version": "1"}
    return {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": about}


def _reply_to(request: RpcMessage) -> bytes:
    """Answer a request of the server: a ping, or a refusal of anything else."""
    if request.method == "ping":
        return msgspec.json.encode({"jsonrpc": "2.0", "id": request.id, "result": {}})
    error = {"code": METHOD_NOT_FOUND, "message": f"{request.method} is not supported"}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request.id, "error": error})


def _result_of(message: RpcMessage) -> bytes:
    if message.error is not None:
        raise _Refused(message.error)
    if not message.result:
        raise ValueError("the response has no result")
    return bytes(message.result)


def _failure_of(service: ToolService, error: _RpcError) -> ToolFailure:
    return service.fail(error.message or f"JSON-RPC error {error.code}", _code_of(error))


def _code_of(error: _RpcError) -> ToolErrorCode:
    return ToolErrorCode.INVALID_INPUT if error.code == INVALID_PARAMS else ToolErrorCode.UNAVAILABLE
