"""What a running gateway knows of its providers: credentials, cooldowns and quotas; routes, models and prices."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dragoman.net.client import ConnectionLost, UpstreamTimeout
from dragoman.operate import NotFound
from dragoman.operate.prices import Pricing, UsdPerMillion
from dragoman.proxy.runtime import Runtime, list_known_models
from dragoman.translate.hub.failure import RequestError, describe_cause
from dragoman.upstreams.account_state import AccountLimits, Quota
from dragoman.upstreams.provider import Provider
from dragoman.upstreams.routing import list_names

QUOTA_TIMEOUT_S = 20.0


class CooldownState(Struct, frozen=True):
    """Why a credential is not used and until when; `model` is empty where that holds for all models."""

    until: float  # seconds since the epoch
    reason: str
    model: str


class CredentialState(Struct, frozen=True):
    """One credential; `label` is its number and where it comes from."""

    label: str
    is_available: bool
    expires_at: float | None  # of the token in use, which is renewed before; None: not known, or never
    cooldowns: list[CooldownState]
    limits: AccountLimits | None  # as of the last response


class ProviderAccount(Struct, frozen=True):
    provider: str
    kind: str
    login_command: str
    problem: str  # why its models could not be listed; empty if they could
    has_quotas: bool
    credentials: list[CredentialState]


class Quotas(Struct, frozen=True):
    """What is used of each plan, and by provider why it could not be read."""

    quotas: list[Quota]
    problems: dict[str, str]


def list_accounts(providers: Mapping[str, Provider], problems: Mapping[str, str], now: float) -> list[ProviderAccount]:
    """Return the state of every provider's credentials without a request to it; `problems` are those of its list."""
    return [
        ProviderAccount(
            name,
            provider.kind,
            provider.auth.login_command,
            problems.get(name, ""),
            any(member.account.read_quotas is not None for member in _members(provider)),
            [_credential(member, now) for member in _members(provider)],
        )
        for name, provider in providers.items()
    ]


def merge_accounts(workers: Sequence[list[ProviderAccount]]) -> list[ProviderAccount]:
    """Return what the first worker reports, with the cooldowns of all, each with its latest end."""
    others: dict[tuple[str, str], list[CredentialState]] = {}
    for account in (account for accounts in workers[1:] for account in accounts):
        for credential in account.credentials:
            others.setdefault((account.provider, credential.label), []).append(credential)
    return [
        replace(
            account,
            credentials=[_merge(own, others.get((account.provider, own.label), [])) for own in account.credentials],
        )
        for account in workers[0]
    ]


def _merge(own: CredentialState, others: list[CredentialState]) -> CredentialState:
    latest: dict[tuple[str, str], CooldownState] = {}
    for cooldown in (cooldown for one in (own, *others) for cooldown in one.cooldowns):
        known = latest.setdefault((cooldown.model, cooldown.reason), cooldown)
        if cooldown.until > known.until:
            latest[cooldown.model, cooldown.reason] = cooldown
    is_available = all(one.is_available for one in (own, *others))
    return replace(own, is_available=is_available, cooldowns=list(latest.values()))


def end_cooldowns(providers: Mapping[str, Provider], name: str) -> int:
    """Let a provider's credentials be used from the next request on; return how many cooldowns that ends."""
    provider = providers.get(name)
    if provider is None:
        raise NotFound(f"There is no provider {name!r}. Configured: {', '.join(providers)}.")
    pools = {id(pool): pool for one in (provider, *provider.members) if (pool := one.account.cooldowns) is not None}
    return sum(pool.end_cooldowns() for pool in pools.values())


async def read_quotas(providers: Mapping[str, Provider]) -> Quotas:
    """Ask every provider that has plans how much of them is used, all at the same time."""
    report = Quotas([], {})

    async def read(name: str, member: Provider) -> None:
        if member.account.read_quotas is None:
            return
        try:
            async with asyncio.timeout(QUOTA_TIMEOUT_S):
                report.quotas.extend(await member.account.read_quotas())
        except RequestError as refused:
            report.problems[name] = refused.failure.message
        except (ConnectionLost, UpstreamTimeout, TimeoutError) as error:
            report.problems[name] = describe_cause(error, f"No response within {QUOTA_TIMEOUT_S:g} s.")

    await asyncio.gather(*(read(name, member) for name, one in providers.items() for member in _members(one)))
    return report


def _members(provider: Provider) -> tuple[Provider, ...]:
    return provider.members or (provider,)


def _credential(member: Provider, now: float) -> CredentialState:
    account = member.account
    label = account.label or "1 of 1"
    cooldowns: list[CooldownState] = []
    if account.cooldowns is not None:
        own = account.cooldowns.members[account.slot].label
        cooldowns = [
            CooldownState(state.free_at, state.reason, state.model)
            for state in account.cooldowns.states(now)
            if state.free_at is not None and state.label == own
        ]
    limits = account.last_limits()
    is_spent = limits is not None and limits.exhausted_until is not None and limits.exhausted_until > now
    is_available = not is_spent and not any(cooldown.model == "" for cooldown in cooldowns)
    return CredentialState(label, is_available, member.auth.expires_at(), cooldowns, limits)


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
    credit_rate: float | None  # by which the plan's credits are multiplied; None: the provider states none
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
                info.credit_rate,
                None if pricing is None else pricing.usd_per_million(provider, info.id, now),
            )
            for provider, catalogue in runtime.catalogues.items()
            for info in catalogue.list_known()
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
