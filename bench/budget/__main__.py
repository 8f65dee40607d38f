"""`python -m bench.budget`: 50 agents on one budget, on each store; prints by how much it was overspent."""

import argparse
import asyncio
import sys
from collections.abc import Iterator

from bench.budget.scene import ALLOWED, KINDS, Row, Setting, measure
from bench.tools import say

HEAD = "| store | gateways | workers | protocol | budget | runs | requests | mean | largest | used | seconds |"


def format_row(setting: Setting, row: Row) -> str:
    mean = sum(row.overshoots) / len(row.overshoots)
    budget = f"${setting.dollars:g}{' strict' if setting.is_strict else ''}"
    figures = (
        *(setting.store, setting.gateways, setting.workers, setting.protocol, budget, setting.runs, row.requests),
        *(f"{mean:.2f}", f"{max(row.overshoots):.2f}", f"{row.used:.0%}", f"{row.seconds:.0f}"),
    )
    return f"| {' | '.join(map(str, figures))} |"


def list_settings(postgres: str, runs: int) -> Iterator[Setting]:
    stores = [("SQLite", "sqlite:///{directory}/store.db", 1, 4)]
    if postgres:
        stores.append(("PostgreSQL", postgres, 2, 1))
    for name, url, gateways, workers in stores:
        for protocol in KINDS:
            yield Setting(name, url, gateways, workers, protocol, 10, runs)
        yield Setting(name, url, gateways, workers, "messages", 10, min(runs, 5), is_strict=True)
        yield Setting(name, url, gateways, workers, "messages", 500, min(runs, 3))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.budget", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="runs on $10 (20); on $500 at most 3")
    parser.add_argument("--postgres", metavar="URL", default="", help="with {run} in the name of the database")
    options = parser.parse_args()
    say(HEAD)
    say("|---" * (HEAD.count("|") - 1) + "|")
    has_failed = False
    for setting in list_settings(options.postgres, options.runs):
        row = asyncio.run(measure(setting))
        say(format_row(setting, row))
        allowed = 0.0 if setting.is_strict else ALLOWED[setting.protocol]
        has_failed |= max(row.overshoots) > allowed or (not setting.is_strict and row.used < 1.0)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
