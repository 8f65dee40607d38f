"""The list of models, in the shape that the client's protocol gives it."""

from collections.abc import Mapping
from urllib.parse import parse_qs

from dragoman.flow.response_headers import encode_ascii_json
from dragoman.flow.runtime import Runtime, list_known_models
from dragoman.hub.ports import GetHeader, ListedModel, ModelList, Protocol
from dragoman.net.headers import Header
from dragoman.providers.provider import ModelInfo
from dragoman.routing.resolve import list_names


def read_parameters(query: str) -> dict[str, str]:
    """Return the parameters of a query, of a repeated one the last value."""
    return {name: values[-1] for name, values in parse_qs(query).items()} if query else {}


def choose_model_list(protocols: Mapping[str, Protocol], header: GetHeader, parameters: Mapping[str, str]) -> ModelList:
    """Return the shape that the request asks for, else that of the first protocol."""
    shapes = [protocol.models for protocol in protocols.values() if protocol.models is not None]
    return next((shape for shape in shapes if shape.is_requested(header, parameters)), shapes[0])


def list_models(runtime: Runtime) -> dict[str, ListedModel]:
    """Return every name that a client may ask for, with what is known of the model behind it."""
    infos: dict[str, ModelInfo] = {}
    for provider, catalogue in runtime.catalogues.items():
        for info in catalogue.known():
            infos.setdefault(info.id, info)
            infos[f"{provider}/{info.id}"] = info
    names = list_names(runtime.config.models, list_known_models(runtime))
    return {name: _describe(name, infos.get(name)) for name in names}


def unlisted_headers(runtime: Runtime) -> list[Header]:
    """Return the header that names the providers whose list could not be read, and why."""
    known = list_known_models(runtime)
    problems = {provider: models.problem for provider, models in known.items() if models.problem}
    return [(b"x-dragoman-unlisted", encode_ascii_json(problems))] if problems else []


def _describe(name: str, info: ModelInfo | None) -> ListedModel:
    if info is None:
        return ListedModel(name)
    return ListedModel(name, info.name, info.created, info.owned_by, info.max_input, info.max_output)
