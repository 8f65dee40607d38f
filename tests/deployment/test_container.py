"""The container image, built without a registry, and started with the command lines that the documents give."""

import os
import re
import secrets
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raw_http import post

ROOT = Path(__file__).parents[2]
BASE = "localhost/dragoman-test-base"
IMAGE = "localhost/dragoman-test"
PODMAN = ("podman", "--runtime", "runc")
# The default limits do not work inside another container.
NESTED = ("--detach", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
DOCUMENTED = re.compile(r"docker run ((?:[^\n\\]|\\\n)*) dragoman$", re.MULTILINE)
KEY = re.compile(r"dgm_[A-Za-z0-9]{43}")
BODY = b'{"model":"echo","messages":[{"role":"user","content":"Hello"}]}'
PATIENCE_S = 60.0


def run(*command: str, timeout_s: float = 600.0) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def make_base() -> None:
    """Import a small Debian with Python, made once, as the base image: no registry is needed."""
    archive = Path(sys.prefix) / "container-base.tar"
    if not archive.exists():
        begun = archive.with_name("container-base.begun.tar")
        packages = "--include=python3,python3-venv,ca-certificates"
        run("mmdebstrap", "--variant=minbase", packages, "bookworm", str(begun))
        begun.rename(archive)
    run("podman", "import", str(archive), BASE)


def build_image(wheels: Path) -> None:
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "-r", "requirements-postgres.lock")
    versions = ("--only-binary", ":all:", "--python-version", "3.11", "--dest", str(wheels))
    run(*pip, *versions)
    (wheels / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    options = ("--isolation", "chroot", "--pull-never", "--format", "docker", "--build-arg", f"BASE={BASE}")
    offline = ("--volume", f"{wheels}:/wheels:ro", "--volume", f"{wheels}/pip.conf:/etc/pip.conf:ro")
    run("buildah", "build", *options, *offline, "--tag", IMAGE, ".")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    make_base()
    build_image(tmp_path_factory.mktemp("wheels"))
    return IMAGE


def read_command(document: str) -> list[str]:
    """Return the options of the only `docker run` in a document."""
    [options] = DOCUMENTED.findall((ROOT / document).read_text())
    return shlex.split(options.replace("\\\n", " "))


@contextmanager
def start_container(options: list[str], port: int, volume: str, image: str) -> Iterator[str]:
    replaced = {"127.0.0.1:8484:8484": f"127.0.0.1:{port}:8484", "dragoman:/data": f"{volume}:/data"}
    assert set(replaced) <= set(options)
    name = run(*PODMAN, "run", *NESTED, *(replaced.get(word, word) for word in options), image).strip()
    try:
        yield name
    finally:
        run(*PODMAN, "stop", "--time", "10", name)


def wait_for_log(container: str, text: str) -> str:
    """Return the container's output once it holds this text."""
    until = time.monotonic() + PATIENCE_S
    while text not in (output := run(*PODMAN, "logs", container)):
        assert time.monotonic() < until, output
        time.sleep(0.1)
    return output


def find_free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("document", ["README.md", "docs/install.md"])
def test_the_documented_command_makes_a_key_prints_it_once_and_answers(image: str, document: str) -> None:
    options, port, volume = read_command(document), find_free_port(), f"dragoman-test-{secrets.token_hex(4)}"
    try:
        with start_container(options, port, volume, image) as name:
            output = wait_for_log(name, "--write")
            [key] = KEY.findall(output)
            answer = post(port, "/v1/chat/completions", BODY, key=key)
            assert (answer.status, b"Hello" in answer.body) == (200, True)
            assert post(port, "/v1/chat/completions", BODY, key="dgm_fake-wrong").status == 401
            assert "65532" in run(*PODMAN, "exec", name, "sh", "-c", "id -u")
            assert "dragoman.db" in run(*PODMAN, "exec", name, "ls", "/data")
        with start_container(options, port, volume, image) as name:
            assert KEY.search(wait_for_log(name, "--write")) is None
            assert post(port, "/v1/chat/completions", BODY, key=key).status == 200
    finally:
        run("podman", "volume", "rm", "--force", volume)
