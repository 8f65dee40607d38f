"""Gemini's generateContent. So far only its list of models is served, and its places for a key are read."""

from collections.abc import Mapping, Sequence

import msgspec

from dragoman.hub.ports import GetHeader, ListedModel, ModelList, Protocol
from dragoman.protocols.gemini.wire import CLIENT_HEADERS, KEYS, NAME, OPERATION


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


PROTOCOL = Protocol(
    name=NAME,
    models=ModelList(_render_models, _render_model, is_requested=_is_google_client),
    keys=KEYS,
    operation=OPERATION,
)
