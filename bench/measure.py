"""Check, load and measure every gateway in turn, as a plan says, and return the results."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import uvloop

from bench.cases import CROWD_SPREAD_S, Case
from bench.gateways import BESIDE, PAIRED
from bench.load import Outcome, run_counted, run_wrk
from bench.results import Cell, Memory, Reading, Results
from bench.rig import DIRECT, Rig, Running, ask_once
from bench.tools import say
from bench.tree import GATEWAY_CORES, LOAD_CORES, busy_s

PROBES = 3
HEAVY_BUDGET_S = 8.0  # of CPU for one reading of a heavy gateway
LIMIT_S = 60.0  # for one reading
PATIENCE = 2  # readings, until one is calm
MANY = 10_000
PACED_STREAMS = {1: 8}  # for other numbers of connections, this many waves:
PACED_WAVES = 4
PAIRS = 24  # short loads of each of two trees, in turns, over all rounds
SLICE_REQUESTS = {"whole": 600, "burst": 250}  # of one short load; of paced streams one wave
SETTLE_S = 0.25  # until usage is written, which is part of a request's cost
CROWD_WAVES = 1
RESPONSE_ID = re.compile(rb'"id": ?"(resp_[^"]+)"')


@dataclass(frozen=True)
class Plan:
    """What is measured, how often and how long."""

    gateways: tuple[str, ...]
    loads: tuple[tuple[Case, int], ...]  # a case and a number of connections
    rounds: int
    seconds: int
    with_wrk: bool

    @property
    def in_turns(self) -> int:
        """The number of connections with which two trees are compared: the most, but not a crowd."""
        return max((number for case, number in self.loads if case.mode != "slow"), default=0)


class WrongAnswer(Exception):
    """A gateway does not do what is to be measured."""


def measure(rig: Rig, plan: Plan, results: Results) -> None:
    for name in plan.gateways:
        results.memory[name] = _serve_many(rig.running[name], MANY // 50 if rig.gateways[name].heavy else MANY)
    alone = [name for name in plan.gateways if name != BESIDE]
    for turn in range(plan.rounds):
        for case, connections in plan.loads:
            # Every second round in reverse: the place in the order favours none.
            for name in (DIRECT, *(reversed(alone) if turn % 2 else alone)):
                _visit(rig, plan, results.cell(name, _case_for(name, case).name, connections), (turn, case))
            if BESIDE in plan.gateways and connections == plan.in_turns and rig.gateways[BESIDE].takes(case):
                _take_turns(rig, plan, results, case, connections)
    for name, memory in results.memory.items():
        end = rig.running[name].child.rss_mb()
        results.memory[name] = Memory(memory.started, memory.after_many, memory.many, end)
    results.cells = [cell for cell in results.cells if cell.readings or cell.problem]


def _case_for(gateway: str, case: Case) -> Case:
    """What copies bytes gets the same upstream bytes."""
    return case.baseline if gateway in (DIRECT, "nginx") else case


def _visit(rig: Rig, plan: Plan, cell: Cell, now: tuple[int, Case]) -> None:
    """One gateway's turn in one round; several cases may share a baseline, which is read once per round."""
    turn, case = now
    case = _case_for(cell.gateway, case)
    gateway = rig.gateways.get(cell.gateway)
    if cell.problem or len(cell.readings) > turn:
        return
    if gateway is not None and (not gateway.takes(case) or (gateway.heavy and turn > 0)):
        return
    trial = Trial(rig, plan, rig.running[cell.gateway], case, cell.connections)
    try:
        reading = trial.calm_reading()
    except Exception as problem:
        cell.problem = str(problem)[:300]
        say(f"  {cell.gateway:9} {case.name:24} c={cell.connections:<4} FAILS: {cell.problem}")
    else:
        cell.readings.append(reading)
        _show(cell, reading, f"[{turn + 1}/{plan.rounds}]")


def _take_turns(rig: Rig, plan: Plan, results: Results, case: Case, connections: int) -> None:
    """Load both trees in turns, shortly: what disturbs the machine then disturbs both."""
    names = {BESIDE: BESIDE, "dragoman": PAIRED}
    cells = {name: results.cell(shown, case.name, connections) for name, shown in names.items()}
    trials = [Trial(rig, plan, rig.running[name], case, connections) for name in names]
    try:
        for trial in trials:
            trial.probe()
        for pair in range(max(1, PAIRS // plan.rounds)):
            for trial in reversed(trials) if pair % 2 else trials:
                cells[trial.running.name].readings.append(trial.short_reading())
    except Exception as problem:
        cells[BESIDE].problem = str(problem)[:300]
    shown = " and ".join(f"{name} {cell.cpu_us or 0:,.1f}" for name, cell in cells.items())
    say(f"  in turns {case.name:24} c={connections:<4} {shown} µs/request  {cells[BESIDE].problem or ''}")


def _show(cell: Cell, reading: Reading, turn: str) -> None:
    outcome = reading.outcome
    cost = f"{reading.cpu_us:>10,.1f} µs/request" if cell.gateway != DIRECT else " " * 21
    wrong = f"  {outcome.errors} ERRORS" if outcome.errors else ""
    if not reading.calm and cell.gateway != DIRECT:
        wrong += f"  disturbed: others took {reading.others:.0%} of its core"
    say(
        f"  {turn} {cell.case:24} c={cell.connections:<4} {cell.gateway:9}{cost}"
        f"{outcome.requests:>9,} requests {outcome.rate:>9,.0f}/s{wrong}"
    )


@dataclass(frozen=True)
class Trial:
    """One gateway before one load."""

    rig: Rig
    plan: Plan
    running: Running
    case: Case
    connections: int

    @property
    def heavy(self) -> bool:
        return self.running.name != DIRECT and self.rig.gateways[self.running.name].heavy

    def calm_reading(self) -> Reading:
        """Reads again where other processes took much of the gateway's core; the calmest reading counts."""
        cost_s = self.probe()
        found: list[Reading] = []
        for _ in range(1 if self.heavy or self.running.name == DIRECT else PATIENCE):
            found.append(self._read(partial(self._load, cost_s)))
            if found[-1].calm:
                break
        return min(found, key=lambda reading: reading.others)

    def short_reading(self) -> Reading:
        return self._read(self._load_shortly)

    def probe(self) -> float:
        """Sees that the answer is right, warms up, and says what one request costs at first."""
        shot = self.running.shot(self.case)
        probes = 1 if self.case.mode == "slow" else PROBES
        before = self.running.child.cpu_s()
        for _ in range(probes):
            status, body = ask_once(shot)
            if status != 200 or self.case.proof not in body:
                raise WrongAnswer(f"status {status}: {body[-200:].decode(errors='replace')}")
        cost_s = (self.running.child.cpu_s() - before) / probes
        if self.case.stored:
            self._read_stored(body)
        return cost_s

    def _read_stored(self, reply: bytes) -> None:
        """See that the response was stored: a gateway without this feature ignores `store` and answers."""
        found = RESPONSE_ID.search(reply)
        path = f"{self.case.path}/{found[1].decode() if found else 'none'}"
        status, body = ask_once(replace(self.running.shot(self.case), path=path, body=b""), "GET")
        if status != 200:
            raise WrongAnswer(f"GET {path}: status {status}: {body[-200:].decode(errors='replace')}")

    def _read(self, load: Callable[[], tuple[str, Outcome]]) -> Reading:
        child = self.running.child
        before, busy, began = child.cpu_s(), busy_s(GATEWAY_CORES), time.perf_counter()
        generator, outcome = load()
        spent = child.cpu_s() - before
        if not outcome.requests:
            raise WrongAnswer(f"no answer in {outcome.seconds:.0f} s")
        others = (busy_s(GATEWAY_CORES) - busy - spent) / (time.perf_counter() - began)
        return Reading(outcome, spent / outcome.requests * 1e6, generator, max(0.0, others))

    def _load(self, cost_s: float) -> tuple[str, Outcome]:
        shot = self.running.shot(self.case)
        if self.plan.with_wrk and not self.case.paced and not self.heavy:
            return "wrk", run_wrk(shot, self.connections, self.plan.seconds, LOAD_CORES, self.rig.directory)
        count = self._count()
        if self.heavy:
            count = min(count, max(4, int(HEAVY_BUDGET_S / max(cost_s, 1e-6))))
        spread_s = CROWD_SPREAD_S if self.case.mode == "slow" else 0.0
        return "counted", uvloop.run(run_counted(shot, self.connections, count, LIMIT_S, spread_s))

    def _load_shortly(self) -> tuple[str, Outcome]:
        count = SLICE_REQUESTS.get(self.case.mode, self.connections)
        outcome = uvloop.run(run_counted(self.running.shot(self.case), self.connections, count, LIMIT_S))
        time.sleep(SETTLE_S)
        return "counted", outcome

    def _count(self) -> int:
        if not self.case.paced:
            return 2000 * self.plan.seconds
        waves = CROWD_WAVES if self.case.mode == "slow" else PACED_WAVES
        return PACED_STREAMS.get(self.connections, self.connections * waves)


def _serve_many(running: Running, many: int) -> Memory:
    """Warms the gateway up with many requests, and sees what that does to its memory."""
    started = running.child.rss_mb()
    shot = running.shot(Case("chat", "chat", "whole"))
    outcome = uvloop.run(run_counted(shot, 32, many, LIMIT_S))
    after = running.child.rss_mb()
    say(f"  {running.name}: {started:.1f} MB at start, {after:.1f} MB after {outcome.requests:,} requests")
    return Memory(started, after, outcome.requests, after)
