"""The configuration in force, the objects made from it, and the targets of a model name."""

import asyncio
from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from dragoman.config.settings import Config
from dragoman.proxy.ports import MediaFetcher, ModelCatalogue, PriceList
from dragoman.server_tools.backends import ToolPlan
from dragoman.tenancy.policies import Policies
from dragoman.translate.hub.failure import UNKNOWN_MODEL, Failure, Kind, RequestError
from dragoman.translate.hub.ports import Protocol
from dragoman.translate.hub.profile import Profile
from dragoman.translate.profiles.model_table import find_profile
from dragoman.upstreams.learned_quirks import LearnedQuirks
from dragoman.upstreams.provider import Provider
from dragoman.upstreams.rejections.repairs import adapt_profile, list_configured
from dragoman.upstreams.rejections.rules import Found, list_free, list_quirks
from dragoman.upstreams.routing import (
    KnownModels,
    Route,
    find_configured_targets,
    find_listed_targets,
    find_similar_names,
)

# How long after the start a model list is waited for: where another provider lists the name, and where none does.
LISTED_WAIT_S = 1.0
UNLISTED_WAIT_S = 3.0
MAX_TARGETS = 1000  # model names of which the targets are kept, and targets of which the settings are


class TargetSettings(Struct, frozen=True):
    """What a request is fitted to, besides its provider."""

    protocols: dict[str, Protocol]
    profile: Profile
    budgets: dict[str, int]
    quirks: frozenset[str]  # learned, besides those that the provider is known for
    fetcher: MediaFetcher | None  # None: linked media are not fetched
    rules: tuple[Found, ...] = ()  # learned, of what the upstream rejects
    tool_plan: ToolPlan | None = None  # None: the gateway runs no tools for this provider
    configured: tuple[Found, ...] = ()  # rules that hold for translated requests, besides those that were learned


class Runtime(Struct, frozen=True):
    """The configuration in force and the objects made from it. An edit makes a new one, for later requests."""

    config: Config
    providers: Mapping[str, Provider]
    catalogues: Mapping[str, ModelCatalogue]
    protocols: dict[str, Protocol]
    fetcher: MediaFetcher | None
    budgets: dict[str, int]  # effort -> thinking budget
    learned_quirks: LearnedQuirks  # what upstreams have rejected
    tool_plans: Mapping[str, ToolPlan] = {}  # by provider: the tools that the gateway runs for it
    policies: Policies | None = None  # None: nothing is set for any key
    prices: PriceList | None = None  # None: nothing has a price
    targets: dict[str, tuple[Route, ...]] = field(default_factory=dict)  # of model names that were requested before
    settings: "dict[SettingsKey, TargetSettings]" = field(default_factory=dict)  # of targets that were used before


SettingsKey = tuple[Route, tuple[Found, ...], int | None]  # with what was learned and the output limit that is listed


async def find_targets(runtime: Runtime, name: str, fallback: str = "") -> tuple[Route, ...]:
    """Return the targets of a model name, else of `fallback`. Raises RequestError with similar names without any."""
    routes = find_configured_targets(name, runtime.config.models, runtime.providers)
    if routes:
        if len(runtime.targets) >= MAX_TARGETS:  # clients may invent names
            runtime.targets.clear()
        runtime.targets[name] = routes
        return routes
    for at_most_s in (LISTED_WAIT_S, UNLISTED_WAIT_S):
        await asyncio.gather(*(catalogue.wait_for_list(at_most_s) for catalogue in runtime.catalogues.values()))
        catalogues = list_known_models(runtime)
        routes = find_listed_targets(name, catalogues)
        if routes:
            return routes
    if fallback:
        return await find_targets(runtime, fallback)
    raise RequestError(describe_unknown_model(name, runtime, catalogues))


def describe_unknown_model(name: str, runtime: Runtime, catalogues: Mapping[str, KnownModels]) -> Failure:
    """Name similar models, and the providers whose model list could not be read."""
    close = ", ".join(find_similar_names(name, runtime.config.models, catalogues))
    problems = {provider: known.problem for provider, known in catalogues.items() if known.problem}
    message = f"The model {name!r} does not exist here."
    if close:
        message += f" Nearest names: {close}. GET /v1/models lists all."
    if problems:
        unread = "; ".join(f"{provider!r} ({problem})" for provider, problem in problems.items())
        one = next(iter(problems))
        message += f" These model lists could not be read: {unread}. If the model is there, request {one}/{name}."
    if not close and not problems:
        message += " No models are known."
    return Failure(Kind.NOT_FOUND, message, code=UNKNOWN_MODEL, at="/model")


def target_settings(
    runtime: Runtime, route: Route, tenant: str, repairs: tuple[Found, ...] = (), *, strict: bool = False
) -> TargetSettings:
    """Return what a request is fitted to. `repairs` are not learned yet; a strict request loses nothing by them."""
    rules = runtime.learned_quirks.find(tenant, route.provider, route.model) + repairs
    if strict and rules:
        rules = list_free(rules)
    catalogue = runtime.catalogues.get(route.provider)
    max_output = None if catalogue is None else catalogue.max_output(route.model)
    key = (route, rules, max_output)
    settings = runtime.settings.get(key)
    if settings is None:
        if len(runtime.settings) >= MAX_TARGETS:
            runtime.settings.clear()
        settings = runtime.settings[key] = _make_settings(runtime, route, rules, max_output)
    return settings


def _make_settings(runtime: Runtime, route: Route, rules: tuple[Found, ...], max_output: int | None) -> TargetSettings:
    profile, quirks = find_profile(route.model), list_quirks(rules)
    if max_output is not None:
        profile = replace(profile, max_output=max_output)
    profile = adapt_profile(profile, quirks)
    plan = runtime.tool_plans.get(route.provider)
    budgets = runtime.budgets
    if profile.budget is not None:
        origins = runtime.config.origins
        configured = {name: budget for name, budget in budgets.items() if f"effort.{name}" in origins}
        budgets = profile.budget.by_effort | configured
    provider = runtime.providers.get(route.provider)
    of_server = () if provider is None else list_configured(provider, route.model)
    return TargetSettings(runtime.protocols, profile, budgets, quirks, runtime.fetcher, rules, plan, of_server)


def list_known_models(runtime: Runtime) -> dict[str, KnownModels]:
    return {
        name: KnownModels(
            tuple(model.id for model in catalogue.list_known()),
            catalogue.complete,
            runtime.providers[name].catalogue.rename,
            catalogue.list_problem(),
            runtime.providers[name].catalogue.unlisted,
        )
        for name, catalogue in runtime.catalogues.items()
    }
