"""Kiro: one account, its hosts and headers, and what its requests and replies need."""

import getpass
import logging
import os
import platform
import random
import re
import socket
import time
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256

from dragoman import __version__
from dragoman.config.settings import KiroProviderConfig, ProviderConfig
from dragoman.net.headers import Header, Headers
from dragoman.translate.framing.eventstream import CONTENT_TYPE
from dragoman.translate.hub.events import Event
from dragoman.translate.hub.failure import Failure
from dragoman.translate.hub.ports import Stage
from dragoman.translate.hub.request import Function, Request
from dragoman.translate.protocols.kiro.errors import may_be_old_token
from dragoman.translate.protocols.kiro.wire import NAME, KiroOptions
from dragoman.translate.stages.text_calls import TextCalls
from dragoman.translate.stages.thinking_tags import Mode, ThinkingTags
from dragoman.upstreams import Surroundings
from dragoman.upstreams.credentials.credential import CredentialError, CredentialSource, LocalSource
from dragoman.upstreams.credentials.refresher import CredentialRefresher, RenewalTiming
from dragoman.upstreams.credentials.service_client import ServerClock, ServiceClient, observe_responses
from dragoman.upstreams.kiro.account import AccountProfile, KiroAccount
from dragoman.upstreams.kiro.credential import Credential, TokenIssuers, describe_truncation
from dragoman.upstreams.kiro.credential_sources import find_source
from dragoman.upstreams.kiro.model_cache import NAMES, UNLISTED, ModelCache, fallback_models, resolve_name
from dragoman.upstreams.kiro.search import KiroSearch
from dragoman.upstreams.kiro.services import (
    AccountHosts,
    ControlClient,
    Generation,
    authorization_headers,
    target_headers,
)
from dragoman.upstreams.provider import (
    Account,
    Address,
    Adjustment,
    Attempt,
    Auth,
    Catalogue,
    Endpoint,
    FirstTokenWait,
    IncomingResponse,
    Provider,
    ReplyRules,
    RequestRules,
    SendRequest,
    UnsignedRequest,
    make_uuid,
)
from dragoman.upstreams.section import configured_headers, configured_models, read_dial, read_secrets

log = logging.getLogger(__name__)

REQUEST_ID = b"x-amzn-requestid"
FIRST_TOKEN_LIMIT_S = 15.0  # a healthy Kiro starts sooner; a retry usually helps
MAX_ATTEMPTS = 3  # as the vendor's own clients state it
PROFILE_REQUIRED = re.compile(r"profile_?arn is required(?: for this request)?\.?", re.IGNORECASE)
TOOL_USE_REJECTED = re.compile(r"invalid tool use format\.?", re.IGNORECASE)


def make_kiro(config: ProviderConfig, around: Surroundings) -> Provider:
    assert isinstance(config, KiroProviderConfig)
    send, environ = around.send, around.environ
    service = make_service_client(config, send, environ)
    account = _make_account(config, service, find_source(config, environ, around.stored))
    models = ModelCache(account.models, config.default_max_input_tokens)
    kiro = Kiro(config, account, models)
    return Provider(
        name=config.name,
        kind=config.kind,
        issuer=NAME,
        endpoint=Endpoint(
            url=account.hosts.current.chat,
            protocols=(NAME,),
            send=observe_responses(send, service.clock, kiro.log_request_id),
            dial=read_dial(config, environ),
            headers=chat_headers(config, account.hosts.current.generation, environ),
            find_address=kiro.find_address,
            first_token=FirstTokenWait(config.first_token_timeout_s, FIRST_TOKEN_LIMIT_S, retries_timeouts=True),
        ),
        auth=Auth(
            kiro.authorize,
            renew=account.refresher.renew,
            renews_after=may_be_old_token,
            expires_at=account.refresher.expires_at,
            login_command="dragoman login kiro",
            secrets=read_secrets(config, environ),
        ),
        catalogue=Catalogue(
            models=configured_models(config),
            fallback_models=fallback_models(config.default_max_input_tokens),
            unlisted=UNLISTED,
            list_models=models.fetch,
            ttl_s=config.model_cache_ttl_s,
            rename=kiro.rename,
            context_window=models.context_window,
        ),
        requests=RequestRules(headers=kiro.attempt_headers, options=kiro.request_options, adjust=kiro.adjust),
        replies=ReplyRules(stages=kiro.stages, withholds_cut_calls=True, completes_cut_calls=config.repair_truncation),
        account=Account(inspect=account.inspect, read_quotas=account.read_quotas, search=KiroSearch(account, service)),
    )


def make_service_client(config: KiroProviderConfig, send: SendRequest, environ: Mapping[str, str]) -> ServiceClient:
    """Return the client for the account's own services."""
    return ServiceClient(send, read_dial(config, environ), ServerClock(), control_headers(config))


def _make_account(
    config: KiroProviderConfig, service: ServiceClient, find: Callable[[], CredentialSource[Credential]]
) -> KiroAccount:
    issuers = TokenIssuers(service, config.region, config.auth_endpoint)
    timing = RenewalTiming(service.clock, config.refresh_margin_s)
    refresher = CredentialRefresher(config.name, find, issuers, timing)
    try:
        source = find()
        credential = source.read() if isinstance(source, LocalSource) else None  # else with the first request
    except CredentialError:  # reported by requests, not at the start
        credential = None
    if credential is not None and (why := describe_truncation(credential)):
        log.warning("provider %s: %s", config.name, why)
    place = AccountHosts(config, credential)
    control = ControlClient(service, place, refresher)
    profile = AccountProfile(config, place, control, time.monotonic)
    return KiroAccount(config.name, refresher, profile, control)


class Kiro:
    """The functions of a provider, for one account."""

    def __init__(self, config: KiroProviderConfig, account: KiroAccount, models: ModelCache) -> None:
        self._config = config
        self._thinking = Mode(config.thinking)
        self._account = account
        self._models = models

    def log_request_id(self, response: IncomingResponse) -> None:
        """Log the vendor's request id, which its support needs; for a success only with `--verbose`."""
        level = logging.INFO if response.status >= 400 else logging.DEBUG
        id = response.headers.get(REQUEST_ID)
        if id is not None and log.isEnabledFor(level):
            log.log(
                level,
                "provider %s: HTTP %d to its request %s",
                self._config.name,
                response.status,
                id.decode("latin-1"),
            )

    async def find_address(self, path: str) -> Address:
        """Return the address at the account's current host, which `request_options` has found."""
        hosts = self._account.hosts
        if not hosts.uses_target_header:
            return Address(hosts.current.chat + path)
        service = hosts.current.generation.chat_service
        return Address(f"{hosts.current.chat}/", target_headers(service, "GenerateAssistantResponse"))

    async def authorize(self, request: UnsignedRequest) -> tuple[Header, ...]:
        credential = await self._account.refresher.get()
        return authorization_headers(credential)

    def attempt_headers(self, request: Callable[[], Request], headers: Headers, attempt: Attempt) -> tuple[Header, ...]:
        counted = f"attempt={attempt.number}; max={max(MAX_ATTEMPTS, attempt.number)}"
        return ((b"amz-sdk-invocation-id", attempt.id.encode()), (b"amz-sdk-request", counted.encode()))

    async def request_options(self, model: str) -> KiroOptions:
        config = self._config
        profile_arn = await self._account.profile_arn()
        generation = self._account.hosts.current.generation
        return KiroOptions(
            profile_arn=profile_arn,
            conversation_id=make_uuid(),
            origin=generation.origin,
            agent_mode=generation.agent_mode if generation.mode_in_body else None,
            thinking_by=config.thinking_by,
            fields_schema=await self._models.fields_schema(model),
            cache_points=self._models.caches_prompts(model),
            tool_description_max=config.tool_description_max,
            max_payload_bytes=config.max_payload_bytes,
            missing_tail_is_truncation=config.missing_tail_is_truncation,
        )

    def rename(self, name: str) -> str:
        return resolve_name(name, self._models.ids or NAMES)

    def stages(self, request: Request) -> list[Stage[Event, Event]]:
        stages: list[Stage[Event, Event]] = [ThinkingTags(self._thinking)]
        offered = {tool.name: tool.parameters for tool in request.tools if isinstance(tool, Function)}
        return [*stages, TextCalls(offered, f"{random.getrandbits(128):x}")] if offered else stages

    def adjust(self, failure: Failure) -> Adjustment | None:
        """Return how to send again a request that was rejected as malformed, where that helps."""
        if failure.code == "THINKING_SIGNATURE_INVALID":
            return Adjustment("reasoning dropped", drops_reasoning=True, of_reasoning=True)
        if PROFILE_REQUIRED.fullmatch(failure.message):
            self._account.profile.require()
            return Adjustment("profile resolved")
        return Adjustment("replayed") if TOOL_USE_REJECTED.fullmatch(failure.message) else None


PRODUCT = "dragoman"


@cache
def fingerprint() -> str:
    """Return 64 hex digits that are constant for this user on this machine, and reveal neither."""
    return sha256("\0".join((socket.gethostname(), _user_name(), PRODUCT)).encode()).hexdigest()


def user_agent(config: KiroProviderConfig) -> str:
    system = f"os/{platform.system().lower()}#{platform.release()}"
    language = f"lang/python#{platform.python_version()}"
    return config.user_agent or f"{PRODUCT}/{__version__} ua/2.1 {system} {language} m/{fingerprint()}"


def chat_headers(config: KiroProviderConfig, generation: Generation, environ: Mapping[str, str]) -> tuple[Header, ...]:
    """Return the headers of every chat request, without the credential."""
    own = {
        b"accept": CONTENT_TYPE.encode(),
        b"x-amzn-kiro-agent-mode": generation.agent_mode.encode(),
        b"x-amzn-codewhisperer-optout": b"true",
    }
    return (*{**dict(control_headers(config)), **own, **dict(configured_headers(config, environ))}.items(),)


def control_headers(config: KiroProviderConfig) -> tuple[Header, ...]:
    agent = user_agent(config).encode()
    short = f"{PRODUCT}/{__version__} {fingerprint()}".encode()
    return ((b"user-agent", agent), (b"x-amz-user-agent", agent if config.user_agent else short))


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid()) if hasattr(os, "getuid") else ""
