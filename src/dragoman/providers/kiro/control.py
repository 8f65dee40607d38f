"""Questions to Kiro's control plane: which models, which profiles, how much is used."""

from typing import TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Raw, Struct

from dragoman.accounts.credential import CredentialError
from dragoman.accounts.refresher import CredentialRefresher
from dragoman.accounts.service_client import ServiceClient, ServiceResponse
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.net.headers import Header
from dragoman.protocols.kiro.errors import read as read_failure
from dragoman.providers.kiro.credential import Credential, Method
from dragoman.providers.kiro.hosts import AccountHosts, target_headers

T = TypeVar("T")

PAGE = 50
MAX_PAGES = 20
TOKEN_TYPES = {Method.API_KEY: b"API_KEY", Method.EXTERNAL: b"EXTERNAL_IDP"}
NOTHING = Raw(b"null")


class TokenLimits(Struct, rename="camel"):
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None


class ListedModel(Struct, rename="camel"):
    model_id: str = ""
    model_name: str | None = None
    token_limits: TokenLimits | None = None
    additional_model_request_fields_schema: Raw = NOTHING  # an object, or its JSON as a string


class ListedProfile(Struct, rename="camel"):
    arn: str = ""


class Breakdown(Struct, rename="camel"):
    resource_type: str | None = None
    display_name: str | None = None
    current_usage: float | None = None
    current_usage_with_precision: float | None = None
    usage_limit: float | None = None
    usage_limit_with_precision: float | None = None
    next_date_reset: float | None = None

    @property
    def used(self) -> float:
        return self.current_usage_with_precision or self.current_usage or 0.0

    @property
    def limit(self) -> float | None:
        return self.usage_limit_with_precision or self.usage_limit


class Subscription(Struct, rename="camel"):
    subscription_title: str | None = None
    type: str | None = None


class UsageLimits(Struct, rename="camel"):
    next_date_reset: float | None = None
    usage_breakdown_list: list[Breakdown] | None = None
    subscription_info: Subscription | None = None


class _ModelPage(Struct, rename="camel"):
    models: list[ListedModel] = []
    next_token: str | None = None


class _ProfilePage(Struct, rename="camel"):
    profiles: list[ListedProfile] = []
    next_token: str | None = None


class ControlRequest(Struct, frozen=True):
    """What is asked, by a path and fields, or by the name of the operation and the same fields."""

    operation: str
    root: str
    path: str
    fields: dict[str, str | int]
    posted: bool = False


class ControlClient:
    """Each question is asked once more after a refused credential, if it could be renewed."""

    def __init__(self, service: ServiceClient, place: AccountHosts, refresher: CredentialRefresher[Credential]) -> None:
        self._service = service
        self._place = place
        self._refresher = refresher

    async def models(self, profile_arn: str | None) -> list[ListedModel]:
        found: list[ListedModel] = []
        token: str | None = None
        for _ in range(MAX_PAGES):
            now = self._place.now
            fields = _said(origin=now.generation.origin, maxResults=PAGE, nextToken=token, profileArn=profile_arn)
            question = ControlRequest("ListAvailableModels", now.control, "/ListAvailableModels", fields)
            page = await self._page(question, _ModelPage)
            found += page.models
            if not page.next_token or page.next_token == token:
                break
            token = page.next_token
        return found

    async def profiles(self, root: str) -> list[ListedProfile]:
        found: list[ListedProfile] = []
        token: str | None = None
        for _ in range(MAX_PAGES):
            fields = _said(maxResults=10, nextToken=token)
            question = ControlRequest("ListAvailableProfiles", root, "/ListAvailableProfiles", fields, posted=True)
            page = await self._page(question, _ProfilePage)
            found += page.profiles
            if not page.next_token or page.next_token == token:
                break
            token = page.next_token
        return found

    async def usage(self, profile_arn: str | None) -> UsageLimits:
        now = self._place.now
        fields = _said(origin=now.generation.origin, resourceType="AGENTIC_REQUEST", profileArn=profile_arn)
        *first, last = (ControlRequest("GetUsageLimits", now.control, path, fields) for path in now.generation.usage)
        for question in () if self._place.by_target else first:
            try:
                return await self._page(question, UsageLimits)
            except RequestError as refused:
                if refused.failure.status != 404:
                    raise
        return await self._page(last, UsageLimits)

    async def _page(self, question: ControlRequest, kind: type[T]) -> T:
        response = await self._asked(question)
        failure = _failure(response)
        if failure is not None and failure.kind is Kind.CREDENTIAL and await self._refresher.renew():
            response = await self._asked(question)
            failure = _failure(response)
        if failure is not None:
            raise RequestError(failure)
        try:
            return msgspec.json.decode(response.body, type=kind)
        except msgspec.MsgspecError as error:
            raise RequestError(Failure(Kind.UPSTREAM, f"Kiro's answer cannot be read: {error}")) from error

    async def _asked(self, question: ControlRequest) -> ServiceResponse:
        who = authorization_headers(await self._refresher.get())
        fields, address = question.fields, f"{question.root}{question.path}"
        try:
            if self._place.by_target:
                named = target_headers(self._place.now.generation.control_service, question.operation)
                return await self._service.request(
                    "POST", f"{question.root}/", (*who, *named), msgspec.json.encode(fields)
                )
            if question.posted:
                return await self._service.post(address, fields, who)
            return await self._service.request("GET", f"{address}?{urlencode(fields)}", who)
        except CredentialError as lost:
            raise RequestError(Failure(lost.kind, str(lost))) from lost


def authorization_headers(credential: Credential) -> tuple[Header, ...]:
    token = (b"authorization", b"Bearer " + credential.access_token.encode())
    kind = TOKEN_TYPES.get(credential.method)
    return (token,) if kind is None else (token, (b"tokentype", kind))


def _failure(response: ServiceResponse) -> Failure | None:
    return None if response.status == 200 else read_failure(response.status, {}, response.body)


def _said(**fields: str | int | None) -> dict[str, str | int]:
    return {name: value for name, value in fields.items() if value is not None}
