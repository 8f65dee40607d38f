"""The list of models, in the shape that the client's protocol gives it."""

import asyncio
import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qs

from msgspec.structs import replace

from dragoman.net.headers import JSON, Header
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.response_headers import encode_ascii_json, request_id_headers
from dragoman.proxy.runtime import UNLISTED_WAIT_S, Runtime, describe_unknown_model, find_targets, list_known_models
from dragoman.server.routes import RoutedRequest, respond_json
from dragoman.tenancy.policies import KeyPolicy, Policies
from dragoman.translate.hub.failure import UNKNOWN_MODEL, Failure, Kind, RequestError
from dragoman.translate.hub.ports import GetHeader, ListedModel, ModelList, Protocol
from dragoman.upstreams.provider import ModelInfo
from dragoman.upstreams.routing import (
    PICKER_PREFIX,
    Route,
    find_configured_targets,
    find_known_id,
    find_listed_targets,
    list_names,
)

_PICKER = b"claude-code/"  # the user agent of Claude Code where it looks for models
_SHOWN = re.compile("claude|anthropic", re.IGNORECASE)  # in the names that it shows
_DESCRIPTION = 100  # characters of a description that it shows


class ModelsApi:
    """Lists and describes the models, in the shape of the path's protocol, or in the one that the request asks for."""

    def __init__(self, gateway: Gateway, policies: Policies) -> None:
        self._gateway = gateway
        self._policies = policies

    async def list_models(self, shape: ModelList | None, request: RoutedRequest) -> None:
        await self._wait_for_catalogues()
        parameters = read_parameters(request.http.query)
        shape = shape or self._choose_shape(request, parameters)
        policy = self._policies.find(request.key)
        allowed = allow_models(self._gateway.runtime, policy, list_models(self._gateway.runtime))
        if (request.http.headers.get(b"user-agent") or b"").startswith(_PICKER):
            allowed += list_picker_names(self._gateway.runtime, allowed)
        body = shape.render(allowed, parameters)
        headers = [JSON, *request_id_headers(request.request_id), *unlisted_headers(self._gateway.runtime)]
        request.sink.respond(200, headers, body)

    async def show_model(self, shape: ModelList | None, request: RoutedRequest) -> None:
        await self._wait_for_catalogues()
        runtime, policy = self._gateway.runtime, self._policies.find(request.key)
        name = request.rest.removeprefix(PICKER_PREFIX)
        model = replace(await find_model(runtime, name), id=request.rest)
        if policy.is_restricted and not _allows_any(policy, name, await find_targets(runtime, name)):
            message = f"The model {name!r} is not allowed for this key. GET /v1/models lists those that are."
            raise RequestError(Failure(Kind.NOT_FOUND, message, code=UNKNOWN_MODEL, at="/model"))
        shape = shape or self._choose_shape(request, read_parameters(request.http.query))
        respond_json(request, shape.render_one(model))

    def _choose_shape(self, request: RoutedRequest, parameters: dict[str, str]) -> ModelList:
        return choose_model_list(self._gateway.runtime.protocols, request.http.headers.get, parameters)

    async def _wait_for_catalogues(self) -> None:
        """Wait for the first model lists, but only briefly for one that does not arrive."""
        catalogues = self._gateway.runtime.catalogues.values()
        await asyncio.gather(*(catalogue.wait_for_list(UNLISTED_WAIT_S) for catalogue in catalogues))


def read_parameters(query: str) -> dict[str, str]:
    """Return the parameters of a query, of a repeated one the last value."""
    return {name: values[-1] for name, values in parse_qs(query).items()} if query else {}


def choose_model_list(protocols: Mapping[str, Protocol], header: GetHeader, parameters: Mapping[str, str]) -> ModelList:
    """Return the shape that the request asks for, else that of the first protocol."""
    shapes = [protocol.models for protocol in protocols.values() if protocol.models is not None]
    return next((shape for shape in shapes if shape.is_requested(header, parameters)), shapes[0])


def list_models(runtime: Runtime) -> dict[str, ListedModel]:
    """Return every name that a client may ask for, with what is known of the model behind it."""
    infos = _list_infos(runtime)
    names = list_names(runtime.config.models, list_known_models(runtime))
    return {name: _describe(name, infos.get(name), _find_limits(name, runtime, infos)) for name in names}


def allow_models(runtime: Runtime, policy: KeyPolicy, models: Mapping[str, ListedModel]) -> list[ListedModel]:
    """Return the models of which a key may use at least one target."""
    if not policy.is_restricted:
        return list(models.values())
    catalogues = list_known_models(runtime)
    return [
        model
        for name, model in models.items()
        if _allows_any(
            policy,
            name,
            find_configured_targets(name, runtime.config.models, runtime.providers)
            or find_listed_targets(name, catalogues),
        )
    ]


def list_picker_names(runtime: Runtime, models: Iterable[ListedModel]) -> list[ListedModel]:
    """Return the models that the picker of Claude Code would leave out, by names that it shows."""
    catalogues = list_known_models(runtime)
    listed = []
    for model in models:
        if _SHOWN.search(model.id) is None:
            targets = find_configured_targets(model.id, runtime.config.models, runtime.providers)
            target = next(iter(targets or find_listed_targets(model.id, catalogues)), model.id)
            window = "" if model.max_input is None else f", {model.max_input:,} tokens"
            description = f"{str(target)[: _DESCRIPTION - len(window)]}{window}"
            named = model.name or model.id
            listed.append(replace(model, id=PICKER_PREFIX + model.id, name=named, description=description))
    return listed


def _allows_any(policy: KeyPolicy, name: str, routes: Iterable[Route]) -> bool:
    return any(policy.allows(name, route.provider, route.model) for route in routes)


async def find_model(runtime: Runtime, name: str) -> ListedModel:
    """Return the model that answers a request by this name first, listed or not; raises RequestError (404)."""
    listed = list_models(runtime).get(name)
    if listed is not None:
        return listed
    catalogues, infos = list_known_models(runtime), _list_infos(runtime)
    for route in await find_targets(runtime, name):
        known = catalogues.get(route.provider)
        id = None if known is None else find_known_id(route.model, known)
        if id is not None:
            return _describe(name, _find_info(f"{route.provider}/{id}", runtime, infos), None)
    raise RequestError(describe_unknown_model(name, runtime, catalogues))


def _list_infos(runtime: Runtime) -> dict[str, ModelInfo]:
    """Return what is known of each model, by its id and by `provider/id`."""
    infos: dict[str, ModelInfo] = {}
    for provider, catalogue in runtime.catalogues.items():
        for info in catalogue.list_known():
            infos.setdefault(info.id, info)
            infos[f"{provider}/{info.id}"] = info
    return infos


def list_windows(runtime: Runtime) -> dict[str, int]:
    """Return the context windows that are known, in tokens, by every name that a client may ask for."""
    return {name: model.max_input for name, model in list_models(runtime).items() if model.max_input is not None}


def _find_limits(name: str, runtime: Runtime, infos: Mapping[str, ModelInfo]) -> ModelInfo | None:
    """Return the model that answers to a configured name first, for its limits."""
    route = next((route for route in runtime.config.models if route.name == name), None)
    return None if route is None else _find_info(route.to[0], runtime, infos)


def _find_info(target: str, runtime: Runtime, infos: Mapping[str, ModelInfo]) -> ModelInfo | None:
    """Return what is known of `provider/model`: of one that is not listed, the window that is set."""
    info, provider = infos.get(target), runtime.providers.get(target.partition("/")[0])
    if info is not None or provider is None or provider.catalogue.default_window is None:
        return info
    return ModelInfo(target.partition("/")[2], max_input=provider.catalogue.default_window)


def unlisted_headers(runtime: Runtime) -> list[Header]:
    """Return the header that names the providers whose list could not be read, and why."""
    known = list_known_models(runtime)
    problems = {provider: models.problem for provider, models in known.items() if models.problem}
    return [(b"x-dragoman-unlisted", encode_ascii_json(problems))] if problems else []


def _describe(name: str, info: ModelInfo | None, limits: ModelInfo | None) -> ListedModel:
    limits = limits or info
    if limits is None:
        return ListedModel(name)
    if info is None:
        info = ModelInfo(name)
    return replace(limits, id=name, name=info.name, created=info.created, owned_by=info.owned_by)
