"""The web search that comes with a Kiro account, called through Kiro's MCP operation."""

import asyncio
import math
from typing import TypeVar
from uuid import uuid4

import msgspec

from dragoman.net.headers import JSON, Header
from dragoman.server_tools.mcp import INVALID_PARAMS, McpToolResult, RpcMessage, ToolList
from dragoman.server_tools.tool_results import read_search
from dragoman.server_tools.web_search import SearchQuery
from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.server_tools import SEARCH, SearchOutcome, ToolErrorCode, ToolFailure, ToolText
from dragoman.translate.protocols.kiro.errors import may_be_old_token, read_failure
from dragoman.upstreams.credentials.credential import CredentialError
from dragoman.upstreams.credentials.service_client import ServiceClient, ServiceResponse
from dragoman.upstreams.kiro.account import KiroAccount
from dragoman.upstreams.kiro.credential import Method
from dragoman.upstreams.kiro.services import Q, authorization_headers, target_headers

PATH = "/mcp"
OPERATION = "InvokeMCP"
NO_OPERATION = (404, 405, 501)
TEXT_KEPT_S = 3600.0
TEXT_RETRY_S = 300.0
TEXT_TIMEOUT_S = 3.0  # a request waits for it

T = TypeVar("T", McpToolResult, ToolList)


class KiroSearch:
    """Searches with the account's own token."""

    name = "kiro"

    def __init__(self, account: KiroAccount, service: ServiceClient) -> None:
        self._account = account
        self._service = service
        self._text: ToolText | None = None
        self._text_due = math.inf  # when it is read again, as the event loop counts time; first after a search
        self._reading = asyncio.Lock()

    async def search(self, query: SearchQuery, timeout_s: float) -> SearchOutcome:
        message = _write("tools/call", {"name": SEARCH, "arguments": {"query": query.text}})
        try:
            response = await self._post(message)
        except RequestError as refused:
            return _make_failure(refused.failure.message, refused.failure.kind)
        except CredentialError as lost:
            return _make_failure(str(lost), lost.kind)
        result = _read(response, message, McpToolResult)
        if isinstance(result, ToolFailure):
            return result
        if self._text_due == math.inf:
            self._text_due = 0.0
        return read_search(result, "kiro")

    async def describe(self, is_first_round: bool) -> ToolText | None:
        """Return Kiro's text about its search; None if it is not known.

        It is read for the first reply after a search has worked, so that an account without search costs no request,
        and again after an hour. All rounds of a reply have the same text.
        """
        clock = asyncio.get_running_loop().time
        async with self._reading:
            if is_first_round and clock() >= self._text_due:
                found = await self._read_text()
                self._text_due = clock() + (TEXT_RETRY_S if found is None else TEXT_KEPT_S)
                self._text = found or self._text
            return self._text

    async def _read_text(self) -> ToolText | None:
        message = _write("tools/list", {})
        try:
            async with asyncio.timeout(TEXT_TIMEOUT_S):
                listed = _read(await self._send(message), message, ToolList)
        except (RequestError, CredentialError, TimeoutError):
            return None
        for tool in () if isinstance(listed, ToolFailure) else listed.tools:
            if tool.name == SEARCH and tool.description:
                return ToolText(tool.description, tool.describe_argument("query"))
        return None

    async def _post(self, message: dict[str, object]) -> ServiceResponse:
        response = await self._send(message)
        is_rejected = response.status != 200 and may_be_old_token(_failure_of(response))
        if is_rejected and await self._account.refresher.renew():
            return await self._send(message)
        return response

    async def _send(self, message: dict[str, object]) -> ServiceResponse:
        """Name the operation in a header, as current hosts want it; older ones have a path for it."""
        credential = await self._account.refresher.get()
        profile_arn = await self._account.profile_arn()
        who, now = authorization_headers(credential), self._account.hosts.current
        if now.generation is not Q:
            named = target_headers(now.generation.chat_service, OPERATION)
            body = msgspec.json.encode({**({"profileArn": profile_arn} if profile_arn else {}), **message})
            response = await self._service.request("POST", f"{now.chat}/", (*who, *named), body)
            if response.status not in NO_OPERATION:
                return response
        profile: tuple[Header, ...] = ()
        if profile_arn and credential.method is not Method.API_KEY:
            profile = ((b"x-amzn-kiro-profile-arn", profile_arn.encode()),)
        headers = (JSON, *who, *profile)
        return await self._service.request("POST", now.chat + PATH, headers, msgspec.json.encode(message))


def _write(method: str, params: dict[str, object]) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": str(uuid4()), "method": method, "params": params}


def _read(response: ServiceResponse, message: dict[str, object], result_type: type[T]) -> T | ToolFailure:
    if response.status != 200:
        failure = _failure_of(response)
        return _make_failure(failure.message, failure.kind)
    try:
        answer = msgspec.json.decode(response.body, type=RpcMessage)
        if answer.error is not None:
            code = ToolErrorCode.INVALID_INPUT if answer.error.code == INVALID_PARAMS else ToolErrorCode.UNAVAILABLE
            return ToolFailure(code, f"kiro: {answer.error.message}")
        if answer.id != message["id"]:
            return ToolFailure(ToolErrorCode.UNAVAILABLE, "kiro: the answer belongs to another request")
        return msgspec.json.decode(answer.result, type=result_type)
    except JSON_ERRORS as error:
        return ToolFailure(ToolErrorCode.UNAVAILABLE, f"kiro: its answer cannot be read: {error}")


def _failure_of(response: ServiceResponse) -> Failure:
    return read_failure(response.status, {}, response.body)


def _make_failure(message: str, kind: Kind) -> ToolFailure:
    code = ToolErrorCode.TOO_MANY_REQUESTS if kind is Kind.RATE_LIMITED else ToolErrorCode.UNAVAILABLE
    return ToolFailure(code, f"kiro: {message}")
