"""A stanza and the environment come in; where its credential is read from, and written back to, goes out."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from dragoman.accounts import credential as accounts
from dragoman.accounts.credential import Unusable
from dragoman.accounts.credential_files import PATH_ENDS, describe_place, find_named_file, holds_object, reveal
from dragoman.config.discovery import data_directory, home_directory, kiro_credential_paths
from dragoman.config.secret import SecretSource
from dragoman.config.settings import KiroProviderConfig
from dragoman.providers.kiro.credential import Credential
from dragoman.providers.kiro.database import Database, is_database
from dragoman.providers.kiro.given import ApiKey, RefreshToken
from dragoman.providers.kiro.json_file import JsonFile

API_KEY_PREFIX = "ksk_"

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
    home = home_directory(environ)
    secret = config.credentials or config.api_key
    if secret is not None:
        directory = data_directory(environ, home) if home is not None else None
        return lambda: _configured(secret, environ, directory)
    places = kiro_credential_paths(environ, home) if home is not None else ()
    return lambda: _found(places)


def _found(places: tuple[Path, ...]) -> Source:
    path = next((path for path in places if path.is_file()), None)
    return Nowhere() if path is None else _file(path)


def _configured(secret: SecretSource, environ: Mapping[str, str], directory: Path | None) -> Source:
    path = find_named_file(secret, PATH_ENDS, lambda file: is_database(file) or holds_object(file))
    if path is not None:
        return _file(path)
    read, where = partial(reveal, secret, environ), describe_place(secret)
    return ApiKey(read, where) if read().startswith(API_KEY_PREFIX) else RefreshToken(read, where, directory)


def _file(path: Path) -> Source:
    return Database(path) if is_database(path) or path.suffix.startswith((".sqlite", ".db")) else JsonFile(path)
