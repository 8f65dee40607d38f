"""Gemini's generateContent, as an upstream. Clients get its list of models, and may send keys in its places."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

import msgspec

from dragoman.framing.sse import SseOrJsonFramer
from dragoman.hub.ports import (
    GetHeader,
    ListedModel,
    Location,
    ModelList,
    Protocol,
    ToolLimits,
    Upstream,
    UpstreamCounting,
)
from dragoman.hub.request import Document, Image, Part
from dragoman.protocols.gemini import count, decode, errors
from dragoman.protocols.gemini.build import build
from dragoman.protocols.gemini.wire import CLIENT_HEADERS, GENERATE, KEYS, NAME, OPERATION, SSE_QUERY, STREAM


def _is_google_client(header: GetHeader, query: Mapping[str, str]) -> bool:
    return any(header(name) is not None for name in CLIENT_HEADERS)


def _describe_model(model: ListedModel) -> dict[str, object]:
    limits = {"inputTokenLimit": model.max_input, "outputTokenLimit": model.max_output}
    return {
        "name": f"models/{model.id}",
        "displayName": model.name or model.id,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
        **{key: value for key, value in limits.items() if value is not None},
    }


def _render_models(models: Sequence[ListedModel], query: Mapping[str, str]) -> bytes:
    return msgspec.json.encode({"models": [_describe_model(model) for model in models]})


def _render_model(model: ListedModel) -> bytes:
    return msgspec.json.encode(_describe_model(model))


def _locate(model: str, stream: bool) -> Location:
    path = f"/models/{quote(model, safe='/:@')}"
    return Location(path + STREAM, SSE_QUERY) if stream else Location(path + GENERATE)


def _needs_inline(part: Part) -> bool:
    """Return whether linked media are fetched first: Gemini cannot fetch every address, nor guess every type."""
    return isinstance(part, Image | Document)


PROTOCOL = Protocol(
    name=NAME,
    upstream=Upstream(
        locate=_locate,
        put_model=lambda body, model: body,  # the model is in the path
        build=build,
        decoder=decode.Decoder,
        framer=SseOrJsonFramer,
        decode_whole=decode.decode_whole,
        read_error=errors.read_failure,
        tool_limits=ToolLimits(custom=False, namespaces=False, name_max=128, letter_first=True),
        needs_inline=_needs_inline,
        reads_documents=True,
        counting=UpstreamCounting(count.locate, count.wrap, count.read_count),
        continues=True,
        models_query="?pageSize=1000",
    ),
    models=ModelList(_render_models, _render_model, is_requested=_is_google_client),
    keys=KEYS,
    operation=OPERATION,
)
