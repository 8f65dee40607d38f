"""`python -m bench.profile CASE`: load dragoman with one case, print its hot spots and draw a flame graph."""

import argparse
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import uvloop

from bench.cases import CASES, STORED_CASES, Case
from bench.load import run_counted, run_wrk
from bench.rig import Rig, Running
from bench.tools import ROOT, VENV, get_program, get_py_spy, say
from bench.tree import LOAD_CORES

RESULTS = ROOT / "bench" / "results"
RATE = 500
SHOWN = 60
LOOP = "asyncio/runners.py Runner.run"


def main() -> int:
    options = read_options()
    os.sched_setaffinity(0, LOAD_CORES)
    if not get_py_spy():
        return 1
    case = next(case for case in (*CASES, *STORED_CASES) if case.name == options.case)
    with Rig() as rig:
        running = rig.start("dragoman")
        load(rig, running, case, options.connections, 1)
        stacks = record(rig, running, case, options)
    show(by_function(stacks))
    return 0


def read_options() -> argparse.Namespace:
    names = [case.name for case in (*CASES, *STORED_CASES)]
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    parser.add_argument("case", nargs="?", default=names[0], choices=names, metavar="CASE", help=", ".join(names))
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=int, default=6, choices=range(2, 61), metavar="2..60")
    parser.add_argument("--native", action="store_true", help="show frames of C extensions, too")
    return parser.parse_args()


def load(rig: Rig, running: Running, case: Case, connections: int, seconds: int) -> None:
    shot = running.shot(case)
    if not case.paced and get_program("wrk"):
        run_wrk(shot, connections, seconds, LOAD_CORES, rig.directory)
    else:
        count = connections * 3 * seconds if case.paced else 3000 * seconds
        uvloop.run(run_counted(shot, connections, count, seconds + 60.0))


def record(rig: Rig, running: Running, case: Case, options: argparse.Namespace) -> list[str]:
    """Collapsed stacks, `frame;frame;frame count`, sampled while the load runs; the flame graph is a second pass."""
    RESULTS.mkdir(exist_ok=True)
    stem = case.name.replace(">", "-").replace("/", "-")
    outputs = {"raw": rig.directory / "stacks.txt", "flamegraph": RESULTS / f"profile-{stem}.svg"}
    for form, output in outputs.items():
        command = [str(VENV / "bin" / "py-spy"), "record", "--pid", str(running.child.pid), "--format", form]
        command += ["--rate", str(RATE), "--duration", str(options.seconds), "--output", str(output)]
        command += ["--native"] if options.native else []
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as spy:
            load(rig, running, case, options.connections, options.seconds + 1)
            _, complaint = spy.communicate(timeout=options.seconds + 60)
        if spy.returncode != 0:
            say(complaint.decode(errors="replace"))
    say(f"The flame graph is {outputs['flamegraph'].relative_to(ROOT)}.")
    return outputs["raw"].read_text().splitlines()


def by_function(stacks: list[str]) -> list[tuple[list[str], int]]:
    """The event loop's stacks without line numbers, so that a function is one entry; waiting threads say nothing."""
    parsed = []
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        frames = [_function(frame) for frame in stack.split(";")]
        if LOOP in frames:
            parsed.append((frames[frames.index(LOOP) :], int(count)))
    return parsed


def _function(frame: str) -> str:
    name, _, place = frame.partition(" (")
    path = place.rstrip(")").rpartition(":")[0] if ":" in place else place.rstrip(")")
    return f"{Path(path).parent.name}/{Path(path).name} {name}" if path else name


def show(stacks: list[tuple[list[str], int]]) -> None:
    """Shares of all samples: alone in the function, and with everything that it calls."""
    total = sum(count for _, count in stacks) or 1
    own: Counter[str] = Counter()
    inclusive: Counter[str] = Counter()
    for frames, count in stacks:
        own[frames[-1]] += count
        for frame in set(frames):
            inclusive[frame] += count
    for title, counter in (("alone", own), ("with what it calls", inclusive)):
        print(f"\n{title:>20}")
        for name, count in counter.most_common(SHOWN):
            print(f"{count / total:>19.1%}  {name}")


if __name__ == "__main__":
    sys.exit(main())
