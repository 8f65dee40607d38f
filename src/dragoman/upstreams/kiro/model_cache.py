"""Kiro's models: their names as clients write them, and what Kiro last listed of each."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Collection
from functools import lru_cache

import msgspec
from msgspec import Raw, Struct

from dragoman.net.tasks import spawn
from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.translate.hub.failure import Failure, RequestError
from dragoman.upstreams.kiro.services import ListedModel
from dragoman.upstreams.provider import ModelInfo

_FAMILIES = "opus|sonnet|haiku|fable|mythos"
_TAIL = re.compile(r"(?:-20\d{6}|-latest|-v\d+(?::\d+)?|@[\w.-]+|\[[^\]]*\])$")
_EFFORT = re.compile(r"-(?:minimal|low|medium|high|xhigh|max|thinking|fast)$")
_INVERTED = re.compile(rf"claude-([4-9](?:\.\d+)?)-({_FAMILIES})$")
_DASHED = re.compile(r"^((?:claude-(?:[a-z]+-)?|gpt-|deepseek-|glm-|minimax-m|kimi-k)\d+)-(\d{1,2})(?=$|-)")
_KNOWN = re.compile(rf"(?:claude-(?:{_FAMILIES})-|gpt-|deepseek-|glm-|minimax-m|kimi-k)\d")
_WIDE = re.compile(r"\[1m\]$")

# Kiro's model ids before they had short names.
_LEGACY = {
    "claude-sonnet-4": "CLAUDE_SONNET_4_20250514_V1_0",
    "claude-sonnet-4.5": "CLAUDE_SONNET_4_5_20250929_V1_0",
    "claude-3.7-sonnet": "CLAUDE_3_7_SONNET_20250219_V1_0",
}
_SHORT = {legacy: short for short, legacy in _LEGACY.items()}
_ONLY_LEGACY = {"claude-3.7-sonnet": _LEGACY["claude-3.7-sonnet"]}  # it has no short name

NAMES = {
    "auto": "Auto",
    "claude-sonnet-4": "Claude Sonnet 4",
    "claude-sonnet-4.5": "Claude Sonnet 4.5",
    "claude-sonnet-4.6": "Claude Sonnet 4.6",
    "claude-sonnet-5": "Claude Sonnet 5",
    "claude-haiku-4.5": "Claude Haiku 4.5",
    "claude-opus-4.5": "Claude Opus 4.5",
    "claude-opus-4.6": "Claude Opus 4.6",
    "claude-opus-4.7": "Claude Opus 4.7",
    "claude-opus-4.8": "Claude Opus 4.8",
    "claude-opus-5": "Claude Opus 5",
    "deepseek-3.2": "DeepSeek 3.2",
    "glm-5": "GLM 5",
    "minimax-m2.1": "MiniMax M2.1",
    "minimax-m2.5": "MiniMax M2.5",
    "qwen3-coder-next": "Qwen3 Coder Next",
}

# Models that Kiro has served without listing them, at least for a time; it refuses those that it has retired.
UNLISTED = frozenset(
    ("auto", "claude-sonnet-4", "claude-sonnet-4.5", "claude-haiku-4.5", "claude-opus-4.5", *_ONLY_LEGACY.values())
)


def fallback_models(window: int) -> tuple[ModelInfo, ...]:
    """Return the models to assume until Kiro's list has been read."""
    return tuple(ModelInfo(id, name, owned_by="kiro", max_input=window) for id, name in NAMES.items())


@lru_cache(maxsize=512)
def normalise_name(name: str) -> str:
    """Return one spelling: `claude-sonnet-4-5-20250929` and `claude-4.5-sonnet-high` are `claude-sonnet-4.5`.

    A name of no known family is returned unchanged.
    """
    requested = name.strip().rpartition("/")[2]
    if requested in _SHORT:
        return _ONLY_LEGACY.get(_SHORT[requested], _SHORT[requested])
    plain = requested.lower().removeprefix("anthropic.")
    while (shorter := _TAIL.sub("", plain)) != plain:
        plain = shorter
    plain = _DASHED.sub(r"\1.\2", plain)
    bare = _EFFORT.sub("", plain)
    plain = _INVERTED.sub(r"claude-\2-\1", bare) if _INVERTED.match(bare) else plain
    if plain in _ONLY_LEGACY:
        return _ONLY_LEGACY[plain]
    return plain if plain in NAMES or _KNOWN.match(plain) else requested


def resolve_name(name: str, listed: Collection[str]) -> str:
    """Return the listed id that a name means; its normal spelling if none is listed."""
    if name in listed:
        return name
    plain = normalise_name(name)
    wide = f"{plain}-1m" if _WIDE.search(name) else plain
    for candidate in (wide, plain, _LEGACY.get(plain), _SHORT.get(plain)):
        if candidate is not None and candidate in listed:
            return candidate
    return plain


FIRST_LIST_TIMEOUT_S = 2.0  # how long a first request waits for the list, which is needed to request thinking natively
OWNER = "kiro"

Schema = dict[str, object]


class _Known(Struct, frozen=True):
    window: int
    schema: Schema | None
    caches_prompts: bool = False


class ModelCache:
    """The models as last listed. `default_window` is the context window of a model that lists none."""

    def __init__(self, list_models: Callable[[], Awaitable[list[ListedModel]]], default_window: int) -> None:
        self._list_models = list_models
        self._default_window = default_window
        self._known: dict[str, _Known] = {}
        self._fetching: asyncio.Task[tuple[ModelInfo, ...] | Failure] | None = None
        self._has_tried = False

    async def fetch(self) -> tuple[ModelInfo, ...]:
        """Fetch the list, once for all concurrent callers. Raises RequestError if that fails."""
        if self._fetching is None:
            self._fetching = spawn(self._run(), name="models of kiro")
        landed = await asyncio.shield(self._fetching)
        if isinstance(landed, Failure):
            raise RequestError(landed)
        return landed

    def caches_prompts(self, model: str) -> bool:
        known = self._known.get(model)
        return known is not None and known.caches_prompts

    async def fields_schema(self, model: str) -> Schema | None:
        """Return the schema of the model's own request fields; None if it is not known."""
        if not self._has_tried:
            with contextlib.suppress(TimeoutError, RequestError):
                async with asyncio.timeout(FIRST_LIST_TIMEOUT_S):
                    await self.fetch()
            self._has_tried = True
        known = self._known.get(model)
        return known.schema if known else None

    @property
    def ids(self) -> Collection[str]:
        return self._known.keys()

    def context_window(self, model: str) -> int:
        known = self._known.get(model)
        return known.window if known else self._default_window

    async def _run(self) -> tuple[ModelInfo, ...] | Failure:
        try:
            listed = [model for model in await self._list_models() if model.model_id]
        except RequestError as refused:
            return refused.failure
        finally:
            self._has_tried = True
            self._fetching = None
        self._known = {
            model.model_id: _Known(self._window(model), _read_schema(model), model.caches_prompts) for model in listed
        }
        return tuple(self._info(model) for model in listed)

    def _info(self, model: ListedModel) -> ModelInfo:
        limits = model.token_limits
        return ModelInfo(
            id=model.model_id,
            name=model.model_name or "",
            owned_by=OWNER,
            max_input=self._window(model),
            max_output=limits.max_output_tokens if limits else None,
            credit_rate=model.credit_rate,
        )

    def _window(self, model: ListedModel) -> int:
        listed = model.token_limits.max_input_tokens if model.token_limits else None
        return listed or self._default_window


def _read_schema(model: ListedModel) -> Schema | None:
    """Read the schema, which is an object or a string that contains one."""
    raw: Raw | str = model.additional_model_request_fields_schema
    try:
        value = msgspec.json.decode(raw)
        if isinstance(value, str):
            value = msgspec.json.decode(value)
    except JSON_ERRORS:
        return None
    return value if isinstance(value, dict) and value else None
