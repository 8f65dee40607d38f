"""Kiro's services: their hosts, by configuration, account and profile, and requests for models, profiles and usage."""

import re
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Raw, Struct

from dragoman.config.settings import KiroProviderConfig
from dragoman.net.headers import Header
from dragoman.translate.hub.failure import RequestError
from dragoman.translate.protocols.kiro.errors import read_failure as read_failure
from dragoman.upstreams.credentials.refresher import CredentialRefresher
from dragoman.upstreams.credentials.service_client import ServiceClient, ServiceResponse
from dragoman.upstreams.kiro.credential import Credential, Method

DEFAULT_REGION = "us-east-1"
EUROPE = "eu-central-1"

_ARN = re.compile(r"arn:aws(?:-[a-z-]+)?:codewhisperer:([a-z0-9-]+):\d+:profile/[A-Za-z0-9_-]+")


class Generation(Struct, frozen=True):
    """One generation of Kiro's API. Its host, origin, paths and services belong together."""

    name: str
    chat: str
    control: str
    usage: tuple[str, ...]  # known paths of usage, likeliest first
    chat_service: str  # for `x-amz-target`
    control_service: str
    needs_profile: bool  # also of accounts that have none
    origin: str = "AI_EDITOR"
    agent_mode: str = "vibe"
    mode_in_body: bool = False  # besides the header
    is_regional: bool = True  # the profile must be in the host's region


RUNTIME = Generation(
    "runtime",
    chat="https://runtime.{region}.kiro.dev",
    control="https://management.{region}.kiro.dev",
    usage=("/Get-Usage-Limits", "/getUsageLimits"),
    chat_service="KiroRuntimeService",
    control_service="KiroControlPlaneBearerService",
    needs_profile=True,
    mode_in_body=True,
)
Q = Generation(
    "q",
    chat="https://q.{region}.amazonaws.com",
    control="https://q.{region}.amazonaws.com",
    usage=("/getUsageLimits",),
    chat_service="AmazonCodeWhispererStreamingService",
    control_service="AmazonCodeWhispererService",
    needs_profile=False,
)
OTHER = Generation(
    "elsewhere",  # a proxy or a test server: everything at one address
    chat="{endpoint}",
    control="{endpoint}",
    usage=("/getUsageLimits", "/Get-Usage-Limits"),
    chat_service="KiroRuntimeService",
    control_service="KiroControlPlaneBearerService",
    needs_profile=False,
    is_regional=False,
)


class Addresses(Struct, frozen=True):
    generation: Generation
    chat: str
    control: str
    region: str  # of the API; the sign-in's may differ


class AccountHosts:
    """The hosts of one account: configured, or derived from its profile and kind."""

    def __init__(self, config: KiroProviderConfig, credential: Credential | None) -> None:
        self._config = config
        self._known: tuple[Credential | None, str | None] = credential, None
        self.current = find_addresses(config, credential, None)

    def update(self, credential: Credential, profile_arn: str | None) -> Addresses:
        """Update the addresses: another account may have signed in, or a profile was found."""
        if self._known != (credential, profile_arn):
            self._known = credential, profile_arn
            self.current = find_addresses(self._config, credential, profile_arn)
        return self.current

    @property
    def uses_target_header(self) -> bool:
        """Whether operations are named in a header, as in AWS's JSON protocol, instead of by paths."""
        return self._config.operations_by == "target"

    def control_urls(self) -> list[str]:
        """Return the addresses that list profiles: the current one, then the API's other region."""
        if self._config.control_endpoint is not None or self._config.endpoint is not None:
            return [self.current.control]
        other = DEFAULT_REGION if self.current.region == EUROPE else EUROPE
        return [self.current.control, self.current.generation.control.format(region=other)]


def find_addresses(config: KiroProviderConfig, credential: Credential | None, profile_arn: str | None) -> Addresses:
    arn = config.profile_arn or (credential.profile_arn if credential else None) or profile_arn
    region = read_region(arn) or api_region(config.region)
    generation = _choose_generation(config, credential, arn)
    chat = config.endpoint or generation.chat.format(region=region)
    control = config.control_endpoint or generation.control.format(region=region, endpoint=chat)
    return Addresses(generation, chat, control, region)


def _choose_generation(config: KiroProviderConfig, credential: Credential | None, arn: str | None) -> Generation:
    if config.endpoint is not None:
        host = urlsplit(config.endpoint).hostname or ""
        if host.endswith(".kiro.dev"):
            return RUNTIME
        return Q if host.endswith(".amazonaws.com") else OTHER
    # Without a profile the runtime hosts reject every request, and a Builder ID has none.
    return Q if credential is not None and credential.builder_id and not arn else RUNTIME


def target_headers(service: str, operation: str) -> tuple[Header, ...]:
    """Return the headers that name an operation in AWS's JSON protocol; all are posted to `/`."""
    return (b"content-type", b"application/x-amz-json-1.0"), (b"x-amz-target", f"{service}.{operation}".encode())


def api_region(region: str) -> str:
    """Return which of its two regions the API is used in."""
    return EUROPE if region.startswith("eu-") else DEFAULT_REGION


def read_region(arn: str | None) -> str | None:
    """Return the region in a profile's ARN; None if it is not an ARN."""
    match = _ARN.fullmatch(arn) if arn else None
    return match[1] if match else None


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
    rate_multiplier: object = None  # of the plan's credits
    rate_unit: object = None
    additional_model_request_fields_schema: Raw = NOTHING  # an object, or its JSON as a string
    prompt_caching: object = None
    supports_prompt_cache: object = None

    @property
    def caches_prompts(self) -> bool:
        """Whether it takes cache points: an object describes them, or a flag says so."""
        described = self.prompt_caching
        return self.supports_prompt_cache is True or (isinstance(described, dict) and False not in described.values())

    @property
    def credit_rate(self) -> float | None:
        rate, unit = self.rate_multiplier, self.rate_unit
        if isinstance(rate, bool) or not isinstance(rate, int | float) or rate < 0:
            return None
        return float(rate) if unit is None or str(unit).lower().startswith("credit") else None


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


Page = TypeVar("Page", _ModelPage, _ProfilePage)


class ControlRequest(Struct, frozen=True):
    """One operation: sent to a path with fields, or by name in a header with the same fields."""

    operation: str
    root: str
    path: str
    fields: dict[str, str | int]
    is_post: bool = False


class ControlClient:
    """Sends each request once more after a rejected credential, if it can be renewed."""

    def __init__(self, service: ServiceClient, hosts: AccountHosts, refresher: CredentialRefresher[Credential]) -> None:
        self._service = service
        self._hosts = hosts
        self._refresher = refresher

    async def list_models(self, profile_arn: str | None) -> list[ListedModel]:
        def request_page(token: str | None) -> ControlRequest:
            now = self._hosts.current
            fields = _drop_missing(
                origin=now.generation.origin, maxResults=PAGE, nextToken=token, profileArn=profile_arn
            )
            return ControlRequest("ListAvailableModels", now.control, "/ListAvailableModels", fields)

        pages = await self._fetch_pages(request_page, _ModelPage)
        return [model for page in pages for model in page.models]

    async def list_profiles(self, root: str) -> list[ListedProfile]:
        def request_page(token: str | None) -> ControlRequest:
            fields = _drop_missing(maxResults=10, nextToken=token)
            return ControlRequest("ListAvailableProfiles", root, "/ListAvailableProfiles", fields, is_post=True)

        pages = await self._fetch_pages(request_page, _ProfilePage)
        return [profile for page in pages for profile in page.profiles]

    async def read_usage(self, profile_arn: str | None) -> UsageLimits:
        now = self._hosts.current
        fields = _drop_missing(origin=now.generation.origin, resourceType="AGENTIC_REQUEST", profileArn=profile_arn)
        *first, last = (ControlRequest("GetUsageLimits", now.control, path, fields) for path in now.generation.usage)
        for request in () if self._hosts.uses_target_header else first:
            try:
                return await self._fetch_page(request, UsageLimits)
            except RequestError as refused:
                if refused.failure.status != 404:
                    raise
        return await self._fetch_page(last, UsageLimits)

    async def _fetch_pages(self, request_page: Callable[[str | None], ControlRequest], kind: type[Page]) -> list[Page]:
        """Return up to MAX_PAGES pages of a list; a token that repeats ends it."""
        pages: list[Page] = []
        token: str | None = None
        while len(pages) < MAX_PAGES:
            page = await self._fetch_page(request_page(token), kind)
            pages.append(page)
            if not page.next_token or page.next_token == token:
                break
            token = page.next_token
        return pages

    async def _fetch_page(self, request: ControlRequest, kind: type[T]) -> T:
        async def send(credential: Credential) -> ServiceResponse:
            return await self._send(request, authorization_headers(credential))

        return (await self._refresher.fetch(send, read_failure)).parse_account(kind, "Kiro's")

    async def _send(self, request: ControlRequest, authorization: tuple[Header, ...]) -> ServiceResponse:
        fields, address = request.fields, f"{request.root}{request.path}"
        if self._hosts.uses_target_header:
            named = target_headers(self._hosts.current.generation.control_service, request.operation)
            headers = (*authorization, *named)
            return await self._service.request("POST", f"{request.root}/", headers, msgspec.json.encode(fields))
        if request.is_post:
            return await self._service.post(address, fields, authorization)
        return await self._service.request("GET", f"{address}?{urlencode(fields)}", authorization)


def authorization_headers(credential: Credential) -> tuple[Header, ...]:
    token = (b"authorization", b"Bearer " + credential.access_token.encode())
    kind = TOKEN_TYPES.get(credential.method)
    return (token,) if kind is None else (token, (b"tokentype", kind))


def _drop_missing(**fields: str | int | None) -> dict[str, str | int]:
    return {name: value for name, value in fields.items() if value is not None}
