"""What Kiro lists of its models comes in; their windows and their own request fields are kept for the asking."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection

import msgspec
from msgspec import Raw, Struct

from dragoman.hub.failure import Failure, RequestError
from dragoman.net.tasks import spawn
from dragoman.providers.kiro.control import ListedModel
from dragoman.providers.provider import ModelInfo

FIRST_LIST_S = 2.0  # how long a first request waits for it: without it thinking cannot be asked for natively
OWNER = "kiro"

Schema = dict[str, object]


class _Known(Struct, frozen=True):
    window: int
    schema: Schema | None


class Shelf:
    """The models as last listed. `usual_window` is that of a model which lists none."""

    def __init__(self, ask: Callable[[], Awaitable[list[ListedModel]]], usual_window: int) -> None:
        self._ask = ask
        self._usual_window = usual_window
        self._known: dict[str, _Known] = {}
        self._asking: asyncio.Task[tuple[ModelInfo, ...] | Failure] | None = None
        self._asked = False

    async def models(self) -> tuple[ModelInfo, ...]:
        """Asks anew; whoever asks at the same time gets the same answer. RequestError where there is none."""
        if self._asking is None:
            self._asking = spawn(self._list(), name="models of kiro")
        landed = await asyncio.shield(self._asking)
        if isinstance(landed, Failure):
            raise RequestError(landed)
        return landed

    async def fields_schema(self, model: str) -> Schema | None:
        """What the model takes besides the conversation; None where it, or anything, is not known."""
        if not self._asked:
            with contextlib.suppress(TimeoutError, RequestError):
                async with asyncio.timeout(FIRST_LIST_S):
                    await self.models()
            self._asked = True
        known = self._known.get(model)
        return known.schema if known else None

    @property
    def ids(self) -> Collection[str]:
        return self._known.keys()

    def window(self, model: str) -> int:
        known = self._known.get(model)
        return known.window if known else self._usual_window

    async def _list(self) -> tuple[ModelInfo, ...] | Failure:
        try:
            listed = [model for model in await self._ask() if model.model_id]
        except RequestError as refused:
            return refused.failure
        finally:
            self._asked = True
            self._asking = None
        self._known = {model.model_id: _Known(self._window(model), _schema(model)) for model in listed}
        return tuple(self._info(model) for model in listed)

    def _info(self, model: ListedModel) -> ModelInfo:
        limits = model.token_limits
        return ModelInfo(
            id=model.model_id,
            name=model.model_name or "",
            owned_by=OWNER,
            max_input=self._window(model),
            max_output=limits.max_output_tokens if limits else None,
        )

    def _window(self, model: ListedModel) -> int:
        listed = model.token_limits.max_input_tokens if model.token_limits else None
        return listed or self._usual_window


def _schema(model: ListedModel) -> Schema | None:
    """It comes as an object, or as a string that holds one."""
    raw: Raw | str = model.additional_model_request_fields_schema
    try:
        value = msgspec.json.decode(raw)
        if isinstance(value, str):
            value = msgspec.json.decode(value)
    except msgspec.MsgspecError:
        return None
    return value if isinstance(value, dict) and value else None
