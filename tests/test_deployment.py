"""The files of a deployment: linted everywhere, and built and run where buildah, podman and runc are installed."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from e2e.raw_http import post

ROOT = Path(__file__).parents[1]
TOOLS = ("buildah", "podman", "runc", "mmdebstrap")
BASE = "localhost/dragoman-test-base"
IMAGE = "localhost/dragoman-test"
KEY = "dgm_fake-key-of-the-container-test"
# The default limits and the default runtime do not work inside another container.
RUN = (
    *("podman", "--runtime", "runc", "run", "--detach", "--rm", "--network", "host", "--read-only", "--tmpfs", "/tmp"),
    *("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges", "--env", f"DRAGOMAN_API_KEY={KEY}", "--env", "DRAGOMAN_LOCAL_PORTS="),
)

Yaml = dict[str, object]


def read_yaml(path: str) -> Yaml:
    return msgspec.yaml.decode((ROOT / path).read_bytes(), type=Yaml)


def run(*command: str, timeout_s: float = 600.0) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_the_dockerfile_is_sound() -> None:
    run(str(Path(sys.executable).with_name("hadolint")), "Dockerfile", timeout_s=60)


def test_the_image_is_locked_unprivileged_and_watched() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert len(re.findall(r"^FROM ", text, re.MULTILINE)) == 2
    assert "--require-hashes -r requirements-postgres.lock" in text
    assert "\nUSER 65532:65532\n" in text
    assert re.search(r"HEALTHCHECK .*\\\n.*/ready", text)
    assert "DRAGOMAN_DATA=/data" in text


def test_every_lock_has_hashes_and_no_index() -> None:
    for lock in ("requirements.lock", "requirements-postgres.lock", "requirements-dev.lock"):
        text = (ROOT / lock).read_text()
        assert "--hash=sha256:" in text
        assert "http" not in text.replace("httptools", "").replace("httpx", "").replace("httpcore", "")


def test_the_image_has_what_an_installation_has_and_the_driver_of_postgresql() -> None:
    names = [
        set(re.findall(r"^([a-z0-9-]+==\S+)", (ROOT / lock).read_text(), re.MULTILINE))
        for lock in ("requirements.lock", "requirements-postgres.lock")
    ]
    assert {name.partition("==")[0] for name in names[1] - names[0]} == {"asyncpg"}, "run: make lock"
    assert names[0] <= names[1]


def test_compose_is_closed_to_the_network_and_holds_no_secret() -> None:
    services = msgspec.convert(read_yaml("compose.yaml")["services"], dict[str, Yaml])
    assert set(services) == {"gateway", "prometheus", "grafana"}
    gateway = services["gateway"]
    assert (gateway["read_only"], gateway["cap_drop"], gateway["build"]) == (True, ["ALL"], ".")
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in msgspec.convert(service["ports"], list[str]))
        for volume in msgspec.convert(service["volumes"], list[str]):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (ROOT / source).exists(), volume
    settings = msgspec.convert(services["grafana"]["environment"], dict[str, str])
    assert settings["GF_SECURITY_ADMIN_PASSWORD"].startswith("${GRAFANA_PASSWORD:?")


def test_prometheus_and_grafana_find_each_other() -> None:
    scrapes = msgspec.convert(read_yaml("contrib/prometheus/prometheus.yaml")["scrape_configs"], list[Yaml])
    assert scrapes[0]["static_configs"] == [{"targets": ["gateway:8484"]}]
    assert read_yaml("contrib/grafana/provisioning/datasources/prometheus.yaml")["apiVersion"] == 1
    boards = msgspec.convert(
        read_yaml("contrib/grafana/provisioning/dashboards/dragoman.yaml")["providers"], list[Yaml]
    )
    assert boards[0]["options"] == {"path": "/var/lib/grafana/dashboards"}
    assert "/var/lib/grafana/dashboards/dragoman.json" in (ROOT / "compose.yaml").read_text()


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
def started_container(port: int) -> Iterator[str]:
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


@pytest.mark.slow
def test_the_image_is_built_and_answers_as_an_ordinary_user(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not all(map(shutil.which, TOOLS)):  # nothing here can build an image
        return
    make_base()
    build_image(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    with started_container(port) as name:
        wait_until_ready(port)
        body = b'{"model":"echo","messages":[{"role":"user","content":"Hello"}]}'
        answer = post(port, "/v1/chat/completions", body, key=KEY)
        assert (answer.status, b"Hello" in answer.body) == (200, True)
        assert "65532" in run("podman", "--runtime", "runc", "exec", name, "sh", "-c", "id -u")
        assert "dragoman.db" in run("podman", "--runtime", "runc", "exec", name, "ls", "/data")
