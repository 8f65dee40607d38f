"""`python -m bench.crash`: kill -9 while background responses and stored streams run; prints what became of them."""

import argparse
import asyncio
import sys
from collections import Counter
from contextlib import ExitStack

from bench.crash.scene import Outcome, Plan, run, sqlite_store
from bench.tools import say

HEAD = (
    "| store | gateways | background | begun at kill | completed | failed | called twice | without end "
    "| streams | stored whole | not stored | problems | seconds |"
)


def format_row(name: str, plan: Plan, outcome: Outcome) -> str:
    background, streams = outcome.statuses, outcome.streams
    figures = (
        *(plan.gateways, background.total(), outcome.began, background["completed"], background["failed"]),
        *(outcome.called_twice, outcome.without_end, streams.total(), _count_stored(streams), streams["not stored"]),
        *(len(outcome.problems), f"{outcome.seconds:.1f}"),
    )
    return f"| {name} | {' | '.join(map(str, figures))} |"


def _count_stored(streams: Counter[str]) -> int:
    return streams.total() - streams["not stored"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.crash", description=__doc__)
    parser.add_argument("--count", type=int, default=50, help="background responses, and as many streams (50)")
    parser.add_argument("--postgres", metavar="URL", help="an empty database, for PostgreSQL too")
    options = parser.parse_args()
    say(HEAD)
    say("|---" * (HEAD.count("|") - 1) + "|")
    has_failed = False
    with ExitStack() as stack:
        plans = [("SQLite", Plan(options.count, stack.enter_context(sqlite_store())))]
        if options.postgres:
            plans += [("PostgreSQL", Plan(options.count, options.postgres, gateways)) for gateways in (1, 2)]
        for name, plan in plans:
            outcome = asyncio.run(run(plan))
            say(format_row(name, plan, outcome))
            for problem in outcome.problems[:20]:
                say(problem)
            has_failed = has_failed or bool(outcome.problems or outcome.called_twice or outcome.without_end)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
