"""Start the processes of the benchmark, pinned to a core, and read the CPU time and memory of their trees."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STOP_S = 3.0
CORES = sorted(os.sched_getaffinity(0))
GATEWAY_CORES = {CORES[0]}
LOAD_CORES = {CORES[1] if len(CORES) > 1 else CORES[0]}


class Child:
    """A started command with a process group of its own; leaving the context ends all of it."""

    def __init__(self, command: list[str], cores: set[int], log: Path, environ: dict[str, str]) -> None:
        self.log = log
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)  # children inherit it, and so do all their threads
        try:
            with log.open("wb") as out:
                self._child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ, start_new_session=True
                )
        finally:
            os.sched_setaffinity(0, before)

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def ended(self) -> bool:
        return self._child.poll() is not None

    def cpu_s(self) -> float:
        return tree_cpu_s(self._child.pid)

    def rss_mb(self) -> float:
        """What the whole tree holds; memory shared between its processes counts once in each."""
        return sum(map(_rss_bytes, find_tree(self._child.pid))) / 1e6

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"


def tree_cpu_s(root: int) -> float:
    """What a process and its descendants have worked."""
    return sum(map(_cpu_s, find_tree(root)))


def find_tree(root: int) -> list[int]:
    """Return the ids of a process and its descendants."""
    parents = dict(_parents())
    tree = [root]
    for pid in tree:
        tree += [child for child, parent in parents.items() if parent == pid]
    return tree


def busy_s(cores: set[int]) -> float:
    """What these cores have worked for anyone, or lost to other guests of their host, since they were started."""
    total = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name in {f"cpu{core}" for core in cores}:
            user, nice, system, _, _, interrupts, soft, stolen = map(int, ticks[:8])
            total += user + nice + system + interrupts + soft + stolen
    return total * TICK_S


def _parents() -> Iterator[tuple[int, int]]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry), int(_stat(int(entry))[1])


def _stat(pid: int) -> list[str]:
    """The fields after the command's name, which may itself contain spaces and brackets."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _cpu_s(pid: int) -> float:
    """User and system time of all threads, in nanoseconds, and of children that have ended, in clock ticks."""
    try:
        precise = time.clock_gettime(~pid << 3 | 2)  # the clock that clock_getcpuclockid(3) gives for a process
        user_of_ended, system_of_ended = _stat(pid)[13:15]
    except OSError:
        return 0.0
    return precise + (int(user_of_ended) + int(system_of_ended)) * TICK_S


def _rss_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except OSError:
        return 0
