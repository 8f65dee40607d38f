"""What a translated request of 200 kB costs, beside another commit: such as the one before prompt caches were kept.

    .venv/bin/python -m bench.large --beside COMMIT

Asks both in turns for the same conversation: a Chat client's, of 20 tools and 180 messages, for each upstream.
"""

import argparse
import os
from dataclasses import replace
from statistics import median

import uvloop

from bench.beside import add_commit
from bench.cases import WAYS, Case
from bench.gateways import BESIDE
from bench.load import run_counted
from bench.rig import Rig, Running
from bench.tools import find_commit, install_commit, say
from bench.tree import LOAD_CORES
from bench.wire import SCHEMA, SYSTEM, encode

CASES = tuple(Case(client, upstream, "whole") for client, upstream in WAYS if client == "chat")
TOOLS, MESSAGES, TEXT = 20, 180, "The quick brown fox jumps over the lazy dog; then it rests. " * 17
ROUNDS, REQUESTS, CONNECTIONS = 12, 100, 4
PATIENCE_S = 120.0


def write_body(model: str) -> bytes:
    function = {"description": "Reads a file of the project. " * 8, "parameters": SCHEMA}
    tools = [{"type": "function", "function": {"name": f"read_{number}", **function}} for number in range(TOOLS)]
    turns = [{"role": "user" if number % 2 else "assistant", "content": TEXT} for number in range(1, MESSAGES)]
    messages = [{"role": "system", "content": SYSTEM}, *turns]
    return encode({"model": model, "messages": messages, "tools": tools, "max_tokens": 512})


def measure(running: Running, case: Case) -> float:
    """Return the microseconds of CPU time of a request."""
    before, shot = running.child.cpu_s(), replace(running.shot(case), body=write_body(case.model))
    found = uvloop.run(run_counted(shot, CONNECTIONS, REQUESTS, PATIENCE_S))
    if found.requests != REQUESTS:
        raise RuntimeError(f"{case.name}: {found.requests} of {REQUESTS} requests were answered")
    return (running.child.cpu_s() - before) / REQUESTS * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.large", description=__doc__)
    parser.add_argument("--beside", required=True, metavar="COMMIT", help="the other commit")
    commit = find_commit(parser.parse_args().beside)
    if commit is None or not install_commit(commit):
        say("That is no commit of this repository, or it cannot be installed.")
        return 1
    os.sched_setaffinity(0, LOAD_CORES)
    with Rig() as rig:
        add_commit(rig, commit)
        other, own = rig.start(BESIDE), rig.start("dragoman")
        say(f"| {len(write_body('')):,} bytes, µs of CPU time | {commit} | here | ratio | of {ROUNDS} pairs |")
        say("| --- | ---: | ---: | ---: | ---: |")
        for case in CASES:
            measure(other, case), measure(own, case)  # the first ones load modules
            pairs = [(measure(other, case), measure(own, case)) for _ in range(ROUNDS)]
            ratios = sorted(now / before for before, now in pairs)
            before, now = (median(readings) for readings in zip(*pairs, strict=True))
            scatter = f"{ratios[0]:.2f}–{ratios[-1]:.2f}"
            say(f"| {case.title} | {before:,.0f} | {now:,.0f} | {median(ratios):.3f} | {scatter} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
