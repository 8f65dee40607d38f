"""The environment and a home directory come in; where our own and other tools' credentials may lie goes out."""

from collections.abc import Mapping
from pathlib import Path

CLI_DATABASE = "data.sqlite3"


def data_directory(environ: Mapping[str, str], home: Path) -> Path:
    """Where what we make ourselves is kept."""
    return _shared(environ, home) / "dragoman"


def kiro_places(environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Where a Kiro account's credentials may lie, in order: `dragoman login`, the IDE, kiro-cli, its predecessor."""
    roots = [_shared(environ, home), home / "Library" / "Application Support"]
    if environ.get("APPDATA"):
        roots.append(Path(environ["APPDATA"]))
    return (
        data_directory(environ, home) / "kiro.json",
        home / ".aws" / "sso" / "cache" / "kiro-auth-token.json",
        *(root / "kiro-cli" / CLI_DATABASE for root in roots),
        *(root / "amazon-q" / CLI_DATABASE for root in roots),
    )


def installed_kiro(environ: Mapping[str, str], home: Path) -> Path | None:
    """The first of those places that has a file."""
    return next((path for path in kiro_places(environ, home) if path.is_file()), None)


def _shared(environ: Mapping[str, str], home: Path) -> Path:
    return Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")
