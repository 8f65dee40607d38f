"""What models a provider has: asked of it, kept for an hour, served stale while it is asked again."""

import asyncio
import logging
import math
from collections.abc import Callable

import msgspec
from msgspec import Struct

from dragoman.config.problems import ConfigError
from dragoman.framing.known_secrets import Secrets, list_secrets, redact_known
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.net.client import ConnectionLost, OutgoingRequest, SizeLimitExceeded, UpstreamTimeout
from dragoman.net.tasks import spawn
from dragoman.protocols import PROTOCOLS
from dragoman.providers.provider import ModelInfo, Provider

log = logging.getLogger(__name__)
ASK_TIMEOUT_S = 10.0
RETRY_AFTER_FAILURE_S = 30.0
MAX_LIST_BYTES = 16 * 1024 * 1024
NO_LIST_STATUSES = (404, 405, 501)  # the server answers, but has no list of models


class _Listed(Struct):
    id: str = ""
    created: int | float = 0
    owned_by: str = ""
    display_name: str = ""
    max_input_tokens: int | None = None
    max_tokens: int | None = None


class _Page(Struct):
    data: list[_Listed] = []


class NoModelList(Exception):
    """The provider answers, but what it answers is no list: it may serve any model."""


class CachedCatalogue:
    """One provider's models. `known` never waits; `refresh` asks, at most once at a time."""

    def __init__(self, provider: Provider, clock: Callable[[], float]) -> None:
        self._provider = provider
        self._clock = clock
        self._models = provider.catalogue.models + provider.catalogue.fallback_models
        self._most: dict[str, int | None] = {}
        self._asked_at: float | None = None
        self._wait_s = 0.0
        self._asking: asyncio.Task[None] | None = None
        self._answered = False  # or failed to: whether the first question is over
        self.complete = (
            bool(provider.catalogue.models) or not provider.catalogue.has_list
        )  # whether an absent id is known to be absent
        self._problem = "its model list has not been read yet"

    def known(self) -> tuple[ModelInfo, ...]:
        """What is known now; a stale list is served while it is asked for again."""
        if self._stale() and self._asking is None:
            self._begin()
        return self._models

    def most_output(self, model: str) -> int | None:
        """The most tokens that the model writes, where its listing says so."""
        return self._most.get(model)

    def list_problem(self) -> str:
        """Return why the provider could not be asked for its models; empty if it could, or has no list."""
        return "" if self.complete else self._problem

    async def settled(self, at_most_s: float = math.inf) -> tuple[ModelInfo, ...]:
        """What is known once the first question is over, whoever asked it, or `at_most_s` after it was put."""
        if not self._answered and self._provider.catalogue.has_list:
            asking = self._asking or self._begin()
            since = 0.0 if self._asked_at is None else self._clock() - self._asked_at
            if since < at_most_s:
                await asyncio.wait((asking,), timeout=None if at_most_s == math.inf else at_most_s - since)
        return self.known()

    def _begin(self) -> asyncio.Task[None]:
        self._asking = spawn(self.refresh(), name=f"models of {self._provider.name}")
        return self._asking

    async def refresh(self) -> None:
        self._asked_at, self._wait_s = self._clock(), self._provider.catalogue.ttl_s
        try:
            listed = await ask_models(self._provider)
        except (
            NoModelList,
            ConnectionLost,
            UpstreamTimeout,
            SizeLimitExceeded,
            RequestError,
            ConfigError,
            ValueError,
            msgspec.MsgspecError,
        ) as problem:
            log.info("models of %s are not to be had now: %s", self._provider.name, problem)
            self._wait_s = min(RETRY_AFTER_FAILURE_S, self._wait_s)
            self._problem = _describe(problem)
        else:
            own = {model.id for model in listed}
            self._models = (*listed, *(model for model in self._provider.catalogue.models if model.id not in own))
            self._most = {model.id: model.max_output for model in listed}
            self.complete = True
        finally:
            self._asking = None
            self._answered = True

    def _stale(self) -> bool:
        if not self._provider.catalogue.has_list:
            return False
        return self._asked_at is None or self._clock() - self._asked_at > self._wait_s


async def ask_models(provider: Provider) -> tuple[ModelInfo, ...]:
    """What it lists now, in its own way or with GET /models, without any credential that it repeats."""
    protocol = provider.endpoint.protocols[0]
    if provider.catalogue.list_models is not None:
        listed = await provider.catalogue.list_models()
        if provider.members:  # the list was asked of them, and is clean already
            return listed
        return _hide_secrets(listed, list_secrets(await provider.auth.authorize(protocol), provider.auth.secrets))
    credentials = await provider.auth.authorize(protocol)
    headers = (*provider.endpoint.headers, (b"accept", b"application/json"), *credentials)
    upstream = PROTOCOLS[protocol].upstream
    assert upstream is not None
    url = f"{provider.endpoint.url}/models{upstream.models_query}"
    out = OutgoingRequest("GET", url, (*headers, *upstream.required_headers))
    answer = await provider.endpoint.send(out, provider.endpoint.dial, head_timeout_s=ASK_TIMEOUT_S)
    try:
        body = await answer.read(MAX_LIST_BYTES, ASK_TIMEOUT_S)
    finally:
        answer.close()
    if answer.status in NO_LIST_STATUSES:
        raise NoModelList(f"HTTP {answer.status}")
    if answer.status != 200:
        raise RequestError(Failure(Kind.UPSTREAM, f"HTTP {answer.status}", status=answer.status))
    try:
        page = msgspec.json.decode(body, type=_Page)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NoModelList(f"not a list of models: {error}") from error
    listed = tuple(
        ModelInfo(m.id, m.display_name, int(m.created), m.owned_by, m.max_input_tokens, m.max_tokens)
        for m in page.data
        if m.id
    )
    return _hide_secrets(listed, list_secrets(credentials, provider.auth.secrets))


def _hide_secrets(listed: tuple[ModelInfo, ...], secrets: Secrets) -> tuple[ModelInfo, ...]:
    said = msgspec.json.encode(listed)
    hidden = redact_known(said, secrets)
    return listed if hidden is said else msgspec.json.decode(hidden, type=tuple[ModelInfo, ...])


def _describe(problem: Exception) -> str:
    """Say why there is no list, in words of our own where an upstream's could repeat a secret."""
    match problem:
        case NoModelList():
            return ""
        case RequestError(failure=failure):
            return failure.kind.value if failure.status is None else f"HTTP {failure.status}"
        case ConfigError():
            return "it has no usable credential"
        case UpstreamTimeout():
            return f"no answer within {ASK_TIMEOUT_S:.0f} s"
        case ConnectionLost():  # whose message is safe to show
            return str(problem)
        case _:
            return "its answer cannot be read"
