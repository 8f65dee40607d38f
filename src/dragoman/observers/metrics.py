"""Outcomes of requests are shown to it; readings of the metrics that they make come out."""

from bisect import bisect_left
from collections.abc import Iterator

from dragoman.hub.loss import LossKind
from dragoman.hub.outcome import OK, Outcome
from dragoman.hub.usage import Usage
from dragoman.observers import metrics_catalogue as catalogue
from dragoman.observers.metrics_catalogue import Family
from dragoman.observers.metrics_text import Reading

MAX_MODELS = 100  # names come from clients; beyond this many, a model is "other"
MAX_NAME = 100
OTHER = "other"
OPERATIONS = {"gemini": "generate_content"}  # by the client's protocol; every other one chats
PROVIDER_NAMES = {"gemini": "gcp.gemini"}  # where the convention has another word than we
TOKEN_TYPES = ("input", "output", "cache_read", "cache_write", "reasoning")
HOWS = tuple(how.value for how in LossKind)

_Key = tuple[str, str, str, str, str]  # asked, spoken, provider, model, result


class Histogram:
    """Counts by bucket, and the sum of all that was put in."""

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
    """All that is counted for one way through the gateway that ended in one manner."""

    __slots__ = ("first_token", "input", "lost", "output", "pace", "seconds", "tokens")

    def __init__(self) -> None:
        self.seconds = Histogram(catalogue.REQUEST_DURATION)
        self.first_token = Histogram(catalogue.FIRST_TOKEN)
        self.pace = Histogram(catalogue.TOKEN_PACE)
        self.input = Histogram(catalogue.TOKEN_USAGE)
        self.output = Histogram(catalogue.TOKEN_USAGE)
        self.tokens: dict[str, list[int]] = {}  # by whose word they are
        self.lost = [0] * len(HOWS)

    def see(self, outcome: Outcome) -> None:
        seconds, first = outcome.duration_s, outcome.ttft_s
        self.seconds.add(seconds)
        usage = outcome.usage
        if usage is not None:
            self._see_tokens(usage)
        if outcome.stream and first is not None:
            self.first_token.add(first)
            if usage is not None and usage.output > 1 and outcome.outcome == OK:
                self.pace.add((seconds - first) / (usage.output - 1))
        if outcome.losses:
            for at, count in enumerate(outcome.losses_by_how):
                self.lost[at] += count

    def _see_tokens(self, usage: Usage) -> None:
        self.input.add(usage.input)
        self.output.add(usage.output)
        source = usage.source.value
        tokens = self.tokens.get(source)
        if tokens is None:
            tokens = self.tokens[source] = [0] * len(TOKEN_TYPES)
        tokens[0] += usage.input
        tokens[1] += usage.output
        if usage.cache_read or usage.cache_write or usage.reasoning:
            tokens[2] += usage.cache_read
            tokens[3] += usage.cache_write
            tokens[4] += usage.reasoning


class Tally:
    """An observer. One look-up for each request; what a metric sums over is summed when somebody asks."""

    def __init__(self) -> None:
        self._series: dict[_Key, _Series] = {}
        self._models: set[tuple[str, str]] = set()
        self._retries: dict[tuple[str, str], int] = {}
        self._fallbacks: dict[tuple[str, str], int] = {}

    def observe(self, outcome: Outcome) -> None:
        key = (outcome.client_protocol, outcome.upstream_protocol, outcome.provider, outcome.model, outcome.outcome)
        series = self._series.get(key) if outcome.provider else None
        if series is None:
            series = self._admitted(outcome)
        series.see(outcome)
        if outcome.failed_attempts:
            self._see_steps(outcome)

    def _admitted(self, outcome: Outcome) -> _Series:
        """The series of an outcome that is not known under its own name: a new one, or one that others share."""
        provider, model = outcome.provider, outcome.model
        if not provider and outcome.failed_attempts:  # nobody answered: the last one asked stands for it
            provider, _, model = outcome.failed_attempts[-1].route.partition("/")
        model = model[:MAX_NAME].encode(errors="replace").decode()
        if (provider, model) not in self._models:
            if len(self._models) < MAX_MODELS:
                self._models.add((provider, model))
            else:
                model = OTHER
        key = (outcome.client_protocol, outcome.upstream_protocol, provider, model, outcome.outcome)
        return self._series.setdefault(key, _Series())

    def _see_steps(self, outcome: Outcome) -> None:
        """A failed attempt was followed by the same target, by another one, or by nothing more."""
        steps = outcome.failed_attempts
        followed = [step.route for step in steps[1:]]
        if outcome.provider:
            followed.append(outcome.route)
        for step, then in zip(steps, followed, strict=False):
            counts = self._retries if step.route == then else self._fallbacks
            what = step.route.partition("/")[0], step.why
            counts[what] = counts.get(what, 0) + 1

    def readings(self) -> Iterator[Reading]:
        """One series may be told in several parts; whoever joins readings adds them up."""
        for key, series in list(self._series.items()):
            yield from _told(key, series)
        for family, counts in ((catalogue.RETRIES, self._retries), (catalogue.FALLBACKS, self._fallbacks)):
            for what, count in list(counts.items()):
                yield Reading(family.name, what, (count,))


def _told(key: _Key, series: _Series) -> Iterator[Reading]:
    asked, spoken, provider, model, result = key
    way = (asked, spoken, provider)
    labels = (OPERATIONS.get(asked, "chat"), PROVIDER_NAMES.get(provider, provider), model)
    ended = (*labels, "" if result == OK else result)
    seconds = series.seconds.values
    yield Reading(catalogue.REQUESTS.name, (*way, result), (sum(series.seconds.counts),))
    yield Reading(catalogue.REQUEST_DURATION.name, ended, seconds)
    if provider:
        yield Reading(catalogue.OPERATION_DURATION.name, ended, seconds)
    yield from _some(catalogue.FIRST_TOKEN, labels, series.first_token)
    yield from _some(catalogue.TOKEN_PACE, labels, series.pace)
    yield from _some(catalogue.TOKEN_USAGE, (*labels, "input"), series.input)
    yield from _some(catalogue.TOKEN_USAGE, (*labels, "output"), series.output)
    for source, tokens in list(series.tokens.items()):
        for kind, count in zip(TOKEN_TYPES, tokens, strict=True):
            yield Reading(catalogue.TOKENS.name, (provider, model, kind, source), (count,))
    for how, count in zip(HOWS, series.lost, strict=True):
        if count:
            yield Reading(catalogue.LOSSES.name, (*way, how), (count,))


def _some(family: Family, labels: tuple[str, ...], histogram: Histogram) -> Iterator[Reading]:
    if any(histogram.counts):
        yield Reading(family.name, labels, histogram.values)
