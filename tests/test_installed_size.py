"""What an installation without extras takes on disk, and what the gateway needs that it does not contain."""

import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

import dragoman

MEGABYTE = 1024 * 1024  # as du counts them
MOST_MB = 60
ROOT = Path(__file__).parents[1]
POSTGRES = "sys.modules['asyncpg'] = None"


def runtime_distributions() -> dict[str, Distribution]:
    """Return all packages that an installation without extras brings, by name."""
    found: dict[str, Distribution] = {}
    lines = list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    while lines:
        wanted = Requirement(lines.pop())
        is_needed = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if is_needed and wanted.name not in found:
            found[wanted.name] = distribution(wanted.name)
            lines += found[wanted.name].requires or ()
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


def test_postgresql_without_its_driver_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text('[store]\nurl = "postgresql://someone@127.0.0.1:1/none"\n')
    code = (
        f"import sys; {POSTGRES}; sys.argv = ['dragoman', 'keys', 'list']; from dragoman.cli.main import main; main()"
    )
    command = [sys.executable, "-c", code]
    shown = subprocess.run(
        command, cwd=tmp_path, env={"HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60
    )
    assert shown.returncode == 1
    assert shown.stderr.strip().endswith('Run: pip install "dragoman[postgres]"'), shown.stderr


def test_serving_loads_nothing_that_is_not_used(tmp_path: Path) -> None:
    """Each of these costs a megabyte or more, in every gateway."""
    names = [
        *("asyncpg", "backports.zstd", "brotli", "csv", "email.utils", "html", "importlib.resources", "jsonschema_rs"),
        *("tempfile", "dragoman.protocols.kiro.build", "dragoman.providers.kiro.provider"),
        *("dragoman.providers.codex.provider", "dragoman.flow.relay.relayed_call"),
    ]
    code = f"import sys, dragoman.app, dragoman.cli.serve; print([name for name in {names} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert shown.stdout.strip() == "[]", shown.stderr
