"""Each way to install that README.md names leads to an answer, from a copy of the checkout and with an empty home."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raw_http import ask, request_bytes
from readme import INSTALLS, ROOT
from waiting import wait_until

pytestmark = pytest.mark.rest

MAKE, UVX, PIPX, WHEEL = INSTALLS

HELLO = b'{"model":"echo","max_tokens":99,"messages":[{"role":"user","content":"Hello"}]}'
BANNER = re.compile(r"listens on http://127\.0\.0\.1:(\d+)[\s\S]*export DRAGOMAN_API_KEY=(dgm_\w+)")
PATIENCE_S = 600.0  # for downloads
# Where packages come from is a setting of the machine, not of the user.
PACKAGE_SETTINGS = re.compile(r"PIP_|UV_|SSL_CERT|REQUESTS_CA|.*_proxy$", re.IGNORECASE)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of what the repository holds, with a free port instead of 8484, which may be in use."""
    copy = tmp_path / "checkout"
    list_files = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(list_files, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in listed.split("\0"):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    (copy / "dragoman.toml").write_text("[server]\nport = 0\n")
    return copy


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a directory with this Python as python3."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    return folder


@contextmanager
def run_gateway(line: str, checkout: Path, home: Path, *path: Path) -> Iterator[re.Match[str]]:
    """Run a line of the page in a shell until its gateway listens; yield the port and the key that it printed."""
    home.mkdir()
    settings = {name: value for name, value in os.environ.items() if PACKAGE_SETTINGS.match(name)}
    programs = os.pathsep.join(map(str, (*path, home / ".local" / "bin", "/usr/bin", "/bin")))
    process = subprocess.Popen(
        ["sh", "-c", line],
        cwd=checkout,
        env={**settings, "HOME": str(home), "PATH": programs, "DRAGOMAN_LOCAL_PORTS": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    reader = threading.Thread(target=lines.extend, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        wait_until(lambda: BANNER.search("".join(lines)) or process.poll() is not None, PATIENCE_S)
        found = BANNER.search("".join(lines))
        assert found is not None, "".join(lines)
        yield found
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
        reader.join(60)


def check_answer(banner: re.Match[str]) -> None:
    port, key = int(banner[1]), banner[2]
    answered = ask(port, request_bytes("/v1/messages", HELLO, f"x-api-key: {key}", key=None))
    assert answered.status == 200
    assert b'"text":"Hello"' in answered.body


def test_make_run_answers_on_the_usual_port_or_another(checkout: Path, programs: Path, tmp_path: Path) -> None:
    with run_gateway(MAKE, checkout, tmp_path / "home", programs) as banner:
        check_answer(banner)
    (checkout / "dragoman.toml").unlink()
    with run_gateway(f"PORT=0 {MAKE}", checkout, tmp_path / "another", programs) as banner:
        check_answer(banner)


def test_uv_and_pipx_answer(checkout: Path, programs: Path, tmp_path: Path) -> None:
    """Both are installed here; one environment less for the extras of docs/install.md."""
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    tools = tmp_path / "venv" / "bin"
    subprocess.run([tools / "python", "-m", "pip", "install", "--quiet", "uv", "pipx"], check=True, timeout=PATIENCE_S)
    for name in ("uv", "uvx", "pipx"):
        (programs / name).symlink_to(tools / name)
    for line in (UVX, PIPX):
        with run_gateway(line, checkout, tmp_path / line[:3], programs) as banner:
            check_answer(banner)
    for extra, module in (("postgres", "asyncpg"), ("vertex", "cryptography")):
        assert f"'.[{extra}]'" in (ROOT / "docs" / "install.md").read_text()
        code = f"import dragoman, {module}"
        words = [str(tools / "uv"), "run", "--no-project", "--with", f".[{extra}]", "python", "-c", code]
        subprocess.run(words, cwd=checkout, env={**os.environ, "HOME": str(tmp_path)}, check=True, timeout=PATIENCE_S)


def test_the_wheel_answers(checkout: Path, tmp_path: Path) -> None:
    """In an environment of the user's: pip refuses to install into that of the system."""
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    with run_gateway(WHEEL, checkout, tmp_path / "home", tmp_path / "venv" / "bin") as banner:
        check_answer(banner)
