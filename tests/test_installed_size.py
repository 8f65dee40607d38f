"""What an installation without extras takes on disk, and what the gateway needs that it does not contain."""

import signal
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, distribution
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import dragoman
from dragoman.translate.protocols import PROTOCOLS

MEGABYTE = 1024 * 1024  # as du counts them
MOST_MB = 60
ROOT = Path(__file__).parents[1]


def runtime_distributions() -> dict[str, Distribution]:
    """Return all packages that an installation without extras brings, by name."""
    found: dict[str, Distribution] = {}
    lines = list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    while lines:
        requirement = Requirement(lines.pop())
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_needed and requirement.name not in found:
            found[requirement.name] = distribution(requirement.name)
            lines += found[requirement.name].requires or ()
    return found


def size_of(package: Distribution) -> int:
    paths = (Path(str(package.locate_file(file))) for file in package.files or ())
    return sum(path.stat().st_size for path in paths if path.is_file())


def test_an_installation_takes_at_most_sixty_megabytes() -> None:
    sizes = {name: size_of(package) / MEGABYTE for name, package in runtime_distributions().items()}
    [own] = dragoman.__path__
    sizes["dragoman"] = sum(path.stat().st_size for path in Path(own).rglob("*") if path.is_file()) / MEGABYTE
    assert sum(sizes.values()) <= MOST_MB, sizes


def test_an_installation_has_no_extra() -> None:
    assert {"asyncpg", "splintr-rs", "zstandard"} & set(runtime_distributions()) == set()


@pytest.mark.parametrize(
    ("setting", "driver", "command"),
    [
        ('url = "postgresql://someone@127.0.0.1:1/none"', "asyncpg", "keys list"),
        ('shared = "valkey://127.0.0.1:1"', "redis", "serve --port 0"),
    ],
)
def test_a_server_without_its_driver_says_what_to_install(
    tmp_path: Path, setting: str, driver: str, command: str
) -> None:
    (tmp_path / "dragoman.toml").write_text(f"[store]\n{setting}\n")
    arguments = ["dragoman", *command.split()]
    code = f"import sys; sys.modules['{driver}'] = None; sys.argv = {arguments}; from dragoman.cli.main import main"
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}; main()"],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "DRAGOMAN_LOCAL_PORTS": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.returncode == 1
    assert f"Run: pip install {driver}" in shown.stderr, shown.stderr


NOT_LOADED = (  # each costs up to a megabyte, in every gateway
    *("asyncpg", "backports.zstd", "csv", "email.utils", "html", "importlib.resources", "jsonschema_rs"),
    *(
        "genai_prices",
        "pydantic",
        "redis",
        "shutil",
        "tempfile",
        "tomlkit",
        "dragoman.upstreams.kiro.provider",
        "dragoman.upstreams.codex.provider",
    ),
    *("dragoman.proxy.relay", "dragoman.proxy.replies.relayed", "dragoman.proxy.form_upload"),
    *("dragoman.server.websocket", "dragoman.proxy.capture.lookups"),
    *("dragoman.server.api.requests", "dragoman.server.api.captures", "dragoman.server.api.config"),
    *("dragoman.server.api.providers", "dragoman.server.api.sign_in", "dragoman.server.api.openapi"),
    *(
        "dragoman.operate.diagnosis.diagnosis",
        "dragoman.operate.captures.replay",
        "dragoman.operate.clients.connecting",
        "dragoman.operate.sign_in",
    ),
    *("dragoman.store.postgres", "dragoman.operate.metrics.exporter", "dragoman.operate.configuration.toml_edit"),
)


def import_until(command: list[str], directory: Path, last_line: str) -> set[str]:
    """Run a command until it prints a line, and return the names of all modules that it has imported."""
    environ = {"HOME": str(directory), "PYTHONUNBUFFERED": "1"}
    with (
        (directory / "stderr").open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "dragoman", *command],
            cwd=directory,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        assert any(last_line in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    lines = (directory / "stderr").read_text().splitlines()
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


def test_serving_loads_nothing_that_is_not_used(tmp_path: Path) -> None:
    loaded = import_until(["serve", "--port", "0"], tmp_path, "dragoman connect")
    assert "dragoman.app" in loaded
    assert loaded.isdisjoint(NOT_LOADED), loaded.intersection(NOT_LOADED)
    late = {"gemini", "kiro"}
    assert {f"dragoman.translate.protocols.{name}.build" for name in PROTOCOLS.keys() - late} <= loaded
    assert loaded.isdisjoint({f"dragoman.translate.protocols.{name}.build" for name in late})


def test_what_a_start_must_not_load_exists() -> None:
    assert [name for name in NOT_LOADED if name.startswith("dragoman.") and find_spec(name) is None] == []


def test_version_and_help_load_no_command(tmp_path: Path) -> None:
    for option, last_line in (("--version", "version"), ("--help", "completion")):
        loaded = import_until([option], tmp_path, last_line)
        assert {name for name in loaded if name.startswith("dragoman.")} == {"dragoman.cli", "dragoman.cli.main"}
        assert "click" in loaded
        assert loaded.isdisjoint({"msgspec", "asyncio"})
