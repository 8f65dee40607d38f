"""Codex as a provider: one ChatGPT account, what its backend takes, and what its failures mean."""

import re
from collections.abc import Callable, Mapping
from uuid import NAMESPACE_URL, uuid4, uuid5

from msgspec.structs import replace

from dragoman.accounts.credential import Source
from dragoman.accounts.refresher import CredentialRefresher
from dragoman.accounts.service_client import ServiceClient
from dragoman.accounts.timestamps import ServerClock
from dragoman.config.discovery import codex_credential_paths, home_directory
from dragoman.config.settings import CodexProviderConfig, ProviderConfig
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.hub.request import Request, Role, Text
from dragoman.net.client import DialOptions, OutgoingRequest
from dragoman.net.headers import Header, Headers
from dragoman.providers.codex.account import CodexAccount, bearer
from dragoman.providers.codex.allowed import fit, passing
from dragoman.providers.codex.credential import AuthFile, Credential, Nowhere
from dragoman.providers.codex.limits import Meter, spent_until
from dragoman.providers.codex.output import filling_output
from dragoman.providers.codex.refresh import ISSUER, Issuer
from dragoman.providers.connection import (
    configured_models,
    read_dial,
    read_headers,
    read_secrets,
    read_user_agent,
)
from dragoman.providers.failures import adjust_reasoning
from dragoman.providers.limits import Limits
from dragoman.providers.mended import Mended, is_event_stream
from dragoman.providers.provider import (
    Account,
    Attempt,
    Auth,
    Catalogue,
    Endpoint,
    IncomingResponse,
    Provider,
    ReplyRules,
    RequestRules,
    SendRequest,
)

# What a client may tell this backend: which conversation it is, and how its body is to be read. All else, its name,
# installation and attestation above all, is the client's own.
FORWARDED = frozenset(
    b"session-id session_id thread-id conversation_id x-client-request-id x-codex-turn-state "
    b"x-openai-internal-codex-responses-lite".split()
)
STREAMS = (b"accept", b"text/event-stream")  # it has no other answers
MODEL_GATE = re.compile(r"not supported when using codex|requires a newer version of codex|model not found", re.I)


def make(config: ProviderConfig, send: SendRequest, environ: Mapping[str, str]) -> Provider:
    assert isinstance(config, CodexProviderConfig)
    line = line_of(config, send, environ)
    issuer = Issuer(line, config.auth_endpoint or ISSUER, config.client_id)
    keeper = CredentialRefresher(config.name, source_of(config, environ), issuer, line.clock, config.refresh_margin_s)
    account = CodexAccount(config.name, line, keeper, config.endpoint or "", config.client_version)
    codex = Codex(account, line.clock)
    return Provider(
        name=config.name,
        kind=config.kind,
        issuer=config.name,
        endpoint=Endpoint(
            url=config.endpoint or "",
            protocols=config.protocols,
            send=codex.sending(send),
            dial=read_dial(config, environ),
            headers=((b"originator", config.originator.encode()), STREAMS, *read_headers(config, environ)),
            first_token_timeout_s=config.first_token_timeout_s,
        ),
        auth=Auth(
            codex.authorize,
            renew=keeper.renew,
            login_command="dragoman login codex",
            secrets=read_secrets(config, environ),
        ),
        catalogue=Catalogue(
            models=configured_models(config), list_models=account.models, ttl_s=config.model_cache_ttl_s
        ),
        requests=RequestRules(
            passes=(fit,),
            passthrough_body=passing,
            forwards_header=FORWARDED.__contains__,
            headers=codex.session_headers,
            adjust=adjust_reasoning,
        ),
        replies=ReplyRules(interpret_failure=codex.interpret_failure, fix_response=fix_response),
        account=Account(
            inspect=account.inspect,
            read_quotas=account.quota,
            last_limits=codex.limits,
            exhausted_until=spent_until,
        ),
    )


def line_of(config: CodexProviderConfig, send: SendRequest, environ: Mapping[str, str]) -> ServiceClient:
    """How this account's small questions travel."""
    headers = (read_user_agent(config), (b"originator", config.originator.encode()))
    return ServiceClient(send, read_dial(config, environ), ServerClock(), headers)


def source_of(config: CodexProviderConfig, environ: Mapping[str, str]) -> Callable[[], Source[Credential]]:
    """Looked for at each use: a login made while we run is found without a restart."""
    home = home_directory(environ)
    if config.credentials is not None:
        configured_file = AuthFile(config.credentials)
        return lambda: configured_file
    places = codex_credential_paths(environ, home) if home is not None else ()

    def found() -> Source[Credential]:
        path = next((path for path in places if path.is_file()), None)
        return Nowhere() if path is None else AuthFile(path)

    return found


class Codex:
    """What the gateway asks of a provider, answered for one account."""

    def __init__(self, account: CodexAccount, clock: ServerClock) -> None:
        self._account = account
        self._clock = clock
        self._meter = Meter()

    def sending(self, send: SendRequest) -> SendRequest:
        """The same way to send; clock and meter learn from every answer."""

        async def sent(out: OutgoingRequest, dial: DialOptions, *, head_timeout_s: float) -> IncomingResponse:
            answer = await send(out, dial, head_timeout_s=head_timeout_s)
            self._clock.see(answer.headers.get(b"date"))
            self._meter.see(answer.headers, self._clock.now())
            return answer

        return sent

    async def authorize(self, protocol: str) -> tuple[Header, ...]:
        return bearer(await self._account.keeper.credential())

    def session_headers(self, request: Callable[[], Request], headers: Headers, attempt: Attempt) -> tuple[Header, ...]:
        """Return the conversation's id, the same in every turn; nothing where the client sent its own."""
        if b"session-id" in headers or b"session_id" in headers:
            return ()
        try:
            session = session_of(request(), attempt.tenant)
        except RequestError:  # a context that only this backend can read
            session = str(uuid4())
        return ((b"session-id", session.encode()),)

    def limits(self) -> Limits | None:
        return self._meter.limits

    def interpret_failure(self, failure: Failure) -> Failure:
        now = self._clock.now()
        if failure.resets_at is not None and failure.resets_at > now:
            failure = replace(failure, retry_after=failure.resets_at - now)
        if failure.code == "usage_limit_reached" and failure.retry_after is not None:
            self._meter.park(now + failure.retry_after)
        if failure.code == "usage_not_included":
            return replace(failure, kind=Kind.FORBIDDEN)  # the plan lacks Codex: waiting does not help
        if failure.status in (400, 404) and MODEL_GATE.search(failure.message):
            return replace(failure, kind=Kind.NOT_FOUND)
        if failure.status == 403 and "cloudflare" in failure.message.lower():
            message = "Cloudflare, before the ChatGPT backend, blocked the request; the credential is not at fault"
            return replace(failure, kind=Kind.FORBIDDEN, message=message)
        return failure


def fix_response(out: OutgoingRequest, answer: IncomingResponse) -> IncomingResponse:
    """A stream ends with what it has told."""
    return Mended(answer, filling_output()) if is_event_stream(answer) else answer


def session_of(request: Request, tenant: str) -> str:
    """Derive the session from the client's own key for the conversation, else from what it began with.

    The same words of two client keys are two sessions.
    """
    if request.cache_key:
        return str(uuid5(NAMESPACE_URL, f"{tenant}\0{request.cache_key}"))
    first = next((turn for turn in request.turns if turn.role is Role.USER), None)
    texts = [part.text for part in first.parts if isinstance(part, Text)] if first else []
    return str(uuid5(NAMESPACE_URL, "\0".join((tenant, *texts))))
