"""Copilot: one GitHub account, the protocols of each model, and what its failures mean."""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from dragoman.config.settings import CopilotProviderConfig, ProviderConfig
from dragoman.net.client import OutgoingRequest
from dragoman.net.headers import Header, Headers
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import Function, Image, Request, Role, ToolResult, Turn
from dragoman.translate.protocols.chat.errors import read_failure as read_failure
from dragoman.upstreams import Surroundings
from dragoman.upstreams.account_state import BROKEN, OK, AccountLimits, Finding, Quota
from dragoman.upstreams.copilot.account import (
    PLAN_PATH,
    SETTINGS,
    ModelCache,
    find_github_token,
    read_limits,
    read_quotas,
)
from dragoman.upstreams.copilot.credential import Addresses, Session, TokenExchange, find_addresses, find_source
from dragoman.upstreams.copilot.response_fixes import ChoiceMerger, finish_calls, stabilize_ids
from dragoman.upstreams.credentials.credential import CredentialError
from dragoman.upstreams.credentials.refresher import CredentialRefresher, RenewalTiming
from dragoman.upstreams.credentials.service_client import ServerClock, ServiceClient, ServiceResponse, observe_responses
from dragoman.upstreams.provider import (
    Account,
    Address,
    Attempt,
    Auth,
    Catalogue,
    Endpoint,
    FirstTokenWait,
    FixedResponse,
    IncomingResponse,
    Provider,
    ReplyRules,
    RequestRules,
    SendRequest,
    UnsignedRequest,
    is_event_stream,
)
from dragoman.upstreams.rejections.reasoning import adjust_reasoning
from dragoman.upstreams.section import (
    USER_AGENT,
    configured_models,
    read_dial,
    read_headers,
    read_secrets,
    read_user_agent,
)

PROTOCOLS = ("messages", "responses", "chat")
API_VERSION = b"2026-06-01"
FORWARDED = frozenset((b"accept", b"anthropic-version", b"anthropic-beta"))
INSTALLATION = "ghs_"
REMEDIES = {
    Kind.CREDENTIAL: "`dragoman login copilot`",
    Kind.FORBIDDEN: f"the account's owner must change it: {SETTINGS}",
    Kind.LOST: "check the network; set `proxy` if there is one",
    Kind.TIMEOUT: "check the network; set `proxy` if there is one",
}
KINDS = {
    "model_not_supported": Kind.NOT_FOUND,
    "quota_exceeded": Kind.QUOTA,
    "free_quota_exceeded": Kind.QUOTA,
    "overage_limit_reached": Kind.QUOTA,
    "billing_not_configured": Kind.QUOTA,
}
KINDS_BY_STATUS = {402: Kind.QUOTA, 422: Kind.REFUSED, 424: Kind.UPSTREAM, 466: Kind.BAD_REQUEST}
EAGER = "eager_input_streaming"
# Fields that Copilot rejects, by protocol: a body that contains one is rebuilt without it.
REJECTED = {"chat": b'"max_tokens"', "messages": f'"{EAGER}"'.encode()}


def make_copilot(config: ProviderConfig, around: Surroundings) -> Provider:
    assert isinstance(config, CopilotProviderConfig)
    send, environ = around.send, around.environ
    places = find_addresses(config)
    service = make_service_client(config, send, environ)
    source, exchange = find_source(config, environ, around.stored), TokenExchange(service, places)
    timing = RenewalTiming(service.clock, config.refresh_margin_s)
    refresher = CredentialRefresher(config.name, source, exchange, timing)
    copilot = Copilot(config, service, refresher, places)
    return Provider(
        name=config.name,
        kind=config.kind,
        issuer=config.name,
        endpoint=Endpoint(
            url=places.api,
            protocols=PROTOCOLS,
            send=observe_responses(send, service.clock, copilot.observe),
            dial=read_dial(config, environ),
            headers=(*identity(config), *read_headers(config, environ)),
            paths={"messages": "/v1/messages"},
            relays=frozenset(("embeddings",)),
            find_protocols=copilot.models.find_protocols,
            find_address=copilot.find_address,
            first_token=FirstTokenWait(config.first_token_timeout_s),
        ),
        auth=Auth(
            copilot.authorize,
            renew=refresher.renew,
            expires_at=refresher.expires_at,
            login_command="dragoman login copilot",
            secrets=read_secrets(config, environ),
        ),
        catalogue=Catalogue(
            models=configured_models(config),
            list_models=copilot.models.fetch,
            ttl_s=config.model_cache_ttl_s,
            rename=copilot.models.rename,
            context_window=copilot.models.context_window,
        ),
        requests=RequestRules(
            passes=(fit_request,),
            passthrough_body=passthrough_body,
            forwards_header=FORWARDED.__contains__,
            headers=copilot.initiator_headers,
            adjust=adjust_reasoning,
        ),
        replies=ReplyRules(interpret_failure=copilot.interpret_failure, fix_response=fix_response),
        account=Account(inspect=copilot.inspect, read_quotas=copilot.read_quotas, last_limits=copilot.limits),
    )


def identity(config: CopilotProviderConfig) -> tuple[Header, ...]:
    """Return the headers that identify the gateway by its own name."""
    named = ((b"copilot-integration-id", config.integration_id.encode()),) if config.integration_id else ()
    return (
        *named,
        (b"editor-version", USER_AGENT.encode()),
        (b"x-github-api-version", API_VERSION),
        (b"openai-intent", b"conversation-agent"),
    )


def make_service_client(config: CopilotProviderConfig, send: SendRequest, environ: Mapping[str, str]) -> ServiceClient:
    """Return the client for the account's own services."""
    headers = (read_user_agent(config), *identity(config))
    return ServiceClient(send, read_dial(config, environ), ServerClock(), headers)


def fix_response(out: OutgoingRequest, response: IncomingResponse) -> IncomingResponse:
    """Keep the ids of a Responses stream's items; make a Chat reply one choice where the request wants one."""
    place, streams = out.url.partition("?")[0], is_event_stream(response)
    if streams and place.endswith("/responses"):
        return FixedResponse(response, stabilize_ids())
    if response.status != 200 or not place.endswith("/chat/completions") or b'"n"' in out.body:
        return response
    if not streams:
        return FixedResponse(response, ChoiceMerger())
    return FixedResponse(response, finish_calls()) if b'"tools"' in out.body else response


class Copilot:
    """The functions of a provider, for one account."""

    def __init__(
        self,
        config: CopilotProviderConfig,
        service: ServiceClient,
        refresher: CredentialRefresher[Session],
        places: Addresses,
    ) -> None:
        self._name = config.name
        self._what = f"provider {config.name}"
        self._fixed = config.endpoint is not None
        self._service = service
        self._refresher = refresher
        self._places = places
        self._limits: AccountLimits | None = None
        self.models = ModelCache(self._fetch_list)

    def observe(self, response: IncomingResponse) -> None:
        self._limits = read_limits(response.headers) or self._limits

    async def find_address(self, path: str) -> Address:
        """Return the address at the account's own API host."""
        return Address(self._find_api(await self._refresher.get()) + path)

    def _find_api(self, session: Session) -> str:
        return session.api if session.api and not self._fixed else self._places.api

    async def authorize(self, request: UnsignedRequest) -> tuple[Header, ...]:
        return _bearer(await self._refresher.get())

    def initiator_headers(
        self, request: Callable[[], Request], headers: Headers, attempt: Attempt
    ) -> tuple[Header, ...]:
        try:
            return describe_request(request())
        except RequestError:  # the request can only be read by the upstream
            return ((b"x-initiator", b"user"),)

    def limits(self) -> AccountLimits | None:
        return self._limits

    def interpret_failure(self, failure: Failure) -> Failure:
        code = (failure.code or "").partition(":")[0]  # some carry a suffix
        kind = KINDS.get(code) or KINDS_BY_STATUS.get(failure.status or 0)
        if kind is None and failure.status == 403 and not code:
            kind = Kind.CREDENTIAL  # an exchanged token was revoked: try once with a new one
        return failure if kind is None else replace(failure, kind=kind)

    async def inspect(self) -> list[Finding]:
        try:
            models = await self.models.fetch()
        except RequestError as refused:
            failure = refused.failure
            return [Finding(self._what, BROKEN, failure.message, REMEDIES.get(failure.kind, "try again later"))]
        locked = len(self.models.locked)
        more = f", and {locked} more whose terms are not accepted ({SETTINGS})" if locked else ""
        return [Finding(self._what, OK, f"accepts the credential and lists {len(models)} models{more}")]

    async def read_quotas(self) -> list[Quota]:
        """Return what `dragoman usage --plans` shows. Raises RequestError if it cannot be read."""
        token = find_github_token(await self._refresher.get())
        if token.startswith(INSTALLATION):
            return []  # an organisation's installation has no personal plan
        proof = (b"authorization", b"token " + token.encode())
        try:
            response = await self._service.request("GET", f"{self._places.exchange}{PLAN_PATH}", (proof,))
        except CredentialError as lost:
            raise RequestError(Failure(lost.kind, str(lost))) from lost
        return read_quotas(self._name, response)

    async def _fetch_list(self) -> bytes:
        session = await self._refresher.get()
        try:
            response = await self._request_list(session)
            if response.status in (401, 403) and await self._refresher.renew():
                response = await self._request_list(await self._refresher.get())
        except CredentialError as lost:
            raise RequestError(Failure(lost.kind, str(lost))) from lost
        if response.status != 200:
            raise RequestError(self.interpret_failure(read_failure(response.status, {}, response.body)))
        return response.body

    async def _request_list(self, session: Session) -> ServiceResponse:
        return await self._service.request("GET", f"{self._find_api(session)}/models", _bearer(session))


def _bearer(session: Session) -> tuple[Header, ...]:
    return ((b"authorization", b"Bearer " + session.access_token.encode()),)


def passthrough_body(protocol: str, body: bytes) -> bytes | None:
    """Return the body if Copilot accepts it: GPT models reject `max_tokens`, Claude rejects eager streaming."""
    objectionable = REJECTED.get(protocol)
    return body if objectionable is None or objectionable not in body else None


def fit_request(request: Request, ledger: Ledger) -> Request:
    tools = []
    for tool in request.tools:
        if isinstance(tool, Function) and EAGER in tool.ext:
            ledger.record_dropped(f"{tool.at}/{EAGER}", "Copilot accepts no such field")
            tool = replace(tool, ext={key: value for key, value in tool.ext.items() if key != EAGER})
        tools.append(tool)
    return replace(request, tools=tuple(tools))


def describe_request(request: Request) -> tuple[Header, ...]:
    """Return who caused the request, truthfully: a person, or a tool loop that continues by itself."""
    initiator = b"agent" if _continues_by_itself(request) else b"user"
    vision = ((b"copilot-vision-request", b"true"),) if any(map(_has_image, request.turns)) else ()
    return ((b"x-initiator", initiator), *vision)


def _continues_by_itself(request: Request) -> bool:
    last = request.turns[-1] if request.turns else None
    if last is None or not last.parts:
        return False
    if last.role is Role.ASSISTANT:
        return True
    # Clients of Messages put their reminders after the results, in the same message.
    results = [isinstance(part, ToolResult) for part in last.parts]
    return any(results) if request.protocol == "messages" else results[-1]


def _has_image(turn: Turn) -> bool:
    return any(
        isinstance(part, Image)
        or (isinstance(part, ToolResult) and any(isinstance(inner, Image) for inner in part.content))
        for part in turn.parts
    )
