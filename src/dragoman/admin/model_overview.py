"""Which models a running gateway offers, who answers them, and at which price."""

from collections.abc import Callable

from msgspec import Struct

from dragoman.flow.runtime import Runtime, list_known_models
from dragoman.prices import Pricing
from dragoman.prices.pricing import UsdPerMillion
from dragoman.providers.provider import Provider
from dragoman.routing import list_names


class RouteTarget(Struct, frozen=True):
    """`*` as the model stands for the requested name. A target that cools down is tried last."""

    provider: str
    model: str
    cooling_down_until: float | None  # seconds since the epoch


class ConfiguredRoute(Struct, frozen=True):
    name: str
    targets: list[RouteTarget]


class OfferedModel(Struct, frozen=True):
    """A model of a provider, and every name by which clients can request it."""

    provider: str
    model: str
    name: str
    names: list[str]
    max_input: int | None
    max_output: int | None
    usd_per_million: UsdPerMillion | None  # None: the price is not known


class ProviderModels(Struct, frozen=True):
    """`problem` says why its list could not be read."""

    name: str
    kind: str
    protocols: tuple[str, ...]
    problem: str


class ModelOverview(Struct, frozen=True):
    routes: list[ConfiguredRoute]
    models: list[OfferedModel]
    providers: list[ProviderModels]


def describe_models(runtime: Runtime, pricing: Pricing | None, now: float) -> ModelOverview:
    """Return routes in the order in which they are tried, and the models of every provider."""
    known = list_known_models(runtime)
    names = frozenset(list_names(runtime.config.models, known))
    return ModelOverview(
        [
            ConfiguredRoute(route.name, [_target(runtime, text, now) for text in route.to])
            for route in runtime.config.models
        ],
        [
            OfferedModel(
                provider,
                info.id,
                info.name,
                [name for name in (info.id, f"{provider}/{info.id}") if name in names],
                info.max_input,
                info.max_output,
                None if pricing is None else pricing.usd_per_million(provider, info.id, now),
            )
            for provider, catalogue in runtime.catalogues.items()
            for info in catalogue.known()
        ],
        [
            ProviderModels(name, provider.kind, provider.endpoint.protocols, known[name].problem)
            for name, provider in runtime.providers.items()
        ],
    )


def _target(runtime: Runtime, text: str, now: float) -> RouteTarget:
    provider, _, model = text.partition("/")
    found = runtime.providers.get(provider)
    return RouteTarget(provider, model or "*", None if found is None else _free_at(found, model, now))


def _free_at(provider: Provider, model: str, now: float) -> float | None:
    """Return when the first credential may be used again; None if one may be used now."""
    pool = provider.account.pool or provider.account.cooldowns
    if pool is None or not pool.is_cooling_down(model, now):
        return None
    find: Callable[[int], float] = lambda member: pool.free_at(member, model, now)  # noqa: E731
    return min(map(find, range(len(pool.members))))
