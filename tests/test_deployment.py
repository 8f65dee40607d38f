"""The files of a deployment are sound; `make test-container` and `make test-monitoring` run them."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
Yaml = dict[str, object]


def read_yaml(path: str) -> Yaml:
    return msgspec.yaml.decode((ROOT / path).read_bytes(), type=Yaml)


def test_the_dockerfile_is_sound() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([str(hadolint), "Dockerfile"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


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
