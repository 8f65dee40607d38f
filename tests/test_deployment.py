"""The files of a deployment are sound; `make test-container` and `make test-monitoring` run them."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dragoman.config.load import ConfigSource
from dragoman.config.settings import ResponsesSettings, ServerSettings

ROOT = Path(__file__).parents[1]
COMPOSE = (ROOT / "compose.yaml").read_text()
GATEWAYS = ("gateway-1", "gateway-2")
Yaml = dict[str, object]
DRIVERS = {"asyncpg", "cffi", "cryptography", "hiredis", "pycparser", "redis"}


def read_yaml(path: str) -> Yaml:
    return msgspec.yaml.decode((ROOT / path).read_bytes(), type=Yaml)


def test_the_dockerfile_is_sound() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([str(hadolint), "Dockerfile"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_image_is_locked_unprivileged_and_watched() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert len(re.findall(r"^FROM ", text, re.MULTILINE)) == 2
    assert "--require-hashes -r requirements-cluster.lock" in text
    assert "\nUSER 65532:65532\n" in text
    assert re.search(r"HEALTHCHECK .*\\\n.*/ready", text)
    assert "DRAGOMAN_DATA=/data" in text


def test_every_lock_has_hashes_and_no_index() -> None:
    for lock in ("requirements.lock", "requirements-cluster.lock", "requirements-dev.lock"):
        text = (ROOT / lock).read_text()
        assert "--hash=sha256:" in text
        assert "http" not in text.replace("httptools", "").replace("httpx", "").replace("httpcore", "")


def test_the_image_has_what_an_installation_has_and_the_drivers_of_several_gateways() -> None:
    names = [
        set(re.findall(r"^([a-z0-9-]+==\S+)", (ROOT / lock).read_text(), re.MULTILINE))
        for lock in ("requirements.lock", "requirements-cluster.lock")
    ]
    assert {name.partition("==")[0] for name in names[1] - names[0]} - {"async-timeout"} == DRIVERS, "run: make lock"
    assert names[0] <= names[1]


def test_files_with_keys_are_neither_committed_nor_copied_into_the_image(tmp_path: Path) -> None:
    """compose.yaml says to make an .env, and `dragoman config init` writes dragoman.toml."""
    (tmp_path / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True, timeout=60)
    names = [".env", "dragoman.toml", "some/folder/.env"]
    done = subprocess.run(["git", "check-ignore", *names], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == names
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    last_allowed = max(index for index, line in enumerate(ignored) if line.startswith("!"))
    assert {"**/.env", "**/dragoman.toml"} <= set(ignored[last_allowed + 1 :])


def read_services() -> dict[str, Yaml]:
    return msgspec.convert(read_yaml("compose.yaml")["services"], dict[str, Yaml])


def test_compose_is_closed_to_the_network_and_holds_no_secret() -> None:
    services = read_services()
    opened = {"balancer", "prometheus", "grafana"}
    assert set(services) == {*GATEWAYS, *opened, "postgres", "valkey"}
    for name, service in services.items():
        ports = msgspec.convert(service.get("ports", []), list[str])
        assert bool(ports) == (name in opened), name
        assert all(port.startswith("127.0.0.1:") for port in ports)
        for volume in msgspec.convert(service.get("volumes", []), list[str]):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (ROOT / source).exists(), volume
    secrets = re.findall(r"[A-Z_]+_PASSWORD: (.+)|PGPASSWORD: (.+)|requirepass\", \"(.+)\"\]|valkey://:(.+)@", COMPOSE)
    assert len(secrets) == 5
    assert all("".join(found).startswith("${") and "_PASSWORD:?set it in .env}" in "".join(found) for found in secrets)


def test_the_gateways_of_compose_are_alike_locked_and_started_in_turn() -> None:
    services = read_services()
    first, second = (services[name] for name in GATEWAYS)
    assert {name: first[name] for name in first if name not in ("volumes", "depends_on")} == {
        name: second[name] for name in second if name not in ("volumes", "depends_on")
    }
    assert (first["read_only"], first["cap_drop"], first["build"]) == (True, ["ALL"], ".")
    assert second["depends_on"] == {"gateway-1": {"condition": "service_healthy"}}, "one makes the tables"
    assert float(str(first["stop_grace_period"]).removesuffix("s")) > ServerSettings().drain_s
    assert set(re.findall(r"^#.*for name in ([A-Z ]+);", COMPOSE, re.MULTILINE)[0].split()) == {
        name.removesuffix("_PASSWORD") for name in re.findall(r"\$\{(\w+_PASSWORD):", COMPOSE)
    }


def test_the_configuration_of_compose_is_accepted_and_names_its_servers(tmp_path: Path) -> None:
    text = (ROOT / "contrib/compose/gateways.toml").read_text()
    (tmp_path / "dragoman.toml").write_text(text)
    config = ConfigSource(None, {}, tmp_path, tmp_path).read({})
    assert config.store.url == "postgresql://dragoman@postgres/dragoman"
    assert 'shared = "env:DRAGOMAN_SHARED"' in text
    assert "@valkey:6379/0" in COMPOSE


@pytest.mark.parametrize("name", ["haproxy/haproxy.cfg", "nginx/dragoman.conf"])
def test_a_balancer_waits_longer_than_a_gateway_and_sends_nothing_twice(name: str) -> None:
    text = (ROOT / "contrib" / name).read_text()
    waits = re.findall(r"(?:timeout (?:client|server)|_(?:read|send)_timeout) +(\d+)m", text)
    assert len(waits) == 2
    server = ServerSettings()
    silence_s = max(server.idle_timeout_s, server.token_timeout_s, server.first_token_timeout_s)
    assert all(int(minutes) * 60 >= silence_s for minutes in waits)
    assert set(re.findall(r"gateway-\d:8484", text)) == {f"{one}:8484" for one in GATEWAYS}
    retried = re.findall(r"^ *(?:retry-on|proxy_next_upstream) +(.+)$", text, re.MULTILINE)
    assert retried in (["conn-failure"], ["error timeout;"]), "nginx sends no POST again that it has begun to send"
    tunnels = re.findall(r"timeout tunnel (\d+)m", text)
    assert all(int(minutes) * 60 > ResponsesSettings().socket_max_s for minutes in tunnels)


def test_prometheus_and_grafana_find_each_other() -> None:
    scrapes = msgspec.convert(read_yaml("contrib/prometheus/prometheus.yaml")["scrape_configs"], list[Yaml])
    assert scrapes[0]["static_configs"] == [{"targets": [f"{name}:8484" for name in GATEWAYS]}]
    assert read_yaml("contrib/grafana/provisioning/datasources/prometheus.yaml")["apiVersion"] == 1
    boards = msgspec.convert(
        read_yaml("contrib/grafana/provisioning/dashboards/dragoman.yaml")["providers"], list[Yaml]
    )
    assert boards[0]["options"] == {"path": "/var/lib/grafana/dashboards"}
    assert "/var/lib/grafana/dashboards/dragoman.json" in COMPOSE
