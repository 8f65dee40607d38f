"""Instructions per request, counted with Valgrind: on a busy machine, too, two readings differ by two percent at most.

    .venv/bin/python -m bench.instructions --beside COMMIT

Counts what the thread of the event loop executes outside the kernel, from a request until its usage is passed on, less
what it executes in the same time without requests: that is much, because Valgrind makes a request take so long.
"""

import argparse
import os
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import uvloop

from bench.beside import add_commit
from bench.cases import CASES, STORED_CASES, WAYS, Case
from bench.gateways import BESIDE, Gateway, Site
from bench.load import run_counted
from bench.rig import Rig, Running
from bench.tools import find_commit, get_program, install_commit, say
from bench.tree import LOAD_CORES

COUNTED = "callgrind.out"
TOTAL = re.compile(r"^totals: (\d+)", re.MULTILINE)
REQUESTS = {"whole": 160, "burst": 64, "slow": 16}
CONNECTIONS = 16
READINGS = 3
IDLE_S = 5.0
SETTLE_S = 2.0
PATIENCE_S = 180.0
SLOW_CASES = tuple(Case(client, upstream, "slow") for client, upstream in WAYS)  # whose events come one by one


def under_valgrind(gateway: Gateway) -> Gateway:
    def prepare(site: Site) -> list[str]:
        options = ["--instr-atstart=no", "--separate-threads=yes", f"--callgrind-out-file={site.directory / COUNTED}"]
        return ["env", "PYTHONHASHSEED=0", "valgrind", "-q", "--tool=callgrind", *options, *gateway.prepare(site)]

    return replace(gateway, prepare=prepare, patience_s=PATIENCE_S)


class Counter:
    """Counts the instructions of one gateway."""

    def __init__(self, rig: Rig, name: str) -> None:
        rig.gateways[name] = under_valgrind(rig.gateways[name])
        self._directory = rig.directory
        self._running = rig.start(name)
        time.sleep(IDLE_S)
        self._idle_rate = min(self._read(None) for _ in range(READINGS))  # a second

    def count(self, case: Case) -> float:
        """Return the instructions of one request."""
        load(self._running, case)
        return min(self._read(case) for _ in range(READINGS))

    def _read(self, case: Case | None) -> float:
        """Return the instructions of a request, without a case those of an idle second."""
        began = time.monotonic()
        self._control("--instr=on")
        if case is None:
            time.sleep(IDLE_S)
        else:
            load(self._running, case)
        self._control("--dump")
        took = time.monotonic() - began
        self._control("--instr=off")
        counted = read_busiest_thread(self._directory)
        return counted / took if case is None else (counted - self._idle_rate * took) / REQUESTS[case.mode]

    def _control(self, order: str) -> None:
        command = ["callgrind_control", order, str(self._running.child.pid)]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)


def load(running: Running, case: Case) -> None:
    count = REQUESTS[case.mode]
    found = uvloop.run(run_counted(running.shot(case), min(count, CONNECTIONS), count, PATIENCE_S))
    if found.requests != count:
        raise RuntimeError(f"{case.name}: {found.requests} of {count} requests were answered")
    time.sleep(SETTLE_S)


def read_busiest_thread(directory: Path) -> int:
    """Return what the busiest thread has executed since this was last asked."""
    files = list(directory.glob(f"*/{COUNTED}.*"))
    counts = [int(count) for file in files for count in TOTAL.findall(file.read_text(errors="replace"))]
    for file in files:
        file.unlink()
    return max(counts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description=__doc__)
    parser.add_argument("--beside", default="", metavar="COMMIT", help="count dragoman of this commit, too")
    parser.add_argument("--only", default="/whole", help="cases whose name contains this text (/whole), such as chat>")
    options = parser.parse_args()
    if not get_program("valgrind"):
        return 1
    commit = find_commit(options.beside) if options.beside else ""
    if commit is None or (commit and not install_commit(commit)):
        say(f"{options.beside} is no commit of this repository, or cannot be installed.")
        return 1
    os.sched_setaffinity(0, LOAD_CORES)
    with Rig() as rig:
        if commit:
            add_commit(rig, commit)
        names = [BESIDE, "dragoman"] if commit else ["dragoman"]
        counters = {name: Counter(rig, name) for name in names}
        say("| case | " + (f"{commit} | here | ratio |" if commit else "here |"))
        say("| --- |" + " ---: |" * (3 if commit else 1))
        for case in (*CASES, *STORED_CASES, *SLOW_CASES):
            if case.mode in REQUESTS and options.only in case.name:
                counts = [counters[name].count(case) for name in names if rig.gateways[name].takes(case)]
                cells = [f"{count / 1000:,.0f}" for count in counts]
                cells += [f"{counts[1] / counts[0]:.3f}"] if len(counts) > 1 else []
                say(f"| {case.title} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
