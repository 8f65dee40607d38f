"""`python -m bench`: measures nginx, LiteLLM and dragoman side by side and prints, stores and draws what it found."""

import argparse
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench.beside import add_commit
from bench.cases import CASES, CROWD_CASES, CROWDS, STORED_CASES, Case
from bench.chart import as_png, draw, draw_beside
from bench.gateways import BESIDE, OTHER_PYTHON
from bench.measure import Plan, measure
from bench.report import as_markdown, as_text
from bench.results import Machine, Results
from bench.rig import NotStarted, Rig
from bench.tools import (
    ROOT,
    describe_python,
    find_commit,
    get_litellm,
    get_program,
    install_commit,
    install_on_other_python,
    say,
    version_of,
)
from bench.tree import CORES, LOAD_CORES

LATEST = ROOT / "bench" / "results" / "latest.json"
DOCS = ROOT / "docs"
COLD_STARTS = 5


def main() -> int:
    options = read_options()
    if len(CORES) < 2:
        say("Only one core here: gateway and load share it, so read the ratios with care.")
    commit = find_commit(options.beside) if options.beside else ""
    if commit is None:
        say(f"{options.beside} is no commit of this repository.")
        return 1
    os.sched_setaffinity(0, LOAD_CORES)
    found = [name for name in ("nginx", "wrk") if get_program(name)]
    names = [*(["nginx"] if "nginx" in found else []), "dragoman"]
    if options.python:
        if not install_on_other_python(options.python):
            return 1
        names.append(OTHER_PYTHON)
    if commit:
        if not install_commit(commit):
            return 1
        names.append(BESIDE)
    if not options.without_litellm and get_litellm():
        names.append("litellm")
    results = Results(describe([*names, *(["wrk"] if "wrk" in found else [])], options.python, commit), options.rounds)
    for name in ("nginx", "wrk"):
        if name not in found:
            results.notes.append(f"{name} was not there, so {ABSENT[name]}.")
    with Rig() as rig:
        if commit and not add_commit(rig, commit):
            return 1
        started = start(rig, names, results)
        if not started:
            return 1
        plan = Plan(started, choose_loads(options), options.rounds, options.seconds, "wrk" in found)
        try:
            measure(rig, plan, results)
        except KeyboardInterrupt:
            results.notes.append("the run was interrupted.")
            options.publish = False
    print("\n" + as_text(results))
    keep(results, options.publish)
    return 0


ABSENT = {"nginx": "there is nothing to compare with as a floor", "wrk": "bench/load.py made all the load"}


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--without-litellm", action="store_true", help="neither install nor measure LiteLLM")
    parser.add_argument("--connections", default="1,32", help="numbers of connections, with commas (1,32)")
    parser.add_argument("--crowd", action="store_true", help="500 and 1,000 slow streams at once, too")
    parser.add_argument("--only", default="", help="cases whose name contains this text, such as chat>chat or /paced")
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 21), metavar="1..20", help="how often (3)")
    parser.add_argument("--seconds", type=int, default=2, choices=range(1, 61), metavar="1..60", help="per wrk run (2)")
    parser.add_argument("--python", default="", metavar="PATH", help="measure dragoman on this interpreter, too")
    parser.add_argument("--beside", default="", metavar="COMMIT", help="measure dragoman of this commit, too")
    parser.add_argument("--publish", action="store_true", help="write docs/performance.md with its charts")
    return parser.parse_args()


def choose_loads(options: argparse.Namespace) -> tuple[tuple[Case, int], ...]:
    connections = [int(number) for number in options.connections.split(",")]
    loads = [(case, number) for case in (*CASES, *STORED_CASES) for number in connections]
    if options.crowd:
        loads += [(case, crowd) for case in CROWD_CASES for crowd in CROWDS]
    return tuple(load for load in loads if options.only in load[0].name)


def start(rig: Rig, names: list[str], results: Results) -> tuple[str, ...]:
    """Start each gateway, and the quick ones several times before, in turn; leave out what does not start."""
    started = list(names)
    for turn in range(COLD_STARTS + 1):
        for name in tuple(started):
            try:
                if turn == COLD_STARTS:
                    say(f"Starting {name} ...")
                    running = rig.start(name)
                    results.starts.setdefault(name, [running.describe_start()])
                elif not rig.gateways[name].heavy:
                    results.starts.setdefault(name, []).append(rig.try_start(rig.gateways[name]))
            except NotStarted as problem:
                say(f"{name} does not start: {problem}")
                results.notes.append(f"{name} did not start: {problem}.")
                started.remove(name)
    return tuple(started)


def describe(names: list[str], other_python: str, commit: str) -> Machine:
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        cpu=_cpu_model(),
        cores=len(CORES),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions={name: version_of(name) for name in names if name not in (OTHER_PYTHON, BESIDE)},
        other_python=describe_python(other_python) if other_python else "",
        beside=commit,
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def keep(results: Results, publish: bool) -> None:
    LATEST.parent.mkdir(exist_ok=True)
    LATEST.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))
    say(f"\nEvery reading is in {LATEST.relative_to(ROOT)}.")
    if publish:
        DOCS.mkdir(exist_ok=True)
        (DOCS / "performance.md").write_text(as_markdown(results))
        chart = draw(results)
        (DOCS / "performance.svg").write_text(chart)
        if get_program("rsvg-convert"):
            (DOCS / "performance.png").write_bytes(as_png(chart))
        compared = DOCS / "performance-beside.svg"
        compared.unlink(missing_ok=True)
        if results.machine.beside:
            compared.write_text(draw_beside(results))
        say("docs/performance.md is written, with its charts.")


if __name__ == "__main__":
    sys.exit(main())
