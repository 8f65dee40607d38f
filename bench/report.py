"""Make tables of the results, for the terminal and for docs/performance.md."""

from collections.abc import Iterable
from dataclasses import replace

from msgspec import Struct

from bench import beside
from bench.cases import CASES, CROWD_CASES, CROWDS, STORED_CASES, Case
from bench.gateways import BESIDE, OTHER_PYTHON
from bench.results import NONE, Results, format_number
from bench.wire import EVENTS


class Target(Struct, frozen=True):
    """A figure we mean to reach (`goal`) and one we must not exceed (`bound`), or not fall short of."""

    title: str
    unit: str
    goal: float
    bound: float
    found: float | None
    least: bool = False  # more is better

    @property
    def verdict(self) -> str:
        if self.found is None:
            return "not measured"
        if self._holds(self.found, self.goal):
            return "reached"
        return "within the bound" if self._holds(self.found, self.bound) else "MISSED"

    def _holds(self, found: float, figure: float) -> bool:
        return found >= figure if self.least else found <= figure

    def format(self, figure: float) -> str:
        return f"≥ {figure:g}" if self.least else f"{figure:g}"


def judge(results: Results) -> list[Target]:
    """The worst of all measured numbers of connections counts."""
    ratio = "× nginx's CPU"
    memory = results.memory.get("dragoman")
    return [
        Target("passthrough, JSON reply", ratio, 8, 12, _worst(results, _select_cases(False, "whole"))),
        Target("passthrough, paced stream", ratio, 3, 4, _worst(results, _select_cases(False, "paced"))),
        Target("translated, paced stream", ratio, 4, 6, _worst(results, _select_cases(True, "paced"))),
        Target("translated, stream in one burst", "× less CPU than LiteLLM", 100, 50, _least(results), least=True),
        Target(
            "stored Responses stream, translated and paced",
            "× one that is not stored",
            1.2,
            1.2,
            _storing_cost(results),
        ),
        Target(
            f"memory after {memory.many:,} requests" if memory else "memory",
            "MB",
            80,
            80,
            memory.after_many if memory else None,
        ),
        Target("memory at start", "MB", 40, 40, memory.started if memory else None),
        Target("cold start to a healthy /health", "s", 0.2, 0.2, results.cold_start_s("dragoman")),
        Target(f"{CROWDS[-1]:,} streams at once: an event's delay, p99", "ms", 50, 50, _crowd_delay(results)),
        Target(f"{CROWDS[-1]:,} streams at once: errors", "errors", 0, 0, _crowd_errors(results)),
    ]


def _storing_cost(results: Results) -> float | None:
    """Return what storing a stream costs: the CPU of one that is stored, over that of the same one that is not."""
    found = []
    for case in STORED_CASES:
        for connections in results.connections if case.mode == "paced" else ():
            stored = results.cpu_us("dragoman", case.name, connections)
            plain = results.cpu_us("dragoman", replace(case, stored=False).name, connections)
            if stored is not None and plain:
                found.append(stored / plain)
    return max(found, default=None)


def _crowd_delay(results: Results) -> float | None:
    found = [results.delay_ms("dragoman", case.name, case.baseline.name, CROWDS[-1]) for case in CROWD_CASES]
    return max((delay for delay in found if delay is not None), default=None)


def _crowd_errors(results: Results) -> float | None:
    cells = [results.find_cell("dragoman", case.name, CROWDS[-1]) for case in CROWD_CASES]
    return sum(cell.errors for cell in cells) if any(cell.readings for cell in cells) else None


def _select_cases(translated: bool, mode: str) -> list[Case]:
    return [case for case in CASES if case.translated == translated and case.mode == mode]


def _worst(results: Results, cases: Iterable[Case]) -> float | None:
    found = [
        ratio
        for case in cases
        for connections in results.connections
        if (ratio := results.ratio(case.name, case.baseline.name, connections)) is not None
    ]
    return max(found, default=None)


def _least(results: Results) -> float | None:
    found = [
        over
        for case in _select_cases(True, "burst")
        for connections in results.connections
        if (over := results.over("dragoman", case, connections)) is not None
    ]
    return min(found, default=None)


def targets_table(results: Results) -> list[list[str]]:
    rows = [["figure", "goal", "bound", "measured", ""]]
    for target in judge(results):
        found = NONE if target.found is None else f"{target.found:.2f} {target.unit}"
        rows.append([target.title, target.format(target.goal), target.format(target.bound), found, target.verdict])
    return rows


def cpu_table(results: Results, connections: int) -> list[list[str]]:
    """µs of CPU per request, and per event where there are events."""
    rows = [["case", "nginx µs", "dragoman µs", "µs/event", "× nginx", "LiteLLM µs", "LiteLLM / dragoman"]]
    for case in (*CASES, *STORED_CASES, *CROWD_CASES):
        ours = results.cpu_us("dragoman", case.name, connections)
        copy = results.cpu_us("nginx", case.baseline.name, connections)
        theirs = results.find_cell("litellm", case.name, connections)
        if ours is None and theirs.cpu_us is None and (copy is None or case.translated):
            continue
        ratio = results.ratio(case.name, case.baseline.name, connections)
        rows.append(
            [
                case.title,
                format_number(copy),
                format_number(ours),
                NONE if ours is None or case.mode == "whole" else f"{ours / EVENTS:.1f}",
                NONE if ratio is None else f"{ratio:.2f}",
                "fails" if theirs.problem else format_number(theirs.cpu_us),
                NONE if ours is None or theirs.cpu_us is None else f"{theirs.cpu_us / ours:,.0f}",
            ]
        )
    return rows


def python_table(results: Results) -> list[list[str]]:
    """µs of CPU per request on both interpreters."""
    machine = results.machine
    rows = [["case", "connections", f"Python {machine.python}, µs", f"{machine.other_python}, µs", "ratio"]]
    for case in (*CASES, *CROWD_CASES):
        for connections in results.connections:
            here = results.cpu_us("dragoman", case.name, connections)
            other = results.cpu_us(OTHER_PYTHON, case.name, connections)
            if here is not None and other is not None:
                rows.append(
                    [case.title, str(connections), format_number(here), format_number(other), f"{other / here:.2f}"]
                )
    return rows


def litellm_table(results: Results) -> list[list[str]]:
    """How many times more CPU LiteLLM takes for a stream than nginx and dragoman do."""
    rows = [["stream", "connections", "LiteLLM / nginx", "LiteLLM / dragoman"]]
    for case in (case for mode in ("burst", "paced", "slow") for case in (*CASES, *CROWD_CASES) if case.mode == mode):
        for connections in results.connections:
            ours, copy = (results.over(name, case, connections) for name in ("dragoman", "nginx"))
            if ours is not None:
                rows.append([case.title, str(connections), format_number(copy), format_number(ours)])
    return rows


def first_token_table(results: Results) -> list[list[str]]:
    """ms that each gateway adds before the first text of a stream, p50 / p99."""
    names = [name for name in ("nginx", "dragoman", "litellm") if any(cell.gateway == name for cell in results.cells)]
    rows = [["case", "connections", *names]]
    for case in (*CASES, *CROWD_CASES):
        for connections in results.connections:
            added = [
                results.added_ms(
                    name, (case.baseline if name == "nginx" else case).name, case.baseline.name, connections
                )
                for name in names
            ]
            if any(added):
                cells = [f"{pair[0]:.2f} / {pair[1]:.2f}" if pair else NONE for pair in added]
                rows.append([case.title, str(connections), *cells])
    return rows


def delay_table(results: Results) -> list[list[str]]:
    """ms by which an event of a stream comes later after the one before it, p99."""
    names = [name for name in ("nginx", "dragoman", "litellm") if any(cell.gateway == name for cell in results.cells)]
    rows = [["case", "connections", *names]]
    for case in (*CASES, *CROWD_CASES):
        for connections in results.connections:
            delays = [
                results.delay_ms(
                    name, (case.baseline if name == "nginx" else case).name, case.baseline.name, connections
                )
                for name in names
            ]
            if case.paced and any(delay is not None for delay in delays):
                cells = [NONE if delay is None else f"{delay:.2f}" for delay in delays]
                rows.append([case.title, str(connections), *cells])
    return rows


def footprint_table(results: Results) -> list[list[str]]:
    rows = [["gateway", "MB at start", "MB after", "requests", "MB at the end", "cold start s"]]
    for name, memory in results.memory.items():
        cold = results.cold_start_s(name)
        rows.append(
            [
                f"dragoman {results.machine.beside}" if name == BESIDE else name,
                f"{memory.started:.1f}",
                f"{memory.after_many:.1f}",
                f"{memory.many:,}",
                f"{memory.at_end:.1f}",
                NONE if cold is None else f"{cold:.2f}",
            ]
        )
    return rows


def direct_table(results: Results) -> list[list[str]]:
    """The load without any gateway: what upstream and generator manage by themselves."""
    rows = [["case", "connections", "requests/s", "p50 ms", "p99 ms"]]
    for cell in results.cells:
        if cell.gateway == "direct" and cell.readings:
            outcome = cell.readings[0].outcome
            latencies = [f"{outcome.p50 * 1e3:.2f}", f"{outcome.p99 * 1e3:.2f}"]
            rows.append([cell.case, str(cell.connections), f"{outcome.rate:,.0f}", *latencies])
    return rows


def sections(results: Results) -> list[tuple[str, list[list[str]]]]:
    """Every table with its heading, in the order of interest."""
    cpu = [
        (f"CPU per request, {connections} connection{'s' * (connections > 1)}", cpu_table(results, connections))
        for connections in results.connections
    ]
    return [
        ("Targets", targets_table(results)),
        *cpu,
        *([("CPU per request on another Python", python_table(results))] if results.machine.other_python else []),
        *(_sections_beside(results) if results.machine.beside else []),
        (LITELLM, litellm_table(results)),
        ("Time added before the first token of a stream, ms, p50 / p99", first_token_table(results)),
        ("Delay added between two events of a stream, ms, p99", delay_table(results)),
        ("Memory and start", footprint_table(results)),
        ("Calibration: upstream and load generator without a gateway", direct_table(results)),
    ]


def _sections_beside(results: Results) -> list[tuple[str, list[list[str]]]]:
    commit = results.machine.beside
    return [
        (f"CPU per request beside commit {commit}", beside.cpu_table(results)),
        (f"Memory and start beside commit {commit}", beside.footprint_table(results)),
    ]


def remarks(results: Results) -> list[str]:
    """What keeps the distance to LiteLLM from being the same for every kind of stream."""
    paced = [case for case in CASES if case.mode == "paced"]
    over = {
        name: [found for case in paced if (found := results.over(name, case, MANY)) is not None]
        for name in ("nginx", "dragoman")
    }
    if not over["nginx"] or not over["dragoman"]:
        return []
    return [PACED.format(many=MANY, nginx=_range(over["nginx"]), dragoman=_range(over["dragoman"]))]


def _range(found: list[float]) -> str:
    low, high = f"{min(found):.0f}", f"{max(found):.0f}"
    return low if low == high else f"{low} to {high}"


def notes(results: Results) -> list[str]:
    cells = [cell for cell in results.cells if cell.gateway != "direct" and cell.readings]
    restless = sum(not any(reading.calm for reading in cell.readings) for cell in cells)
    busy = f"other processes kept the gateways' core busy throughout {restless} of {len(cells)} measured cells."
    left_out = beside.list_left_out(results) if results.machine.beside else []
    absent = f"{results.machine.beside} does not serve {'; '.join(left_out)}."
    return [*results.notes, *([absent] if left_out else []), *([busy] if restless else [])]


def as_text(results: Results) -> str:
    parts = []
    for title, rows in sections(results):
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        lines = ["  ".join(_align(row, widths)) for row in rows]
        parts.append("\n".join([title, "-" * len(title), *lines]))
    return "\n\n".join(parts + [f"Note: {note}" for note in notes(results)])


def _align(row: list[str], widths: list[int]) -> Iterable[str]:
    for at, (text, width) in enumerate(zip(row, widths, strict=True)):
        yield text.ljust(width) if at == 0 else text.rjust(width)


def as_markdown(results: Results) -> str:
    machine = results.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    rounds = f"medians of {results.rounds} rounds" if results.rounds > 1 else "one round"
    parts = [
        "# Performance",
        "Run `make bench` to print these tables; `.venv/bin/python -m bench --publish` writes this page.",
        f"Measured {machine.date} on {machine.cores} cores of {machine.cpu}, {machine.kernel}, "
        f"Python {machine.python}; {versions}; {rounds}.",
        "![CPU per request](performance.svg)",
    ]
    if machine.beside:
        parts.append(f"![CPU per request divided by that of commit {machine.beside}](performance-beside.svg)")
    for title, rows in sections(results):
        bar = ["---", *["---:"] * (len(rows[0]) - 1)]
        lines = ["| " + " | ".join(row) + " |" for row in (rows[0], bar, *rows[1:])]
        parts += [f"## {title}", "\n".join(lines)]
        if title == LITELLM:
            parts += remarks(results)
    return "\n\n".join([*parts, SIZE, METHOD, *(f"Note: {note}" for note in notes(results))]) + "\n"


LITELLM = "CPU of LiteLLM as a multiple, per stream"
MANY = 32
PACED = """\
A stream in one burst shows the work of a gateway. A paced stream mostly shows wake-ups: each event costs a wait, a
read and a write in the kernel, whatever is done with its bytes. nginx does nothing with them, and at {many}
connections LiteLLM takes only {nginx} times its CPU. No gateway can be further from LiteLLM than that here, so 100
times less is possible for bursts, not for paced streams. dragoman, which decodes every event and re-encodes most of
them, is at {dragoman}."""

SIZE = """## Size, idle memory and start

Measured 2026-11-16, "now" 2026-11-19, in environments with nothing but pip, with a gateway without any provider,
console on; MB are 2^20 bytes, medians of 5. "Now" has all features that came since (stored responses, Gemini, console,
vendors, WebSockets, limits, prompt caches, rejections, clusters), and misses the goals of size and memory.
The targets above are those of a gateway with five providers in a development environment, in MB of 10^6 bytes.

| | before [ADR 57](adr/0057-size.md) | before [ADR 62](adr/0062-loading-late.md) | now | goal |
| --- | ---: | ---: | ---: | ---: |
| installed packages, without pip | 124 MB | 57 MB | 64 MB | 60 MB |
| of these, dragoman itself, compiled | 6 MB | 9 MB | 16 MB | |
| idle memory (resident set) | 47.9 MB | 40.7 MB | 47.2 MB | 40 MB |
| time until `/health` answers | 0.42 s of CPU, busy machine | 0.21 s | 0.21 s | 0.2 s |

```sh
python3 -m venv fresh && fresh/bin/pip install .
du -sm --exclude='pip*' --exclude='setuptools*' fresh/lib/python3*/site-packages    # the installed size
python -m bench.start fresh/bin/python                      # idle memory, start, and commands that load little
```"""

METHOD = """## Method

One run on one machine, with one fake upstream whose responses are rendered in advance. The gateways have one core;
upstream and load generator share another.

- **CPU per request** is user and system time of a gateway's process tree, from `/proc`, divided by the number of
  answered requests. It is stable on a busy machine; latencies are not.
- **nginx** copies bytes (keep-alive both ways, buffering off) and is the lower bound. For a translated case its
  column is the same upstream stream, copied.
- **Every figure is the median** over the rounds. A reading during which other processes took more than a tenth of the
  gateway's core is repeated once, and counts only if no reading was quiet.
- **Load**: wrk for JSON replies and bursts. `bench/load.py`, with a fixed number of requests, for paced streams and
  for gateways so slow that the generator's speed does not matter. The streams of a crowd start evenly over half of a
  stream's duration.
- **First token** is when the first piece of text reaches the client, because a gateway may hold the head of a stream
  until then.
- **An event's delay** is the additional time since the event before it, compared with no gateway.
- **Another commit** (`--beside COMMIT`) is installed with the dependencies that it locks, and takes turns with the
  present tree: 24 pairs of short loads in every case but a crowd, so that both are measured in the same state of the
  machine. The ratio is the median of the pairs' ratios, with its 95 % interval.
- **Instructions** (`python -m bench.instructions --beside COMMIT`) are counted by Valgrind, on the thread of the event
  loop and outside the kernel, less what that thread executes in the same time without requests. That can be repeated
  within two percent on a machine that others use, but it says nothing of system calls, nor of other threads.
- **Correctness** is checked first: a gateway with a wrong answer is listed as failing, not as fast."""
