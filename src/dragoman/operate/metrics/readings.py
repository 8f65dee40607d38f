"""Metrics: readings of them, and those of finished requests.

Readings of several workers are merged, and rendered in Prometheus's text format.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from msgspec import Struct

from dragoman.operate.metrics import catalogue as catalogue
from dragoman.operate.metrics.catalogue import CATALOGUE, Aggregation, Family, Type
from dragoman.proxy.outcome import OK, Outcome
from dragoman.translate.hub.loss import LossKind
from dragoman.translate.hub.ports import OPERATION
from dragoman.translate.hub.usage import UsageSource

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

MAX_MODELS = 100  # clients choose the names; models beyond this number are counted as "other"
MAX_NAME = 100
OTHER = "other"
PROVIDER_NAMES = {"gemini": "gcp.gemini"}  # names that OpenTelemetry's conventions spell differently
TOKEN_TYPES = ("input", "output", "cache_read", "cache_write", "reasoning")
LOSS_KINDS = tuple(how.value for how in LossKind)
REPORTED = UsageSource.REPORTED

_Key = tuple[str, str, str, str, str]  # client protocol, upstream protocol, provider, model, outcome


class Reading(Struct, frozen=True, array_like=True):
    """The value of one series at one time; for a histogram, the count of each bucket and then the sum."""

    name: str
    labels: tuple[str, ...]
    values: tuple[float, ...]


def merge_readings(readings: Iterable[Reading]) -> list[Reading]:
    """Return one reading for each series; readings that are not in the catalogue are dropped."""
    merged: dict[tuple[str, tuple[str, ...]], tuple[float, ...]] = {}
    for reading in readings:
        family = CATALOGUE.get(reading.name)
        if family is None or not _has_shape_of(family, reading):
            continue
        series = reading.name, reading.labels
        known = merged.get(series)
        merged[series] = reading.values if known is None else _aggregate(family.aggregation, known, reading.values)
    return [Reading(name, labels, values) for (name, labels), values in merged.items()]


def drop_gauges(readings: Iterable[Reading]) -> list[Reading]:
    """Return the readings that stay true after their process has ended."""
    return [reading for reading in readings if CATALOGUE[reading.name].type is not Type.GAUGE]


def render_text(readings: Iterable[Reading]) -> bytes:
    by_name: dict[str, list[Reading]] = {name: [] for name in CATALOGUE}
    for reading in merge_readings(readings):
        by_name[reading.name].append(reading)
    lines: list[str] = []
    for name, family in CATALOGUE.items():
        lines.append(f"# HELP {name} {family.help}\n# TYPE {name} {family.type.value}\n")
        for reading in sorted(by_name[name], key=lambda reading: reading.labels):
            lines += _render_samples(family, reading)
    return "".join(lines).encode(errors="replace")


def _has_shape_of(family: Family, reading: Reading) -> bool:
    """Whether a reading fits its family: a worker of another version may use the name differently."""
    width = len(family.bounds) + 2 if family.type is Type.HISTOGRAM else 1
    return len(reading.values) == width and len(reading.labels) == len(family.labels)


def _aggregate(how: Aggregation, one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    if how is Aggregation.SUM:
        return tuple(left + right for left, right in zip(one, other, strict=True))
    return max(one, other) if how is Aggregation.MAX else min(one, other)


def _render_samples(family: Family, reading: Reading) -> Iterator[str]:
    labels = ",".join(f'{name}="{_escape(value)}"' for name, value in zip(family.labels, reading.labels, strict=True))
    name, values = family.name, reading.values
    braced = f"{{{labels}}}" if labels else ""
    if family.type is not Type.HISTOGRAM:
        yield f"{name}{braced} {_format_number(values[0])}\n"
        return
    total = 0.0
    comma = "," if labels else ""
    for bound, count in zip((*map(_format_number, family.bounds), "+Inf"), values, strict=False):
        total += count
        yield f'{name}_bucket{{{labels}{comma}le="{bound}"}} {_format_number(total)}\n'
    yield f"{name}_sum{braced} {_format_number(values[-1])}\n{name}_count{braced} {_format_number(total)}\n"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _format_number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)


class Histogram:
    """Counts by bucket, and the sum of all values."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, family: Family) -> None:
        self._bounds = family.bounds
        self.counts = [0] * (len(family.bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def values(self) -> tuple[float, ...]:
        return *self.counts, self.sum


class _Series:
    """All metrics of the requests that share protocols, provider, model and outcome."""

    __slots__ = (
        *("cache_misses", "cache_possible", "duration", "first_token", "input", "losses", "output", "time_per_token"),
        "tokens",
    )

    def __init__(self) -> None:
        self.duration = Histogram(catalogue.REQUEST_DURATION)
        self.first_token = Histogram(catalogue.FIRST_TOKEN)
        self.time_per_token = Histogram(catalogue.TIME_PER_TOKEN)
        self.input = Histogram(catalogue.TOKEN_USAGE)
        self.output = Histogram(catalogue.TOKEN_USAGE)
        self.tokens: dict[str, list[int]] = {}  # by source
        self.losses = [0] * len(LOSS_KINDS)
        self.cache_possible: int | None = None  # tokens; None: of no request known
        self.cache_misses: dict[str, int] = {}  # by cause

    def add(self, outcome: Outcome) -> None:
        seconds, first = outcome.duration_s, outcome.ttft_s
        self.duration.add(seconds)
        usage = outcome.usage
        if usage is not None:
            self.input.add(usage.input)
            self.output.add(usage.output)
            source = "reported" if usage.source is REPORTED else usage.source.value  # reading `value` is slow
            tokens = self.tokens.get(source) or self.tokens.setdefault(source, [0] * len(TOKEN_TYPES))
            tokens[0] += usage.input
            tokens[1] += usage.output
            if usage.cache_read or usage.cache_write or usage.reasoning:
                tokens[2] += usage.cache_read
                tokens[3] += usage.cache_write
                tokens[4] += usage.reasoning
        if outcome.stream and first is not None:
            self.first_token.add(first)
            if usage is not None and usage.output > 1 and outcome.outcome == OK:
                self.time_per_token.add((seconds - first) / (usage.output - 1))
        if outcome.losses:
            for index, count in enumerate(outcome.losses_by_how):
                self.losses[index] += count
        use = outcome.cache_use
        if use.possible_tokens is not None:
            self.cache_possible = (self.cache_possible or 0) + use.possible_tokens
        if use.miss is not None:
            self.cache_misses[use.miss] = self.cache_misses.get(use.miss, 0) + 1


class RequestMetrics:
    """An observer. It looks up one series for each request; sums over several series are computed at a scrape."""

    def __init__(self, operations: Mapping[str, str] = MappingProxyType({})) -> None:
        self._operations = operations  # by the client's protocol; every other one's is "chat"
        self._series: dict[_Key, _Series] = {}
        self._models: set[tuple[str, str]] = set()
        self._retries: dict[tuple[str, str], int] = {}
        self._fallbacks: dict[tuple[str, str], int] = {}
        self._tool_runs: dict[tuple[str, str, str], int] = {}
        self._tool_durations: dict[tuple[str, str], Histogram] = {}

    def observe(self, outcome: Outcome) -> None:
        key = (outcome.client_protocol, outcome.upstream_protocol, outcome.provider, outcome.model, outcome.outcome)
        series = self._series.get(key) if outcome.provider else None
        if series is None:
            series = self._find_series(outcome)
        series.add(outcome)
        if outcome.failed_attempts:
            self._count_failed_attempts(outcome)
        if outcome.tool_runs:
            for run in outcome.tool_runs:
                labels = run.tool, run.backend, run.result
                self._tool_runs[labels] = self._tool_runs.get(labels, 0) + 1
                durations = self._tool_durations.setdefault(labels[:2], Histogram(catalogue.TOOL_DURATION))
                durations.add(run.duration_s)

    def _find_series(self, outcome: Outcome) -> _Series:
        """Return the series of an outcome, a new one if need be, within the bounds on the number of models."""
        provider, model = outcome.provider, outcome.model
        if not provider and outcome.failed_attempts:  # without a reply, the last target is counted
            provider, _, model = outcome.failed_attempts[-1].route.partition("/")
        model = self._bound_model(provider, model)
        key = (outcome.client_protocol, outcome.upstream_protocol, provider, model, outcome.outcome)
        return self._series.setdefault(key, _Series())

    def _bound_model(self, provider: str, model: str) -> str:
        """Return the name under which a model is counted."""
        model = model[:MAX_NAME].encode(errors="replace").decode()
        if (provider, model) in self._models:
            return model
        if len(self._models) >= MAX_MODELS:
            return OTHER
        self._models.add((provider, model))
        return model

    def _count_failed_attempts(self, outcome: Outcome) -> None:
        """Count a retry or a fallback for each failed attempt that another attempt followed."""
        attempts = outcome.failed_attempts
        next_routes = [attempt.route for attempt in attempts[1:]]
        if outcome.provider and outcome.is_answered:
            next_routes.append(outcome.route)
        for attempt, next_route in zip(attempts, next_routes, strict=False):
            counts = self._retries if attempt.route == next_route else self._fallbacks
            labels = attempt.route.partition("/")[0], attempt.why
            counts[labels] = counts.get(labels, 0) + 1

    def readings(self) -> Iterator[Reading]:
        """Yield all readings; several may belong to one series, which `merge_readings` adds up."""
        for key, series in list(self._series.items()):
            yield from _readings_of(key, series, self._operations.get(key[0], OPERATION))
        for family, counts in ((catalogue.RETRIES, self._retries), (catalogue.FALLBACKS, self._fallbacks)):
            for labels, count in list(counts.items()):
                yield Reading(family.name, labels, (count,))
        for run_labels, count in list(self._tool_runs.items()):
            yield Reading(catalogue.TOOL_RUNS.name, run_labels, (count,))
        for tool_labels, durations in list(self._tool_durations.items()):
            yield Reading(catalogue.TOOL_DURATION.name, tool_labels, durations.values)


def _readings_of(key: _Key, series: _Series, operation: str) -> Iterator[Reading]:
    client_protocol, upstream_protocol, provider, model, outcome = key
    protocols = (client_protocol, upstream_protocol, provider)
    labels = (operation, PROVIDER_NAMES.get(provider, provider), model)
    with_error = (*labels, "" if outcome == OK else outcome)
    duration = series.duration.values
    yield Reading(catalogue.REQUESTS.name, (*protocols, outcome), (sum(series.duration.counts),))
    yield Reading(catalogue.REQUEST_DURATION.name, with_error, duration)
    if provider:
        yield Reading(catalogue.OPERATION_DURATION.name, with_error, duration)
    yield from _histogram_readings(catalogue.FIRST_TOKEN, labels, series.first_token)
    yield from _histogram_readings(catalogue.TIME_PER_TOKEN, labels, series.time_per_token)
    yield from _histogram_readings(catalogue.TOKEN_USAGE, (*labels, "input"), series.input)
    yield from _histogram_readings(catalogue.TOKEN_USAGE, (*labels, "output"), series.output)
    for source, tokens in list(series.tokens.items()):
        for kind, count in zip(TOKEN_TYPES, tokens, strict=True):
            yield Reading(catalogue.TOKENS.name, (provider, model, kind, source), (count,))
    if series.cache_possible is not None:
        yield Reading(catalogue.CACHE_POSSIBLE.name, (provider, model), (series.cache_possible,))
    for cause, count in list(series.cache_misses.items()):
        yield Reading(catalogue.CACHE_MISSES.name, (provider, model, cause), (count,))
    for how, count in zip(LOSS_KINDS, series.losses, strict=True):
        if count:
            yield Reading(catalogue.LOSSES.name, (*protocols, how), (count,))


def _histogram_readings(family: Family, labels: tuple[str, ...], histogram: Histogram) -> Iterator[Reading]:
    if any(histogram.counts):
        yield Reading(family.name, labels, histogram.values)
