"""The models that a provider has: fetched and cached."""

import asyncio
import logging
import math
from collections.abc import Callable
from datetime import datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.problems import ConfigError
from dragoman.net.bodies import read_and_close
from dragoman.net.client import ConnectionLost, SizeLimitExceeded, UpstreamTimeout
from dragoman.net.tasks import spawn
from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.translate.framing.known_secrets import Secrets, list_secrets, redact_known
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.ports import Upstream
from dragoman.translate.profiles.model_table import find_profile
from dragoman.translate.protocols import PROTOCOLS
from dragoman.upstreams.context_windows import add_windows, needs_windows, read_count
from dragoman.upstreams.provider import ModelInfo, Provider, UnsignedRequest, is_bad_token

log = logging.getLogger(__name__)
LIST_TIMEOUT_S = 10.0
RETRY_AFTER_FAILURE_S = 30.0
MAX_LIST_BYTES = 16 * 1024 * 1024
FIRST_MILLISECONDS = 1e11  # what is larger and stands for seconds is a date after the year 5138
END_OF_TIME = 253_402_300_799  # the last second that has a date
NO_LIST_STATUSES = (404, 405, 501)  # the server works, but has no list of models


class _Listed(Struct):
    id: str = ""
    name: str | None = ""  # of vendors whose entries have no id, or one that requests do not use
    created: int | float | str | None = None
    owned_by: str | None = ""
    display_name: str | None = ""
    max_input_tokens: int | None = None
    max_tokens: int | None = None
    created_at: object = None  # Anthropic's, and the next one
    capabilities: object = None
    max_model_len: object = None  # vLLM's and SGLang's; the window, as in the following ones
    context_length: object = None  # OpenRouter's, Together's
    context_window: object = None  # Groq's
    max_context_length: object = None  # Mistral's
    meta: object = None  # llama.cpp's


class _Page(Struct):
    data: list[_Listed] = []
    models: list[_Listed] = []  # Cohere's
    result: list[_Listed] = []  # Cloudflare's, whose ids are not the names of models


class NoModelList(Exception):
    """The provider works, but has no list of models for us: it may serve any model."""


class CachedCatalogue:
    """One provider's models. `known` never waits; `refresh` fetches the list, at most once at a time."""

    def __init__(self, provider: Provider, clock: Callable[[], float]) -> None:
        self._provider = provider
        self._clock = clock
        self._models = self._fill_limits(provider.catalogue.models + provider.catalogue.fallback_models)
        self._max_output: dict[str, int | None] = {}
        self._fetched_at: float | None = None
        self._ttl_s = 0.0
        self._fetching: asyncio.Task[None] | None = None
        self._has_tried = False  # whether the first fetch is over, successful or not
        # Whether a model that is not in the list is known not to exist.
        self.complete = bool(provider.catalogue.models)
        self._problem = "its model list has not been read yet" if provider.catalogue.has_list else ""

    def list_known(self) -> tuple[ModelInfo, ...]:
        """Return the models known now; start to fetch the list again if it is stale."""
        if self._is_stale() and self._fetching is None:
            self._start_fetch()
        return self._models

    def max_output(self, model: str) -> int | None:
        """Return the most tokens that the model writes, if the list says so."""
        return self._max_output.get(model)

    def list_problem(self) -> str:
        """Return why the list could not be read; empty if it could, or if the provider has none."""
        return "" if self.complete else self._problem

    async def wait_for_list(self, at_most_s: float = math.inf) -> tuple[ModelInfo, ...]:
        """Return the models known once the first fetch is over, or `at_most_s` after it began."""
        if not self._has_tried and self._provider.catalogue.has_list:
            fetching = self._fetching or self._start_fetch()
            since_s = 0.0 if self._fetched_at is None else self._clock() - self._fetched_at
            if since_s < at_most_s:
                await asyncio.wait((fetching,), timeout=None if at_most_s == math.inf else at_most_s - since_s)
        return self.list_known()

    def _start_fetch(self) -> asyncio.Task[None]:
        self._fetching = spawn(self.refresh(), name=f"models of {self._provider.name}")
        return self._fetching

    async def refresh(self) -> None:
        self._fetched_at, self._ttl_s = self._clock(), self._provider.catalogue.ttl_s
        try:
            listed = await fetch_models(self._provider)
        except LIST_ERRORS as problem:
            log.info("cannot list the models of %s: %s", self._provider.name, problem)
            self._ttl_s = min(RETRY_AFTER_FAILURE_S, self._ttl_s)
            self._problem = _describe_problem(problem)
        else:
            ids = {model.id for model in listed}
            unlisted = (model for model in self._provider.catalogue.models if model.id not in ids)
            self._models = self._fill_limits((*listed, *unlisted))
            self._max_output = {model.id: model.max_output for model in listed}
            self.complete = True
        finally:
            self._fetching = None
            self._has_tried = True

    def _fill_limits(self, models: tuple[ModelInfo, ...]) -> tuple[ModelInfo, ...]:
        return tuple(fill_limits(model, self._provider.catalogue.default_window) for model in models)

    def _is_stale(self) -> bool:
        if not self._provider.catalogue.has_list:
            return False
        return self._fetched_at is None or self._clock() - self._fetched_at > self._ttl_s


LIST_ERRORS = (
    NoModelList,
    ConnectionLost,
    UpstreamTimeout,
    SizeLimitExceeded,
    RequestError,
    ConfigError,
    ValueError,
    msgspec.MsgspecError,
)


async def fetch_models(provider: Provider) -> tuple[ModelInfo, ...]:
    """Return the provider's list of models, with any credential in it redacted. Raises one of LIST_ERRORS."""
    if provider.catalogue.list_models is not None:
        listed = await provider.catalogue.list_models()
        if provider.members:  # the list is theirs, and already redacted
            return listed
        return _redact(listed, await provider.list_secrets())
    protocol = provider.endpoint.protocols[0]
    upstream = PROTOCOLS[protocol].upstream
    assert upstream is not None
    headers = (*provider.endpoint.headers, (b"accept", b"application/json"))
    url = provider.catalogue.list_url or f"{provider.endpoint.url}/models{upstream.models_query}"
    request = UnsignedRequest(protocol, "GET", url, (*headers, *upstream.required_headers))
    credentials = await provider.auth.authorize(request)
    out = request.add_credentials(credentials)
    response = await provider.endpoint.send(out, provider.endpoint.dial, head_timeout_s=LIST_TIMEOUT_S)
    body = await read_and_close(response, MAX_LIST_BYTES, LIST_TIMEOUT_S)
    if response.status != 200:
        raise _list_error(upstream, response.status, body)
    listed = parse_list(body)
    if needs_windows(provider, listed):
        listed = await add_windows(provider, listed, headers)
    return _redact(listed, list_secrets(credentials, provider.auth.secrets))


def fill_limits(model: ModelInfo, default: int | None) -> ModelInfo:
    """Return the model with the best that is known of its window, and of how much it writes.

    That is what its server reports, else the table of known models, else the configured default, else the model's own
    maximum, with which its server need not run it.
    """
    if model.max_input is not None and model.max_output is not None:
        return model
    profile = find_profile(model.id)
    window = model.max_input or profile.window or default or model.trained_window
    return replace(model, max_input=window, max_output=model.max_output or profile.max_output)


def _list_error(upstream: Upstream, status: int, body: bytes) -> Exception:
    """Return the error of a list that was refused: with 403, the credential may still use the models."""
    if status in NO_LIST_STATUSES:
        return NoModelList(f"HTTP {status}")
    failure = upstream.read_error(status, {}, body)
    if failure.kind is Kind.FORBIDDEN and not is_bad_token(failure):
        return NoModelList(f"HTTP {status}")
    return RequestError(Failure(Kind.UPSTREAM, f"HTTP {status}", status=status))


def parse_list(body: bytes) -> tuple[ModelInfo, ...]:
    """Read OpenAI's shape, or that of a vendor whose list is an array or has another key. Raises NoModelList."""
    try:
        page = msgspec.json.decode(body, type=_Page | list[_Listed])
    except JSON_ERRORS as error:
        raise NoModelList(f"not a list of models: {error}") from error
    if isinstance(page, list):
        named = [(model.id, model) for model in page]
    else:
        named = [(model.id, model) for model in page.data]
        named += [(model.name, model) for model in (*page.models, *page.result)]
    return tuple(_describe(id, model) for id, model in named if id)


def _describe(id: str, model: _Listed) -> ModelInfo:
    meta = model.meta if isinstance(model.meta, dict) else {}
    vendors = (model.max_model_len, model.context_length, model.context_window, model.max_context_length)
    windows = map(read_count, (model.max_input_tokens, *vendors, meta.get("n_ctx")))
    return ModelInfo(
        id,
        model.display_name or "",
        _read_creation(model),
        model.owned_by or "",
        next((window for window in windows if window is not None), None),
        model.max_tokens,
        trained_window=read_count(meta.get("n_ctx_train")),
        capabilities=model.capabilities if isinstance(model.capabilities, dict) else None,
    )


def _read_creation(model: _Listed) -> int:
    """Return when a model was made, in Unix seconds; 0 if that is not known, or no date."""
    created = model.created if isinstance(model.created, int | float) else _read_date(model.created_at)
    seconds = created / 1000 if created > FIRST_MILLISECONDS else created  # as some servers write
    return int(seconds) if 0 <= seconds <= END_OF_TIME else 0


def _read_date(text: object) -> float:
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else 0
    except (ValueError, OverflowError):
        return 0


def _redact(listed: tuple[ModelInfo, ...], secrets: Secrets) -> tuple[ModelInfo, ...]:
    encoded = msgspec.json.encode(listed)
    redacted = redact_known(encoded, secrets)
    return listed if redacted is encoded else msgspec.json.decode(redacted, type=tuple[ModelInfo, ...])


def _describe_problem(problem: Exception) -> str:
    """Return why there is no list, without the upstream's own words: they could contain a secret."""
    match problem:
        case NoModelList():
            return ""
        case RequestError(failure=Failure(kind=Kind.CREDENTIAL)):
            return "its credential is missing or was rejected"
        case RequestError(failure=failure):
            return failure.kind.value if failure.status is None else f"HTTP {failure.status}"
        case ConfigError():
            return "it has no usable credential"
        case UpstreamTimeout():
            return f"no response within {LIST_TIMEOUT_S:.0f} s"
        case ConnectionLost():  # its message is ours
            return str(problem)
        case _:
            return "its response cannot be parsed"
