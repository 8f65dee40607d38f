"""A stanza and the environment come in; where its credential is read from, and written back to, goes out."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from dragoman.accounts import credential as accounts
from dragoman.accounts.atomic import content_of
from dragoman.accounts.credential import Unusable
from dragoman.config.installed import data_directory, home_of, kiro_places
from dragoman.config.problems import ConfigError
from dragoman.config.secret import SecretSource, resolve_secret
from dragoman.config.settings import KiroProviderConfig
from dragoman.providers.kiro.credential import Credential
from dragoman.providers.kiro.database import Database, is_database
from dragoman.providers.kiro.given import ApiKey, RefreshToken
from dragoman.providers.kiro.json_file import JsonFile

API_KEY_PREFIX = "ksk_"
PATH_STARTS = ("/", "~", "./", "../", "\\\\")
PATH_ENDS = (".json", ".sqlite3", ".sqlite", ".db")

Source = accounts.Source[Credential]


class Nowhere:
    """Nothing is configured, and no tool has left anything."""

    where = "no credential"
    lock = None

    def read(self) -> Credential:
        raise Unusable("it has no credential: `dragoman login kiro` makes one, or `credentials` names one")

    def write(self, consumed: Credential, fresh: Credential) -> bool:
        return False


def source_of(config: KiroProviderConfig, environ: Mapping[str, str]) -> Callable[[], Source]:
    """Looked for at each use: a login made while we run is found without a restart."""
    home = home_of(environ)
    secret = config.credentials or config.api_key
    if secret is not None:
        directory = data_directory(environ, home) if home is not None else None
        return lambda: _configured(secret, environ, directory)
    places = kiro_places(environ, home) if home is not None else ()
    return lambda: _found(places)


def _found(places: tuple[Path, ...]) -> Source:
    path = next((path for path in places if path.is_file()), None)
    return Nowhere() if path is None else _file(path)


def _configured(secret: SecretSource, environ: Mapping[str, str], directory: Path | None) -> Source:
    path = _path(secret)
    if path is not None:
        return _file(path)
    read = partial(_revealed, secret, environ)
    where = secret.key if str(secret) == "***" else str(secret)
    return ApiKey(read, where) if read().startswith(API_KEY_PREFIX) else RefreshToken(read, where, directory)


def _revealed(secret: SecretSource, environ: Mapping[str, str]) -> str:
    try:
        return resolve_secret(secret, environ).reveal()
    except ConfigError as error:
        raise Unusable(str(error)) from error


def _path(secret: SecretSource) -> Path | None:
    """The file that a setting names; tokens have slashes too, but do not begin with one or end like a file."""
    text = secret.text
    if text.startswith("env:"):
        return None
    if text.startswith("file:"):
        named = Path(text.removeprefix("file:"))
        return named if is_database(named) or (content_of(named) or b"").lstrip().startswith(b"{") else None
    if not text.startswith(PATH_STARTS) and not text.lower().endswith(PATH_ENDS):
        return None
    path = Path(text).expanduser()
    return path if path.is_absolute() else Path(secret.file).parent / path


def _file(path: Path) -> Source:
    return Database(path) if is_database(path) or path.suffix.startswith((".sqlite", ".db")) else JsonFile(path)
