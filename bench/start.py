"""Memory and start of a gateway without providers, and the time of commands that load little: medians of a few runs.

python -m bench.start [PYTHON]     of another environment, for example one with nothing but the wheel
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.ports import find_free_port
from bench.rig import wait_healthy
from bench.tree import GATEWAY_CORES, Child

RUNS = 5
PATIENCE_S = 20.0
IDLE_S = 1.0  # after the first answer
MEGABYTE = 1024 * 1024  # as du counts them
COMMANDS = (("--version",), ("--help",), ("completion", "bash"), ("serve", "--help"))


def measure_start(python: str, directory: Path) -> tuple[float, float, float]:
    """Return seconds until /health answers, seconds of CPU until then, and bytes of memory when idle."""
    port = find_free_port()
    command = [python, "-m", "dragoman", "serve", "--port", str(port)]
    with Child(command, GATEWAY_CORES, directory / "output.log", _environ(directory)) as child:
        took = wait_healthy(child, port, "/health", PATIENCE_S)
        cpu = child.cpu_s()
        time.sleep(IDLE_S)
        return took, cpu, child.rss_mb() * 1e6


def measure_command(python: str, arguments: tuple[str, ...], directory: Path) -> float:
    began = time.perf_counter()
    command = [python, "-m", "dragoman", *arguments]
    subprocess.run(command, check=True, env=_environ(directory), stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def _environ(directory: Path) -> dict[str, str]:
    """Return an environment without credentials, and without a variable that forbids compiled files."""
    return {"HOME": str(directory), "PATH": os.environ["PATH"], "DRAGOMAN_DATA": str(directory)}


def main() -> None:
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    with TemporaryDirectory(prefix="dragoman-start-") as name:
        directory = Path(name)
        measure_start(python, directory)  # compiles what is not compiled yet, and makes the store
        starts = [measure_start(python, directory) for _ in range(RUNS)]
        took, cpu, memory = (median(column) for column in zip(*starts, strict=True))
        print(f"idle memory            {memory / MEGABYTE:5.1f} MB")
        print(f"start, until /health   {took:5.2f} s, {cpu:.2f} s of CPU")
        for arguments in COMMANDS:
            seconds = median(measure_command(python, arguments, directory) for _ in range(RUNS))
            print(f"dragoman {' '.join(arguments):<15}{seconds:5.2f} s")


if __name__ == "__main__":
    main()
