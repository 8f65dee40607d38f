"""Compare dragoman of another commit with that of the present tree, both measured in the same run."""

import math
from collections.abc import Iterator
from statistics import median

from msgspec import Struct

from bench.cases import CASES, CROWD_CASES, STORED_CASES, UPSTREAMS, Case
from bench.gateways import BESIDE, PAIRED, dragoman_of
from bench.results import NONE, Results, format_number
from bench.rig import NotStarted, Rig
from bench.tools import say

NAMES = (BESIDE, "dragoman")
IN_TURNS = (BESIDE, PAIRED)
MOST_CPU = 1.05  # times that of the other commit
MOST_ELSE = 1.0


def add_commit(rig: Rig, commit: str) -> tuple[str, ...]:
    """Let the rig start dragoman of a commit, and return the upstreams whose provider section that commit accepts."""
    upstreams = tuple(protocol for protocol in UPSTREAMS if _accepts(rig, commit, protocol))
    rig.gateways[BESIDE] = dragoman_of(commit, upstreams)
    return upstreams


def _accepts(rig: Rig, commit: str, protocol: str) -> bool:
    try:
        rig.try_start(dragoman_of(commit, (protocol,)))
    except NotStarted as problem:
        say(f"{commit} does not start with a provider of {protocol}: {problem}")
        return False
    return True


class Comparison(Struct, frozen=True):
    """A figure of both trees. Less is better; a ratio above 1 means that the present tree needs more."""

    before: float
    now: float
    pairs: list[float]  # the ratio of each two readings that were taken one after the other
    most: float

    @property
    def ratio(self) -> float:
        return median(self.pairs) if self.pairs else self.now / self.before

    @property
    def interval(self) -> tuple[float, float]:
        """Where the ratio lies with a probability of 95 %, or the lowest and the highest of a few pairs."""
        ordered, count = sorted(self.pairs) or [self.ratio], len(self.pairs)
        outside = max(0, int(count / 2 - 0.98 * math.sqrt(count)) - 1)
        return ordered[outside], ordered[-1 - outside]

    @property
    def verdict(self) -> str:
        if self.ratio <= self.most:
            return ""
        return "WORSE" if self.interval[0] > self.most else "perhaps worse"

    def format(self, digits: int | None = None) -> list[str]:
        figures = (self.before, self.now)
        shown = [format_number(figure) if digits is None else f"{figure:.{digits}f}" for figure in figures]
        scatter = "–".join(f"{end:.2f}" for end in self.interval) if self.pairs else NONE
        return [*shown, f"{self.ratio:.3f}", scatter, self.verdict]


def compare_cpu(results: Results) -> Iterator[tuple[Case, int, Comparison]]:
    """Compare µs of CPU per request, for each case and number of connections that both were measured with."""
    for case in (*CASES, *STORED_CASES, *CROWD_CASES):
        for connections in results.connections:
            before, now = (results.find_cell(name, case.name, connections) for name in IN_TURNS)
            if before.cpu_us and now.cpu_us:
                pairs = list(zip(before.readings, now.readings, strict=False))
                calm = [(old, new) for old, new in pairs if old.calm and new.calm]
                ratios = [new.cpu_us / old.cpu_us for old, new in calm or pairs if old.cpu_us]
                yield case, connections, Comparison(before.cpu_us, now.cpu_us, ratios, MOST_CPU)


def compare_footprint(results: Results) -> Iterator[tuple[str, Comparison]]:
    """Compare start and memory, where both have been started."""
    before, now = (results.starts.get(name, []) for name in NAMES)
    if before and now:
        yield "cold start, s", _compare([one.seconds for one in before], [one.seconds for one in now])
        yield "cold start, s of CPU", _compare([one.cpu_s for one in before], [one.cpu_s for one in now])
        yield "memory when idle, MB", _compare([one.idle_mb for one in before], [one.idle_mb for one in now])
    if all(name in results.memory for name in NAMES):
        old, new = (results.memory[name] for name in NAMES)
        title = f"memory after {new.many:,} requests, MB"
        yield title, Comparison(old.after_many, new.after_many, [], MOST_ELSE)
        if not list_left_out(results):  # else the present tree has served more
            yield "memory after all cases, MB", Comparison(old.at_end, new.at_end, [], MOST_ELSE)


def _compare(before: list[float], now: list[float]) -> Comparison:
    ratios = [new / old for old, new in zip(before, now, strict=False) if old]
    return Comparison(median(before), median(now), ratios, MOST_ELSE)


def cpu_table(results: Results) -> list[list[str]]:
    rows = [["case", "connections", *_columns(results, " µs"), "over +5 %"]]
    rows += [[case.title, str(number), *found.format()] for case, number, found in compare_cpu(results)]
    return rows


def footprint_table(results: Results) -> list[list[str]]:
    return [
        ["", *_columns(results), "higher"],
        *([title, *found.format(2)] for title, found in compare_footprint(results)),
    ]


def _columns(results: Results, unit: str = "") -> list[str]:
    return [f"{results.machine.beside}{unit}", f"here{unit}", "ratio", "95 % interval"]


def list_left_out(results: Results) -> list[str]:
    """Return the cases of the present tree that the other commit does not serve."""
    return [
        case.title
        for case in (*CASES, *STORED_CASES, *CROWD_CASES)
        if any(results.find_cell(NAMES[1], case.name, number).readings for number in results.connections)
        and not any(results.find_cell(BESIDE, case.name, number).readings for number in results.connections)
    ]
