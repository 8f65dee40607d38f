"""A rig and a plan come in; every gateway is checked, loaded and read in turn, and the results go out."""

import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.cases import Case
from bench.gateways import GATEWAYS
from bench.load import Outcome, run_counted, run_wrk
from bench.results import Cell, Memory, Reading, Results
from bench.rig import DIRECT, Rig, Running, ask_once
from bench.tools import say
from bench.tree import GATEWAY_CORES, LOAD_CORES, busy_s

PROBES = 3
HEAVY_BUDGET_S = 8.0  # of CPU for one reading of a heavy gateway
LIMIT_S = 60.0  # for one reading
PATIENCE = 3  # readings, until one is calm
MANY = 10_000
PACED_STREAMS = {1: 8}  # for other numbers of connections, this many waves:
PACED_WAVES = 4
CROWD_WAVES = 2


@dataclass(frozen=True)
class Plan:
    """What is measured, how often and how long."""

    gateways: tuple[str, ...]
    loads: tuple[tuple[Case, int], ...]  # a case and a number of connections
    rounds: int
    seconds: int
    with_wrk: bool


def measure(rig: Rig, plan: Plan, results: Results) -> None:
    for name in plan.gateways:
        if name != DIRECT:
            results.memory[name] = _serve_many(rig.running[name])
    for turn in range(plan.rounds):
        for case, connections in plan.loads:
            for name in (DIRECT, *plan.gateways):
                _visit(rig, plan, results, Visit(turn, name, case, connections))
    for name, memory in results.memory.items():
        end = rig.running[name].child.rss_mb()
        results.memory[name] = Memory(memory.started, memory.after_many, memory.many, end)


@dataclass(frozen=True)
class Visit:
    """One gateway's turn in one round."""

    turn: int
    gateway: str
    case: Case
    connections: int


def _visit(rig: Rig, plan: Plan, results: Results, visit: Visit) -> None:
    case, connections = visit.case, visit.connections
    copies = visit.gateway in (DIRECT, "nginx")
    if copies:
        case = case.baseline  # the same upstream bytes
    elif not GATEWAYS[visit.gateway].takes(case):
        return
    cell = results.cell(visit.gateway, case.name, connections)
    if cell.problem or len(cell.readings) > visit.turn:
        return
    running = rig.running[visit.gateway]
    try:
        reading = _calm_reading(running, case, connections, plan, rig.directory, visit.turn)
    except Exception as problem:
        cell.problem = str(problem)[:300]
        say(f"  {visit.gateway:9} {case.name:24} c={connections:<4} FAILS: {cell.problem}")
        return
    if reading is not None:
        cell.readings.append(reading)
        _tell(cell, reading, visit.turn, plan.rounds)


def _tell(cell: Cell, reading: Reading, turn: int, rounds: int) -> None:
    outcome = reading.outcome
    cost = f"{reading.cpu_us:>10,.1f} µs/request" if cell.gateway != DIRECT else " " * 21
    wrong = f"  {outcome.errors} ERRORS" if outcome.errors else ""
    if not reading.calm and cell.gateway != DIRECT:
        wrong += f"  disturbed: others took {reading.others:.0%} of its core"
    say(
        f"  [{turn + 1}/{rounds}] {cell.case:24} c={cell.connections:<4} {cell.gateway:9}{cost}"
        f"{outcome.requests:>9,} requests {outcome.rate:>9,.0f}/s{wrong}"
    )


class WrongAnswer(Exception):
    """A gateway does not do what is to be measured."""


def _calm_reading(running: Running, case: Case, connections: int, plan: Plan, files: Path, turn: int) -> Reading | None:
    """Reads again, a few times at most, where other processes took much of the gateway's core; the calmest counts."""
    found: list[Reading] = []
    for _ in range(PATIENCE):
        reading = _read(running, case, connections, plan, files, turn)
        if reading is None:
            return None
        found.append(reading)
        if running.name == DIRECT or reading.calm:
            break
    return min(found, key=lambda reading: reading.others)


def _read(running: Running, case: Case, connections: int, plan: Plan, files: Path, turn: int) -> Reading | None:
    """Probes first, for rightness, warmth and a guess at the cost; a heavy gateway is read in the first round only."""
    heavy = running.name != DIRECT and GATEWAYS[running.name].heavy
    if heavy and turn > 0:
        return None
    shot = running.shot(case)
    before = running.child.cpu_s()
    for _ in range(PROBES):
        status, body = ask_once(shot)
        if status != 200 or case.proof not in body:
            raise WrongAnswer(f"status {status}: {body[-200:].decode(errors='replace')}")
    guess = (running.child.cpu_s() - before) / PROBES
    before, busy, began = running.child.cpu_s(), busy_s(GATEWAY_CORES), time.perf_counter()
    if plan.with_wrk and not case.paced and not heavy:
        generator = "wrk"
        outcome = run_wrk(shot, connections, plan.seconds, LOAD_CORES, files)
    else:
        generator = "counted"
        count = _count(case, connections, plan, guess if heavy else 0.0)
        outcome = uvloop.run(run_counted(shot, connections, count, LIMIT_S))
    spent = running.child.cpu_s() - before
    if not outcome.requests:
        raise WrongAnswer(f"no answer in {outcome.seconds:.0f} s")
    others = (busy_s(GATEWAY_CORES) - busy - spent) / (time.perf_counter() - began)
    return Reading(outcome, spent / outcome.requests * 1e6, generator, max(0.0, others))


def _count(case: Case, connections: int, plan: Plan, cost_s: float) -> int:
    if case.paced:
        waves = CROWD_WAVES if case.mode == "slow" else PACED_WAVES
        wanted = PACED_STREAMS.get(connections, connections * waves)
    else:
        wanted = 2000 * plan.seconds
    return min(wanted, max(4, int(HEAVY_BUDGET_S / cost_s))) if cost_s else wanted


def _serve_many(running: Running) -> Memory:
    """Warms the gateway up with many requests, and sees what that does to its memory."""
    started = running.child.rss_mb()
    shot = running.shot(Case("chat", "chat", "whole"))
    many = MANY // 50 if GATEWAYS[running.name].heavy else MANY
    outcome: Outcome = uvloop.run(run_counted(shot, 32, many, LIMIT_S))
    after = running.child.rss_mb()
    say(f"  {running.name}: {started:.1f} MB at start, {after:.1f} MB after {outcome.requests:,} requests")
    return Memory(started, after, outcome.requests, after)
