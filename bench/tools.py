"""What the benchmark needs: missing programs are installed where that is possible, else their absence is said."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-bench"
OTHER_VENV = ROOT / ".venv-bench-python"  # dragoman on another interpreter
COMMITS = ROOT / ".venv-bench-beside"  # dragoman of other commits, a directory each
LITELLM = VENV / "bin" / "litellm"
LITELLM_VERSION = "1.106.2"
PY_SPY_VERSION = "0.4.3"
APT_S = 300
PIP_S = 1200
PACKAGES = {"nginx": "nginx-light", "wrk": "wrk", "rsvg-convert": "librsvg2-bin", "valgrind": "valgrind"}


def say(text: str) -> None:
    print(text, flush=True)


def has_program(name: str) -> bool:
    """Looks where daemons live too, which an ordinary user's PATH may lack."""
    return shutil.which(name) is not None or shutil.which(name, path="/usr/sbin:/usr/local/sbin") is not None


def get_program(name: str) -> bool:
    """Whether the program is there in the end."""
    if has_program(name):
        return True
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say(f"{name} is not installed, and only root on a system with apt-get can install it from here.")
        return False
    say(f"Installing {PACKAGES[name]} with apt-get ...")
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # installed, not started
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", PACKAGES[name]]):
        done = subprocess.run(["apt-get", *command], env=environ, capture_output=True, timeout=APT_S, check=False)
        if done.returncode != 0:
            say(f"apt-get {command[0]} failed: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return has_program(name)


def get_litellm() -> bool:
    """LiteLLM's proxy; about 750 MB with all that it needs."""
    return _get_package(f"litellm[proxy]=={LITELLM_VERSION}", LITELLM)


def get_py_spy() -> bool:
    return _get_package(f"py-spy=={PY_SPY_VERSION}", VENV / "bin" / "py-spy")


def _get_package(requirement: str, program: Path) -> bool:
    """Installs into an environment of its own, whose dependencies need not agree with ours."""
    stamp = VENV / f".has-{requirement}"
    if stamp.exists() and program.exists():
        return True
    say(f"Installing {requirement} into {VENV.name} (once; may take minutes) ...")
    make = [sys.executable, "-m", "venv", str(VENV)]
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off"]
    for step in (make, [*pip, requirement]):
        if not _run_visibly(step):
            say(f"{requirement} could not be installed; what needs it is left out.")
            return False
    (VENV / ".gitignore").write_text("*\n")
    stamp.touch()
    return True


def install_on_other_python(python: str) -> bool:
    """Install dragoman with its locked dependencies into an environment of another interpreter."""
    stamp = OTHER_VENV / ".python"
    lock = ROOT / "requirements.lock"
    is_current = stamp.exists() and stamp.stat().st_mtime > lock.stat().st_mtime
    if is_current and stamp.read_text() == python:
        return True
    say(f"Installing dragoman for {python} into {OTHER_VENV.name} (once; may take minutes) ...")
    if not _install_tree(ROOT, python, OTHER_VENV):
        say(f"dragoman could not be installed for {python}.")
        return False
    (OTHER_VENV / ".gitignore").write_text("*\n")
    stamp.write_text(python)
    return True


def find_commit(revision: str) -> str | None:
    """Return the abbreviated hash of a commit of this repository, or None if there is no such commit."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", "--short", f"{revision}^{{commit}}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip() or None


def extract_commit(revision: str, directory: Path) -> None:
    """Write the files of a commit into a directory."""
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", revision], stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "-C", str(directory)], input=archive.stdout, check=True)


def python_of_commit(commit: str) -> Path:
    return COMMITS / commit / "python" / "bin" / "python"


def install_commit(commit: str) -> bool:
    """Install dragoman of another commit with the dependencies that it locks, on the interpreter of this process."""
    directory = COMMITS / commit
    stamp = directory / ".python"
    if stamp.exists() and stamp.read_text() == sys.base_prefix:
        return True
    say(f"Installing dragoman of {commit} into {COMMITS.name} (once; may take minutes) ...")
    shutil.rmtree(directory, ignore_errors=True)
    tree = directory / "tree"
    tree.mkdir(parents=True)
    (COMMITS / ".gitignore").write_text("*\n")
    extract_commit(commit, tree)
    if not _install_tree(tree, sys.executable, directory / "python"):
        say(f"dragoman of {commit} could not be installed.")
        return False
    stamp.write_text(sys.base_prefix)
    return True


def _install_tree(tree: Path, python: str, venv: Path) -> bool:
    """Install dragoman of a source tree, and its locked dependencies, into a new environment."""
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off"]
    steps = (
        [python, "-m", "venv", "--clear", str(venv)],
        [*pip, "--require-hashes", "-r", str(tree / "requirements.lock")],
        [*pip, "--no-deps", "--no-build-isolation", "-e", str(tree)],
    )
    return all(_run_visibly(step) for step in steps)


VERSION_CODE = """
import platform, sysconfig
print(platform.python_version(), "PGO" if sysconfig.get_config_var("PGO_PROF_USE_FLAG") else "")
"""


def describe_python(python: str) -> str:
    """Return where an interpreter is, its version, and that it was built with PGO; Debian's is, without saying so."""
    done = subprocess.run([python, "-c", VERSION_CODE], capture_output=True, text=True, timeout=30, check=True)
    version, *built = done.stdout.split()
    return f"Python {version} of {python}{', with PGO' if built else ''}"


def _run_visibly(command: list[str]) -> bool:
    """Runs a long installation and shows a dot for every few lines that it prints."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        tail: list[str] = []
        for number, line in enumerate(running.stdout):
            tail = [*tail[-4:], line]
            if number % 10 == 0:
                print(".", end="", flush=True)
        print(flush=True)
        code = running.wait(PIP_S)
    if code != 0:
        say("".join(tail).strip())
    return code == 0


def version_of(name: str) -> str:
    """As the program itself reports it."""
    match name:
        case "litellm":
            return LITELLM_VERSION
        case "dragoman":
            from dragoman import __version__

            return __version__
        case _:
            path = shutil.which(name) or f"/usr/sbin/{name}"
            done = subprocess.run([path, "-v"], capture_output=True, text=True, timeout=10, check=False)
            words = (done.stderr + done.stdout).split("\n")[0].replace("/", " ").split()
            return next((word for word in words if word[0].isdigit()), "unknown")
