"""Context windows of models whose server does not report them in its list of models: Ollama, LM Studio, llama.cpp.

A server is recognised by what it writes as the owner of its models, or by the quirks of its section. Its other API is
at the same address, beside /v1.
"""

import asyncio
from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.net.bodies import read_and_close
from dragoman.net.client import ConnectionLost, SizeLimitExceeded, UpstreamTimeout
from dragoman.net.headers import JSON, Header
from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.translate.framing.numbers import parse_number
from dragoman.upstreams.provider import ModelInfo, Provider, UnsignedRequest

TIMEOUT_S = 2.0  # for all requests together: the list of models waits for them
MAX_BYTES = 4 * 1024 * 1024
MAX_MODELS = 64  # Ollama describes one model per request
CONCURRENT = 8
OWNERS = {"library": "ollama", "organization_owner": "lmstudio", "llamacpp": "llamacpp"}  # of models -> the server
T = TypeVar("T")


class ContextWindow(Struct, frozen=True):
    """In tokens. `actual` is what the server runs the model with, `maximum` is the most that the model can have."""

    actual: int | None = None
    maximum: int | None = None


class _Running(Struct):
    model: str = ""
    context_length: object = None


class _RunningModels(Struct):
    models: list[_Running] = []


class _Shown(Struct):
    model_info: dict[str, object] = {}
    parameters: str = ""


class _Studio(Struct):
    id: str = ""
    loaded_context_length: object = None
    max_context_length: object = None


class _StudioModels(Struct):
    data: list[_Studio] = []


class _Generation(Struct, frozen=True):
    n_ctx: object = None


class _Props(Struct):
    default_generation_settings: _Generation = _Generation()


def read_count(value: object) -> int | None:
    """Return a number of tokens; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def needs_windows(provider: Provider, listed: tuple[ModelInfo, ...]) -> bool:
    """Return whether a server is known to report windows elsewhere, and its list lacks some."""
    return _name_server(provider, listed) is not None and any(model.max_input is None for model in listed)


async def add_windows(
    provider: Provider, listed: tuple[ModelInfo, ...], headers: tuple[Header, ...]
) -> tuple[ModelInfo, ...]:
    """Return the models with the windows that their server reports within two seconds."""
    server = _Server(provider, headers)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await server.read(_name_server(provider, listed), listed)
    except TimeoutError:
        pass  # those that were read by then are used
    return tuple(_add_window(model, server.windows) for model in listed)


def _name_server(provider: Provider, listed: tuple[ModelInfo, ...]) -> str | None:
    if provider.kind != "openai-compatible":
        return None
    found = {OWNERS[model.owned_by] for model in listed if model.owned_by in OWNERS}
    found |= {"ollama"} & provider.catalogue.servers
    return found.pop() if len(found) == 1 else None


def _add_window(model: ModelInfo, windows: Mapping[str, ContextWindow]) -> ModelInfo:
    window = windows.get(model.id, ContextWindow())
    return replace(
        model,
        max_input=model.max_input or window.actual,
        trained_window=model.trained_window or window.maximum,
    )


class _Server:
    def __init__(self, provider: Provider, headers: tuple[Header, ...]) -> None:
        self._provider = provider
        self._root = provider.endpoint.url.rstrip("/").removesuffix("/v1")
        self._headers = headers
        self.windows: dict[str, ContextWindow] = {}

    async def read(self, server: str | None, listed: tuple[ModelInfo, ...]) -> None:
        match server:
            case "ollama":
                await self._read_ollama(listed)
            case "lmstudio":
                found = await self._get("/api/v0/models", _StudioModels) or _StudioModels()
                for model in found.data:
                    self.windows[model.id] = ContextWindow(
                        read_count(model.loaded_context_length), read_count(model.max_context_length)
                    )
            case "llamacpp":
                await self._read_llama_cpp(listed)
            case _:
                return

    async def _read_ollama(self, listed: tuple[ModelInfo, ...]) -> None:
        """Read what each model runs with, or is configured to; a model's own maximum is often not what it gets."""
        loaded = await self._get("/api/ps", _RunningModels) or _RunningModels()
        actual = {model.model: read_count(model.context_length) for model in loaded.models}
        turns = asyncio.Semaphore(CONCURRENT)

        async def read_model(id: str) -> None:
            async with turns:
                shown = await self._get("/api/show", _Shown, msgspec.json.encode({"model": id})) or _Shown()
            running = actual.get(id) or _read_num_ctx(shown.parameters)
            self.windows[id] = ContextWindow(running, _read_maximum(shown.model_info))

        await asyncio.gather(*(read_model(model.id) for model in listed[:MAX_MODELS]))

    async def _read_llama_cpp(self, listed: tuple[ModelInfo, ...]) -> None:
        if len(listed) != 1:  # with several models, the properties are not those of each
            return
        props = await self._get("/props", _Props) or _Props()
        self.windows[listed[0].id] = ContextWindow(read_count(props.default_generation_settings.n_ctx))

    async def _get(self, path: str, type: type[T], body: bytes = b"") -> T | None:
        """Return a response, None if there is none of that shape. A body is posted."""
        headers = (*self._headers, JSON) if body else self._headers
        endpoint, method = self._provider.endpoint, "POST" if body else "GET"
        request = UnsignedRequest(endpoint.protocols[0], method, self._root + path, headers, body=body)
        out = request.add_credentials(await self._provider.auth.authorize(request))
        try:
            response = await endpoint.send(out, endpoint.dial, head_timeout_s=TIMEOUT_S)
            content = await read_and_close(response, MAX_BYTES, TIMEOUT_S)
            return msgspec.json.decode(content, type=type) if response.status == 200 else None
        except (ConnectionLost, UpstreamTimeout, SizeLimitExceeded, *JSON_ERRORS):
            return None


def _read_num_ctx(parameters: str) -> int | None:
    """Return `num_ctx` of the lines of a model's parameters."""
    for line in parameters.splitlines():
        name, _, value = line.strip().partition(" ")
        if name == "num_ctx":
            return read_count(parse_number(value.strip()))
    return None


def _read_maximum(info: Mapping[str, object]) -> int | None:
    """Return the context length of the model's architecture."""
    return read_count(info.get(f"{info.get('general.architecture')}.context_length"))
