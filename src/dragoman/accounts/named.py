"""A setting that names a credential comes in; the file that it means goes out, or the secret itself."""

from collections.abc import Callable, Mapping
from pathlib import Path

from dragoman.accounts.atomic import content_of
from dragoman.accounts.credential import Unusable
from dragoman.config.problems import ConfigError
from dragoman.config.secret import SecretSource, resolve_secret

PATH_STARTS = ("/", "~", "./", "../", "\\\\")
PATH_ENDS = (".json", ".sqlite3", ".sqlite", ".db")  # of any vendor's credentials


def holds_object(path: Path) -> bool:
    return (content_of(path) or b"").lstrip().startswith(b"{")


def named_file(
    secret: SecretSource, ends: tuple[str, ...] = (".json",), holds: Callable[[Path], bool] = holds_object
) -> Path | None:
    """None where it is the secret itself. Tokens have slashes too, but do not begin with one or end like a file.

    `holds` says of a `file:` whether it is a credential with all its fields; another one holds the bare secret.
    """
    text = secret.text
    if text.startswith("env:"):
        return None
    if text.startswith("file:"):
        named = Path(text.removeprefix("file:"))
        return named if holds(named) else None
    if not text.startswith(PATH_STARTS) and not text.lower().endswith(ends):
        return None
    path = Path(text).expanduser()
    return path if path.is_absolute() else Path(secret.file).parent / path


def revealed(secret: SecretSource, environ: Mapping[str, str]) -> str:
    try:
        return resolve_secret(secret, environ).reveal()
    except ConfigError as error:
        raise Unusable(str(error)) from error


def shown(secret: SecretSource) -> str:
    """Where it is set, without the secret."""
    return secret.key if str(secret) == "***" else str(secret)
