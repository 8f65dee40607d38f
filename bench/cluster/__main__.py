"""`python -m bench.cluster`: 3 replicas with 50 agents each, with Valkey and without; prints how exact their limits are
and what faults do to them. `make cluster` runs it; it needs `tests` in PYTHONPATH.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from bench.budget.scene import ALLOWED, Setting, measure
from bench.cluster.balancer import start_balancer
from bench.cluster.costs import measure_cost
from bench.cluster.credential import EXPIRIES, PROCESSES, renew_on_two_machines
from bench.cluster.faults import FAULTS, Fault, Finding, run_fault
from bench.cluster.limits import Taken, measure_rate, measure_slots
from bench.cluster.network import enter_own_network
from bench.cluster.restart import Restarted, restart_all
from bench.cluster.scene import Plan, find_faketime, run_cluster
from bench.cluster.waits import ALLOWED_MS, measure_waits
from bench.tools import has_program, say
from postgres import Postgres
from valkey_server import ValkeyServer

PARTS = ("limits", "costs", "waits", "credential", "faults", "restart")
REPLICAS, AGENTS, COST_AGENTS = 3, 50, 8
RATE, SLOTS, SECONDS = 60, 20, 10.0
WITH = {True: "PostgreSQL and Valkey", False: "PostgreSQL alone"}
LIMITS = "| limits | with | runs | requests | allowed | taken | exact |"
HEAD = (
    "| fault | with | requests | refused elsewhere | streams harmed elsewhere | leases held | /ready says "
    "| recovered after | rows missing | spent - rows | leases left | |"
)
COSTS = (
    "| limits with | requests | gateway, µs CPU | PostgreSQL | Valkey | p50, ms | p99 | p50 added | p99 added "
    "| connections to PostgreSQL |"
)
WAITS = "| hangs | requests | usual, ms | longest, ms | allowed | longest once the breaker is open | |"
CREDENTIAL = "| store:NAME | expiries | |"
RESTART = "| restart | with | requests | failed | rows missing | leases left | seconds | |"


class Report:
    """Prints tables row by row, and knows whether anything was wrong."""

    def __init__(self) -> None:
        self.problems = 0
        self._began = time.monotonic()

    def begin(self, head: str) -> None:
        say(f"\n{head}\n{'|---' * (head.count('|') - 1)}|")

    def add(self, *cells: object, problem: str = "") -> None:
        self.problems += bool(problem)
        say(f"| {' | '.join(map(str, cells))} |")

    def note(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:4.0f} s] {text}", file=sys.stderr, flush=True)


def measure_limits(report: Report, has_valkey: bool, runs: int) -> None:
    """Print by how much budgets are overspent, and whether rates and slots are exact."""
    with ExitStack() as stack:
        postgres = Postgres()
        stack.callback(postgres.remove)
        valkey = ValkeyServer() if has_valkey else None
        if valkey is not None:
            stack.callback(valkey.remove)
        shared = f'shared = "{valkey.url}"\n' if valkey else ""

        def make_setting(protocol: str) -> Setting:
            crowd = "requests_per_min = 1000000\nconcurrent = 100000\n"
            return Setting(
                store="PostgreSQL",
                url=postgres.database(),
                gateways=REPLICAS,
                workers=1,
                protocol=protocol,
                dollars=10,
                runs=runs,
                agents=REPLICAS * AGENTS,
                shared=shared,
                limits=crowd,
            )

        for protocol in ("messages", "chat"):
            report.note(f"{runs} budgets of $10 on {protocol}, {WITH[has_valkey]}")
            row = asyncio.run(measure(make_setting(protocol)))
            largest, allowed = max(row.overshoots), ALLOWED[protocol]
            problem = "" if largest <= allowed and row.used >= 1 else "no"
            taken = f"{row.used:.0%} and {largest:.2f} of the dearest request"
            budget = f"$10 on {protocol}, and {allowed:g} of the dearest request"
            report.add("budget", WITH[has_valkey], runs, row.requests, budget, taken, problem or "yes", problem=problem)
        for name, measuring, limit in (("requests_per_min", measure_rate, RATE), ("concurrent", measure_slots, SLOTS)):
            report.note(f"{name} = {limit}, {WITH[has_valkey]}")
            found = asyncio.run(measuring(make_setting("messages"), limit, SECONDS))
            add_taken(report, f"{name} = {limit}", has_valkey, found)


def add_taken(report: Report, name: str, has_valkey: bool, found: Taken) -> None:
    allowed = str(found.most) if found.least == found.most else f"{found.least} to {found.most}"
    problem = "" if found.is_exact else "no"
    report.add(name, WITH[has_valkey], 1, found.requests, allowed, found.taken, problem or "yes", problem=problem)


def list_faults(report: Report, has_valkey: bool, has_links: bool) -> Iterator[Fault]:
    """Return the faults that can happen here; what cannot is said."""
    there = {"": True, "valkey": has_valkey, "links": has_links, "faketime": bool(find_faketime())}
    for fault in FAULTS:
        if there[fault.needs]:
            yield fault
        elif fault.needs != "valkey":
            report.add(fault.name, WITH[has_valkey], *[""] * 9, "NOT RUN", problem=f"{fault.needs} is not there")


def add_finding(report: Report, has_valkey: bool, finding: Finding) -> None:
    problems, left = "; ".join(finding.list_problems()), finding.left
    assert left is not None
    report.add(
        *(finding.fault.name, WITH[has_valkey], finding.requests, finding.refused, finding.broken),
        *(f"{finding.held_s:.1f} s", ", ".join(sorted(finding.says)), f"{finding.recovered_s:.1f} s"),
        *(finding.lost_rows, left.spent - left.of_rows, left.leases, problems or "ok"),
        problem=problems,
    )


async def cause_all_faults(report: Report, plan: Plan, only: Sequence[str]) -> None:
    """Let everything happen to two clusters side by side: most of the time is that of waiting."""
    plans = [replace(plan, has_valkey=has, first_site=site) for has, site in ((True, 1), (False, 1 + REPLICAS))]
    await asyncio.gather(*(cause_faults(report, plan, only) for plan in plans))


async def cause_faults(report: Report, plan: Plan, only: Sequence[str]) -> None:
    async with run_cluster(plan) as cluster:
        for fault in list_faults(report, plan.has_valkey, plan.has_links):
            if not any(text in fault.name for text in only):
                continue
            report.note(f"{fault.name}, {WITH[plan.has_valkey]}")
            add_finding(report, plan.has_valkey, await run_fault(cluster, fault, plan.agents))


async def restart(report: Report, plan: Plan) -> None:
    async with run_cluster(plan) as cluster:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            port = stack.enter_context(start_balancer("haproxy", directory / "haproxy", cluster.addresses))
            report.note(f"rolling restart, {WITH[plan.has_valkey]}")
            add_restarted(report, plan, await restart_all(cluster, port, plan.agents))


def add_restarted(report: Report, plan: Plan, found: Restarted) -> None:
    problems = "; ".join(found.list_problems())
    report.add(
        *(f"all {plan.replicas} in turn, HAProxy", WITH[plan.has_valkey], found.requests, found.failed),
        *(found.lost_rows, found.left.leases, f"{found.seconds:.0f}", problems or "ok"),
        problem=problems,
    )


def measure_costs(report: Report) -> None:
    """Print what limits add to what a request costs."""
    without = None
    for name, plan in (
        ("no limits", Plan(1, COST_AGENTS, has_limits=False)),
        *((WITH[has_valkey], Plan(1, COST_AGENTS, has_valkey)) for has_valkey in (False, True)),
    ):
        report.note(f"costs, {name}")
        cost = asyncio.run(measure_cost(plan, SECONDS))
        without = without or cost
        report.add(
            *(name, cost.requests, f"{cost.gateway_us:.0f}", f"{cost.postgres_us:.0f}", f"{cost.valkey_us:.0f}"),
            *(f"{cost.p50_ms:.1f}", f"{cost.p99_ms:.1f}", f"{cost.p50_ms - without.p50_ms:.1f}"),
            *(f"{cost.p99_ms - without.p99_ms:.1f}", cost.connections),
        )


def measure_dead_servers(report: Report) -> None:
    """Print how long requests wait for a server that hangs."""
    for is_valkey, name in ((True, "Valkey"), (False, "PostgreSQL")):
        report.note(f"{name} hangs, waits of requests")
        waits = asyncio.run(measure_waits(is_valkey=is_valkey))
        problem = "" if waits.is_allowed else "no"
        report.add(
            *(name, waits.requests, f"{waits.usual_ms:.0f}", f"{waits.longest_ms:.0f}", f"{ALLOWED_MS[is_valkey]:.0f}"),
            *(f"{waits.longest_open_ms:.0f}", problem or "ok"),
            problem=problem,
        )


def renew_credential(report: Report, no_links: str) -> None:
    report.note("a credential that expires")
    problem = f"NOT RUN: {no_links}" if no_links else renew_on_two_machines()
    report.add(f"{PROCESSES} processes in 2 namespaces", EXPIRIES, problem or "1 renewal each", problem=problem)


def restart_replicas(report: Report, agents: int) -> None:
    for has_valkey in (True, False):
        plan = Plan(REPLICAS, agents, has_valkey)
        if has_program("haproxy"):
            asyncio.run(restart(report, plan))
        else:
            report.add("NOT RUN: haproxy is not installed", *[""] * 7, problem="haproxy is not there")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="budgets of each protocol (5)")
    parser.add_argument("--agents", type=int, default=AGENTS, help=f"of each replica, under faults ({AGENTS})")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this; repeatable")
    parser.add_argument("--fault", action="append", metavar="TEXT", help="only faults with this in their names")
    options = parser.parse_args()
    parts = options.part or PARTS
    report = Report()
    problem = enter_own_network()
    if problem:
        report.note(f"no links are cut: {problem}")
    if "limits" in parts:
        report.begin(LIMITS)
        for has_valkey in (True, False):
            measure_limits(report, has_valkey, options.runs)
    if "costs" in parts:
        report.begin(COSTS)
        measure_costs(report)
    if "waits" in parts:
        report.begin(WAITS)
        measure_dead_servers(report)
    if "credential" in parts:
        report.begin(CREDENTIAL)
        renew_credential(report, problem)
    if "faults" in parts:
        report.begin(HEAD)
        plan = Plan(REPLICAS, options.agents, has_links=not problem)
        asyncio.run(cause_all_faults(report, plan, options.fault or [""]))
    if "restart" in parts:
        report.begin(RESTART)
        restart_replicas(report, options.agents)
    report.note("done")
    return int(report.problems > 0)


if __name__ == "__main__":
    sys.exit(main())
