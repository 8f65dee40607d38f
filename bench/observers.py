"""`python -m bench.observers`: print the CPU time that usage rows, metrics and log lines add to a request."""

import argparse
import os
import statistics
import sys

from bench.cases import CASES, Case
from bench.measure import Plan, Trial
from bench.rig import Rig
from bench.tools import get_program, say
from bench.tree import LOAD_CORES

ALONE, LOGGED, OBSERVED = "unobserved", "logged", "dragoman"
NAMES = (ALONE, LOGGED, OBSERVED)
MEASURED = ("chat>chat/whole", "chat>chat/burst", "messages>chat/burst")
MOST = 0.15  # of the CPU time that a request takes without metrics and usage


def main() -> int:
    options = read_options()
    os.sched_setaffinity(0, LOAD_CORES)
    say("µs of CPU per request:      alone   for its log line   for metrics and usage")
    with Rig() as rig:
        for name in NAMES:
            rig.start(name)
        shares = [compare(rig, case, options) for case in CASES if case.name in MEASURED]
    say(f"Metrics and usage may add {MOST:.0%}.")
    return int(max(shares) > MOST)


def compare(rig: Rig, case: Case, options: argparse.Namespace) -> float:
    """The share that metrics and usage add. Gateways take turns, and each is compared with what ran next to it."""
    plan = Plan(NAMES, ((case, options.connections),), options.rounds, options.seconds, bool(get_program("wrk")))
    costs: dict[str, list[float]] = {name: [] for name in NAMES}
    for turn in range(options.rounds):
        for name in NAMES if turn % 2 else reversed(NAMES):
            trial = Trial(rig, plan, rig.running[name], case, options.connections)
            costs[name].append(trial.calm_reading().cpu_us)
    alone, logged = (statistics.median(costs[name]) for name in (ALONE, LOGGED))
    for_line, for_rest = (
        _median_difference(costs[LOGGED], costs[ALONE]),
        _median_difference(costs[OBSERVED], costs[LOGGED]),
    )
    share = for_rest / logged
    say(f"{case.title:24} {alone:8.1f}   {for_line:+8.1f} ({for_line / alone:+.1%})   {for_rest:+8.1f} ({share:+.1%})")
    return share


def _median_difference(costs: list[float], without: list[float]) -> float:
    return statistics.median(cost - bare for cost, bare in zip(costs, without, strict=True))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.observers", description=__doc__)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15, choices=range(1, 61), metavar="1..60")
    parser.add_argument("--seconds", type=int, default=1, choices=range(1, 61), metavar="1..60")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
