"""The web search that comes with a Kiro account, called through Kiro's MCP operation."""

from uuid import uuid4

import msgspec
from msgspec import Raw, Struct

from dragoman.accounts.credential import CredentialError
from dragoman.accounts.service_client import ServiceClient, ServiceResponse
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.hub.server_tools import SearchOutcome, ToolErrorCode, ToolFailure
from dragoman.net.headers import JSON, Header
from dragoman.protocols.kiro.errors import read_failure
from dragoman.providers.kiro.account import KiroAccount
from dragoman.providers.kiro.control import authorization_headers
from dragoman.providers.kiro.credential import Method
from dragoman.providers.kiro.hosts import Q, target_headers
from dragoman.tools.mcp import INVALID_PARAMS, ToolResult
from dragoman.tools.tool_results import read_search
from dragoman.tools.web_search import SearchQuery

PATH = "/mcp"
OPERATION = "InvokeMCP"


class _RpcError(Struct):
    code: int = 0
    message: str = ""


class _Answer(Struct):
    id: str | int | None = None
    result: Raw = Raw(b"")
    error: _RpcError | None = None


class KiroSearch:
    """Searches with the account's own token."""

    name = "kiro"

    def __init__(self, account: KiroAccount, service: ServiceClient) -> None:
        self._account = account
        self._service = service

    async def search(self, query: SearchQuery, timeout_s: float) -> SearchOutcome:
        id = str(uuid4())
        call = {"name": "web_search", "arguments": {"query": query.text}}
        message: dict[str, object] = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": call}
        try:
            response = await self._post(message)
        except RequestError as refused:
            return _failed(refused.failure.message, refused.failure.kind)
        except CredentialError as lost:
            return _failed(str(lost), lost.kind)
        return _read(response, id)

    async def _post(self, message: dict[str, object]) -> ServiceResponse:
        response = await self._send(message)
        is_rejected = response.status != 200 and _failure_of(response).kind is Kind.CREDENTIAL
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
            if response.status != 404:
                return response
        profile: tuple[Header, ...] = ()
        if profile_arn and credential.method is not Method.API_KEY:
            profile = ((b"x-amzn-kiro-profile-arn", profile_arn.encode()),)
        headers = (JSON, *who, *profile)
        return await self._service.request("POST", now.chat + PATH, headers, msgspec.json.encode(message))


def _read(response: ServiceResponse, id: str) -> SearchOutcome:
    if response.status != 200:
        failure = _failure_of(response)
        return _failed(failure.message, failure.kind)
    try:
        answer = msgspec.json.decode(response.body, type=_Answer)
        if answer.error is not None:
            code = ToolErrorCode.INVALID_INPUT if answer.error.code == INVALID_PARAMS else ToolErrorCode.UNAVAILABLE
            return ToolFailure(code, f"kiro: {answer.error.message}")
        if answer.id != id:
            return ToolFailure(ToolErrorCode.UNAVAILABLE, "kiro: the answer belongs to another request")
        return read_search(msgspec.json.decode(answer.result, type=ToolResult), "kiro")
    except msgspec.MsgspecError as error:
        return ToolFailure(ToolErrorCode.UNAVAILABLE, f"kiro: its answer cannot be read: {error}")


def _failure_of(response: ServiceResponse) -> Failure:
    return read_failure(response.status, {}, response.body)


def _failed(message: str, kind: Kind) -> ToolFailure:
    code = ToolErrorCode.TOO_MANY_REQUESTS if kind is Kind.RATE_LIMITED else ToolErrorCode.UNAVAILABLE
    return ToolFailure(code, f"kiro: {message}")
