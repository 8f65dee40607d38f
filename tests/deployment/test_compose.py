"""The services of compose.yaml, in containers of Debian's packages: a gateway is killed, and the other one answers.

The images of the registry are not to be had: PostgreSQL, Redis for Valkey and HAProxy are Debian's, and started as the
official images start theirs. Prometheus and Grafana are left out.
"""

import re
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct, field

from deployment.containers import NESTED, PODMAN, ROOT, find_free_port, import_debian, run, wait_for_log
from raw_http import get, post

SERVERS = "localhost/dragoman-test-servers"
KEY = re.compile(r"dgm_[A-Za-z0-9]{43}")
VARIABLE = re.compile(r"\$\{(\w+):\?[^}]*\}")
BODY = b'{"model":"echo","messages":[{"role":"user","content":"Hello"}]}'
REQUESTS = 20
HEALTHY_S = 90.0
# What the official images do at their start.
START_POSTGRES = """
set -e
directory=/var/lib/postgresql/data
chown postgres $directory
export PATH=/usr/lib/postgresql/15/bin:$PATH
if [ ! -e $directory/PG_VERSION ]; then
    (umask 077; printf %s "$POSTGRES_PASSWORD" > /tmp/password; chown postgres /tmp/password)
    su postgres -c "PATH=$PATH initdb -D $directory -U $POSTGRES_USER -A scram-sha-256 --pwfile=/tmp/password"
    printf 'host all all all scram-sha-256\\nlocal all all trust\\n' > $directory/pg_hba.conf
    su postgres -c "PATH=$PATH pg_ctl -D $directory -o '-h \\"\\" -k /tmp' -w start"
    su postgres -c "PATH=$PATH createdb -h /tmp -U $POSTGRES_USER $POSTGRES_USER"
    su postgres -c "PATH=$PATH pg_ctl -D $directory -w stop"
fi
exec su postgres -c "PATH=$PATH exec postgres -D $directory -h '*' -k /tmp"
"""
IMAGES = {
    "postgres": ("sh", "-c", START_POSTGRES),
    "valkey/valkey": ("redis-server",),
    "haproxy": ("haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"),
}


class Service(Struct):
    """What compose.yaml says of a service, as far as it counts here."""

    image: str
    environment: dict[str, str] = field(default_factory=dict)
    volumes: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    tmpfs: list[str] = field(default_factory=list)
    cap_drop: list[str] = field(default_factory=list)
    security_opt: list[str] = field(default_factory=list)
    read_only: bool = False


@dataclass
class Composed:
    """The containers that run, by service."""

    prefix: str
    port: int

    def name(self, service: str) -> str:
        return f"{self.prefix}-{service}"

    def is_healthy(self, *check: str) -> bool:
        done = subprocess.run([*PODMAN, *check], capture_output=True, timeout=60)
        return done.returncode == 0


def read_services() -> dict[str, Service]:
    text = VARIABLE.sub(lambda found: f"fake-{found[1].lower()}", (ROOT / "compose.yaml").read_text())
    return msgspec.convert(msgspec.yaml.decode(text, type=dict[str, object])["services"], dict[str, Service])


def wait_until_healthy(composed: Composed, *check: str) -> None:
    until = time.monotonic() + HEALTHY_S
    while not composed.is_healthy(*check):
        assert time.monotonic() < until, run(*PODMAN, "logs", composed.name(check[2]))
        time.sleep(0.2)


def write_options(service: Service, prefix: str, port: int) -> Iterator[str]:
    for name, value in service.environment.items():
        yield from ("--env", f"{name}={value}")
    for volume in service.volumes:
        yield from ("--volume", f"{ROOT}/{volume[2:]}" if volume.startswith("./") else f"{prefix}-{volume}")
    for published in service.ports:
        yield from ("--publish", f"127.0.0.1:{port}:{published.rpartition(':')[2]}")
    for option, values in (
        ("--tmpfs", service.tmpfs),
        ("--cap-drop", service.cap_drop),
        ("--security-opt", [one.replace(":true", "") for one in service.security_opt]),
    ):
        for value in values:
            yield from (option, value)
    if service.read_only:
        yield "--read-only"


@contextmanager
def start_service(composed: Composed, name: str, image: str, addresses: dict[str, str]) -> Iterator[None]:
    service = read_services()[name]
    command = list(service.command)
    if service.image != "dragoman":
        command = [*IMAGES[service.image.partition(":")[0]], *command[1:]]
        image = SERVERS
    options = list(write_options(service, composed.prefix, composed.port))
    hosts = [word for other, address in addresses.items() for word in ("--add-host", f"{other}:{address}")]
    place = ("--name", composed.name(name), "--network", composed.prefix, "--ip", addresses[name])
    run(*PODMAN, "run", *NESTED, *place, *hosts, *options, image, *command)
    try:
        yield
    finally:
        run(*PODMAN, "rm", "--force", "--volumes", "--time", "5", composed.name(name))


def remove_volumes(prefix: str) -> None:
    for volume in run(*PODMAN, "volume", "ls", "--quiet", "--filter", f"name={prefix}").split():
        run(*PODMAN, "volume", "rm", "--force", volume)


@contextmanager
def compose(image: str) -> Iterator[Composed]:
    """Start the services in the order in which they depend on each other."""
    prefix, subnet = f"dragoman-{secrets.token_hex(3)}", secrets.randbelow(200)
    import_debian("servers", "postgresql,redis-server,haproxy", SERVERS)
    composed = Composed(prefix, find_free_port())
    names = ("postgres", "valkey", "gateway-1", "gateway-2", "balancer")
    addresses = {name: f"10.89.{subnet}.{place}" for place, name in enumerate(names, 2)}
    with ExitStack() as stack:
        run(*PODMAN, "network", "create", "--subnet", f"10.89.{subnet}.0/24", prefix)
        stack.callback(run, *PODMAN, "network", "rm", "--force", prefix)
        stack.callback(remove_volumes, prefix)
        for name in names:
            stack.enter_context(start_service(composed, name, image, addresses))
            if name == "postgres":
                wait_until_healthy(composed, "exec", "--", composed.name(name), "pg_isready", "-h", "127.0.0.1")
            elif name.startswith("gateway"):
                wait_until_healthy(composed, "healthcheck", "run", composed.name(name))
        yield composed


@pytest.fixture(scope="module")
def composed(image: str) -> Iterator[Composed]:
    with compose(image) as started:
        yield started


def test_a_killed_gateway_of_compose_costs_no_request_and_comes_back(composed: Composed, tmp_path: Path) -> None:
    [key] = KEY.findall(wait_for_log(composed.name("gateway-1"), "--write"))
    assert KEY.search(wait_for_log(composed.name("gateway-2"), "listens on")) is None, "they share their keys"

    def ask() -> int:
        return post(composed.port, "/v1/chat/completions", BODY, key=key).status

    assert {ask() for _ in range(REQUESTS)} == {200}
    assert post(composed.port, "/v1/chat/completions", BODY, key="dgm_fake-wrong").status == 401
    run(*PODMAN, "kill", composed.name("gateway-1"))
    assert {ask() for _ in range(REQUESTS)} == {200}
    run(*PODMAN, "start", composed.name("gateway-1"))
    wait_until_healthy(composed, "healthcheck", "run", composed.name("gateway-1"))
    run(*PODMAN, "kill", composed.name("gateway-2"))
    assert {ask() for _ in range(REQUESTS)} == {200}
    assert get(composed.port, "/ready").body == b'{"status":"ready"}'
