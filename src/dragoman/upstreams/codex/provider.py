"""Codex: one ChatGPT account, what its backend accepts, and what its failures mean."""

import re
from collections.abc import Callable, Mapping
from uuid import uuid4

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from dragoman.config.discovery import codex_credential_paths, home_directory
from dragoman.config.settings import CodexProviderConfig, ProviderConfig
from dragoman.net.client import OutgoingRequest
from dragoman.net.headers import Header, Headers
from dragoman.translate.caching.session_names import derive_key, name_session
from dragoman.translate.framing.jsonscan import replace_value
from dragoman.translate.framing.sse import DataRewriter
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.request import Request
from dragoman.upstreams import Surroundings
from dragoman.upstreams.account_state import AccountLimits
from dragoman.upstreams.codex.account import (
    CodexAccount,
    LimitTracker,
    authorization_headers,
    read_codex_exhausted_until,
)
from dragoman.upstreams.codex.credential import ISSUER_URL, NO_CREDENTIAL, AuthForm, Credential, TokenIssuer
from dragoman.upstreams.codex.request_rules import fit_request, passthrough_body
from dragoman.upstreams.credentials.credential import CredentialSource, JsonSource, make_missing_source
from dragoman.upstreams.credentials.refresher import CredentialRefresher, RenewalTiming
from dragoman.upstreams.credentials.service_client import ServerClock, ServiceClient, observe_responses
from dragoman.upstreams.credentials.stored import StoredCredentials, find_stored_source
from dragoman.upstreams.provider import (
    Account,
    Attempt,
    Auth,
    Catalogue,
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
    configured_models,
    read_dial,
    read_endpoint,
    read_headers,
    read_secrets,
    read_user_agent,
)

FORM = AuthForm()
ITEM_DONE = b'"response.output_item.done"'
FINAL_EVENTS = (b'"response.completed"', b'"response.incomplete"')
NULL = Raw(b"null")


class _Event(Struct):
    type: str = ""
    output_index: int = 0
    item: Raw = NULL
    response: Raw = NULL


class _Snapshot(Struct):
    output: list[Raw] | None = None


_event = msgspec.json.Decoder(_Event)
_snapshot = msgspec.json.Decoder(_Snapshot)


class OutputFiller(Struct, eq=False):
    """Fills the output of the final event, which this backend may leave empty: a client may read only that event."""

    _items: dict[int, Raw] = {}

    def rewrite(self, data: bytes) -> bytes:
        if ITEM_DONE not in data and not any(end in data for end in FINAL_EVENTS):
            return data
        try:
            event = _event.decode(data)
            if event.type == "response.output_item.done":
                self._items[event.output_index] = event.item.copy()
            elif event.type in ("response.completed", "response.incomplete"):
                return self._fill_output(data, event)
        except (ValueError, RecursionError):
            return data
        return data

    def _fill_output(self, data: bytes, event: _Event) -> bytes:
        if not self._items or _snapshot.decode(event.response).output:
            return data
        output = msgspec.json.encode([self._items[index] for index in sorted(self._items)])
        self._items.clear()  # free the memory: a stream has one final event
        response = bytes(event.response)
        filled = replace_value(response, "output", output)
        if filled == response:  # the field is missing
            filled = response.rstrip()[:-1] + b',"output":' + output + b"}"
        return replace_value(data, "response", filled)


def fill_output() -> DataRewriter:
    return DataRewriter(OutputFiller().rewrite)


# Client headers that are passed on: the id of the conversation, and how to read the body. Others, above all the
# client's name, installation and attestation, concern only the client.
FORWARDED = frozenset(
    b"session-id session_id thread-id conversation_id x-client-request-id x-codex-turn-state "
    b"x-openai-internal-codex-responses-lite".split()
)
SESSION_IDS = frozenset((b"session-id", b"session_id"))
ACCEPT_STREAM = (b"accept", b"text/event-stream")  # it only streams
MODEL_GATE = re.compile(r"not supported when using codex|requires a newer version of codex|model not found", re.I)


def make_codex(config: ProviderConfig, around: Surroundings) -> Provider:
    assert isinstance(config, CodexProviderConfig)
    send, environ = around.send, around.environ
    service = make_service_client(config, send, environ)
    issuer = TokenIssuer(service, config.auth_endpoint or ISSUER_URL, config.client_id)
    timing = RenewalTiming(service.clock, config.refresh_margin_s)
    refresher = CredentialRefresher(config.name, find_source(config, environ, around.stored), issuer, timing)
    account = CodexAccount(config, service, refresher)
    codex = Codex(account, service.clock)
    return Provider(
        name=config.name,
        kind=config.kind,
        issuer=config.name,
        endpoint=replace(
            read_endpoint(config, observe_responses(send, service.clock, codex.observe), environ),
            headers=((b"originator", config.originator.encode()), ACCEPT_STREAM, *read_headers(config, environ)),
        ),
        auth=Auth(
            codex.authorize,
            renew=refresher.renew,
            expires_at=refresher.expires_at,
            login_command="dragoman login codex",
            secrets=read_secrets(config, environ),
        ),
        catalogue=Catalogue(
            models=configured_models(config), list_models=account.models, ttl_s=config.model_cache_ttl_s
        ),
        requests=RequestRules(
            hosted_tools=frozenset(("web_search",)),
            passes=(fit_request,),
            passthrough_body=passthrough_body,
            forwards_header=FORWARDED.__contains__,
            headers=codex.session_headers,
            options=account.request_options,
            adjust=adjust_reasoning,
        ),
        replies=ReplyRules(interpret_failure=codex.interpret_failure, fix_response=fix_response),
        account=Account(
            inspect=account.inspect,
            read_quotas=account.read_quotas,
            last_limits=codex.limits,
            exhausted_until=read_codex_exhausted_until,
        ),
    )


def make_service_client(config: CodexProviderConfig, send: SendRequest, environ: Mapping[str, str]) -> ServiceClient:
    """Return the client for the account's own services."""
    headers = (read_user_agent(config), (b"originator", config.originator.encode()))
    return ServiceClient(send, read_dial(config, environ), ServerClock(), headers)


def find_source(
    config: CodexProviderConfig, environ: Mapping[str, str], stored: StoredCredentials | None = None
) -> Callable[[], CredentialSource[Credential]]:
    """Return a function that finds the credential at each use, so that a new login needs no restart."""
    home = home_directory(environ)
    if config.credentials is not None:
        configured = find_stored_source(config.credentials, stored, FORM) or JsonSource(config.credentials, FORM)
        return lambda: configured
    places = codex_credential_paths(environ, home) if home is not None else ()

    def find_saved() -> CredentialSource[Credential]:
        path = next((path for path in places if path.is_file()), None)
        return make_missing_source(NO_CREDENTIAL) if path is None else JsonSource(path, FORM)

    return find_saved


class Codex:
    """The functions of a provider, for one account."""

    def __init__(self, account: CodexAccount, clock: ServerClock) -> None:
        self._account = account
        self._clock = clock
        self._tracker = LimitTracker()

    def observe(self, response: IncomingResponse) -> None:
        self._tracker.update(response.headers, self._clock.now())

    async def authorize(self, request: UnsignedRequest) -> tuple[Header, ...]:
        return authorization_headers(await self._account.refresher.get())

    def session_headers(self, request: Callable[[], Request], headers: Headers, attempt: Attempt) -> tuple[Header, ...]:
        """Return the conversation's id, the same in every turn; nothing where the client's own is passed on."""
        if any(name in SESSION_IDS for name, _ in attempt.forwarded):
            return ()
        session = attempt.session
        try:
            session = session or derive_key(attempt.tenant, name_session(headers.get, request()))
        except RequestError:  # the context can only be read by this backend
            session = str(uuid4())
        return ((b"session-id", session.encode()),)

    def limits(self) -> AccountLimits | None:
        return self._tracker.limits

    def interpret_failure(self, failure: Failure) -> Failure:
        now = self._clock.now()
        if failure.resets_at is not None and failure.resets_at > now:
            failure = replace(failure, retry_after=failure.resets_at - now)
        if failure.code == "usage_limit_reached" and failure.retry_after is not None:
            self._tracker.set_exhausted(now + failure.retry_after)
        if failure.code == "usage_not_included":
            return replace(failure, kind=Kind.FORBIDDEN)  # the plan does not include Codex: waiting does not help
        if failure.status in (400, 404) and MODEL_GATE.search(failure.message):
            return replace(failure, kind=Kind.NOT_FOUND)
        if failure.status == 403 and "cloudflare" in failure.message.lower():
            message = (
                "Cloudflare, in front of the ChatGPT backend, blocked the request; the credential is not the cause"
            )
            return replace(failure, kind=Kind.FORBIDDEN, message=message)
        return failure


def fix_response(out: OutgoingRequest, response: IncomingResponse) -> IncomingResponse:
    """Fill the output of a stream's final event."""
    return FixedResponse(response, fill_output()) if is_event_stream(response) else response
