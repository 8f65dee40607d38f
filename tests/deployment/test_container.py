"""The container image, built without a registry and run read-only and without capabilities."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raw_http import post

ROOT = Path(__file__).parents[2]
BASE = "localhost/dragoman-test-base"
IMAGE = "localhost/dragoman-test"
KEY = "dgm_fake-key-of-the-container-test"
# The default limits and the default runtime do not work inside another container.
RUN = (
    *("podman", "--runtime", "runc", "run", "--detach", "--rm", "--network", "host", "--read-only", "--tmpfs", "/tmp"),
    *("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges", "--env", f"DRAGOMAN_API_KEY={KEY}", "--env", "DRAGOMAN_LOCAL_PORTS="),
)


def run(*command: str, timeout_s: float = 600.0) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
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


@contextmanager
def start_container(port: int) -> Iterator[str]:
    name = run(*RUN, "--volume", "/data", IMAGE, "serve", "--host", "127.0.0.1", "--port", str(port)).strip()
    try:
        yield name
    finally:
        run("podman", "stop", "--time", "10", name)


def wait_until_ready(port: int) -> None:
    patience = time.monotonic() + 60
    while time.monotonic() < patience:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the container does not listen")


def test_the_image_is_built_and_answers_as_an_ordinary_user(tmp_path: Path) -> None:
    make_base()
    build_image(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    with start_container(port) as name:
        wait_until_ready(port)
        body = b'{"model":"echo","messages":[{"role":"user","content":"Hello"}]}'
        answer = post(port, "/v1/chat/completions", body, key=KEY)
        assert (answer.status, b"Hello" in answer.body) == (200, True)
        assert "65532" in run("podman", "--runtime", "runc", "exec", name, "sh", "-c", "id -u")
        assert "dragoman.db" in run("podman", "--runtime", "runc", "exec", name, "ls", "/data")
