"""Metrics that are read from the running gateway when they are scraped."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from dragoman.net.server import Server
from dragoman.operate.metrics import catalogue as catalogue
from dragoman.operate.metrics.readings import Reading
from dragoman.operate.usage.usage_writer import UsageWriter
from dragoman.proxy.gateway import Gateway
from dragoman.server.handler import RequestHandler
from dragoman.server.responses import ResponsesApi
from dragoman.state.background import STATUSES
from dragoman.tenancy.limit_watch import LimitWatch
from dragoman.tenancy.limiter import Limiter
from dragoman.tenancy.opened_meter import RunningMeter
from dragoman.upstreams.provider import Provider
from dragoman.upstreams.rejections.rules import BY_ID

AVAILABLE = "available"


def make_metrics_reader(
    gateway: Gateway, site: RequestHandler, server: Server, usage: UsageWriter | None
) -> Callable[[], Iterable[Reading]]:
    """Return a function that reads the metrics of requests, connections and providers."""

    def readings() -> Iterator[Reading]:
        captures = gateway.captures.counts
        values = (
            (catalogue.ANSWERED, gateway.answered),
            (catalogue.REFUSED, gateway.refused),
            (catalogue.GUARD_TRIPS, gateway.guard_trips),
            (catalogue.OBSERVER_FAILURES, gateway.observers.failures),
            (catalogue.STREAMS, gateway.streams),
            (catalogue.IN_PROGRESS, site.under_way),
            (catalogue.CONNECTIONS, server.connections),
            (catalogue.USAGE_WAITING, 0 if usage is None else usage.pending),
            (catalogue.USAGE_WRITTEN, 0 if usage is None else usage.written),
            (catalogue.USAGE_DROPPED, 0 if usage is None else usage.dropped),
            (catalogue.RUNS_PARKED, len(site.parked_runs.index)),
            (catalogue.RUNS_BYTES, site.parked_runs.index.size),
            (catalogue.CAPTURES_WRITTEN, captures.written),
            (catalogue.CAPTURES_DROPPED, captures.dropped),
        )
        for family, value in values:
            yield Reading(family.name, (), (value,))
        yield from response_samples(site.responses if isinstance(site.responses, ResponsesApi) else None)
        for how, count in site.parked_runs.joined.items():
            yield Reading(catalogue.RUNS_JOINED.name, (how,), (count,))
        for rule in BY_ID:
            yield Reading(catalogue.LEARNED.name, (rule,), (gateway.runtime.learned_quirks.counts.get(rule, 0),))
        now = time.time()
        for name, provider in gateway.runtime.providers.items():
            yield from provider_samples(name, provider, now)

    return readings


def read_reloads(reloads: Mapping[str, int]) -> list[Reading]:
    """Return how many edited configurations were read, by result."""
    return [Reading(catalogue.RELOADS.name, (result,), (count,)) for result, count in reloads.items()]


def read_limits(limiter: Limiter, watch: LimitWatch, meter: RunningMeter) -> Iterator[Reading]:
    """Return how many requests wait in line, how often most of a limit was spent, and how far counters differ."""
    yield Reading(catalogue.LIMITS_WAITING.name, (), (limiter.waiting,))
    for percent, count in watch.counts.items():
        yield Reading(catalogue.LIMIT_WARNINGS.name, (str(percent),), (count,))
    yield Reading(catalogue.BUDGET_DRIFT.name, (), (meter.drift or 0.0,))


def read_shared_state(find: Callable[[], Mapping[str, bool]]) -> list[Reading]:
    """Return which parts of what gateways share answer."""
    return [Reading(catalogue.SHARED_STATE.name, (part,), (int(answers),)) for part, answers in find().items()]


def response_samples(responses: ResponsesApi | None) -> Iterator[Reading]:
    """Return how many responses were stored, and how many background responses have come to each status."""
    stored = {"kept": 0, "not_kept": 0} if responses is None else responses.service.counts
    for result, count in stored.items():
        yield Reading(catalogue.RESPONSES_STORED.name, (result,), (count,))
    runs = None if responses is None else responses.background.runs
    yield Reading(catalogue.BACKGROUND_RUNNING.name, (), (0 if runs is None else runs.running,))
    for status in STATUSES:
        yield Reading(catalogue.BACKGROUND.name, (status,), (0 if runs is None else runs.counts[status],))


def provider_samples(name: str, provider: Provider, now: float) -> Iterator[Reading]:
    """Return how many credentials of a provider are available, and which share of its allowances is used."""
    if provider.account.pool is not None:
        cools_down = [state.free_at is not None for state in provider.account.pool.states(now) if not state.model]
    else:
        limits = provider.account.last_limits()
        parked = None if limits is None else limits.exhausted_until
        cooldowns = () if provider.account.cooldowns is None else provider.account.cooldowns.states(now)
        is_cooling_down = any(state.free_at is not None for state in cooldowns if not state.model)
        cools_down = [is_cooling_down or (parked is not None and parked > now)]
    yield Reading(catalogue.POOL_CREDENTIALS.name, (name, AVAILABLE), (cools_down.count(False),))
    yield Reading(catalogue.POOL_CREDENTIALS.name, (name, catalogue.COOLING_DOWN), (cools_down.count(True),))
    for member in provider.members or (provider,):
        limits = member.account.last_limits()
        for window, used in () if limits is None else limits.windows.items():
            if not used.unlimited:
                yield Reading(catalogue.LIMIT_USED.name, (name, window), (used.used_percent / 100,))


def provider_address(gateway: Gateway, name: str) -> tuple[str, int] | None:
    """Return host and port of a provider; None if it needs no network."""
    provider = gateway.runtime.providers.get(name)
    parts = urlsplit("" if provider is None else provider.endpoint.url)
    if not parts.hostname:
        return None
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
