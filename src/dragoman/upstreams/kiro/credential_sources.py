"""Where a Kiro credential is read and written: a JSON file, kiro-cli's database, an API key or a refresh token."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.discovery import data_directory, home_directory, kiro_credential_paths
from dragoman.config.secret import SecretSource
from dragoman.config.settings import KiroProviderConfig
from dragoman.translate.framing.jsonread import parse_or
from dragoman.upstreams.credentials.credential import (
    NEVER_EXPIRES,
    PATH_ENDS,
    CredentialError,
    CredentialForm,
    CredentialSource,
    FileSource,
    GivenSource,
    JsonSource,
    LocalSource,
    Table,
    describe_place,
    encode_table,
    find_named_file,
    format_timestamp,
    holds_object,
    load_table,
    make_missing_source,
    parse_timestamp,
    read_text,
    replace_file,
    reveal,
)
from dragoman.upstreams.credentials.stored import StoredCredentials, find_stored_source
from dragoman.upstreams.kiro.credential import (
    Credential,
    Method,
    check_credential,
    is_builder_id,
    parse_method,
    split_words,
)

T = TypeVar("T")

MAGIC = b"SQLite format 3\x00"
BUSY_TIMEOUT_MS = 5_000
PROFILE = "api.codewhisperer.profile"

# "odic" is kiro-cli's spelling. The registration has the prefix of its token.
TOKENS: tuple[tuple[str, Method], ...] = (
    ("kirocli:external-idp:token", Method.EXTERNAL),
    ("kirocli:social:token", Method.DESKTOP),
    ("kirocli:odic:token", Method.OIDC),
    ("codewhisperer:odic:token", Method.OIDC),
)


class _Token(Struct):
    access_token: str = ""
    refresh_token: str | None = None
    expires_at: str = ""
    region: str | None = None
    start_url: str | None = None
    scopes: list[str] | str | None = None  # one string for external providers
    profile_arn: str | None = None
    issuer_url: str | None = None
    token_endpoint: str | None = None
    client_id: str | None = None


class _Registration(Struct):
    client_id: str = ""
    client_secret: str | None = None
    client_secret_expires_at: str | None = None


class _Profile(Struct):
    arn: str | None = None


class _Row(Struct, frozen=True):
    key: str
    method: Method
    value: str | bytes  # unparsed, for the comparison before a write


class Database(FileSource[Credential]):
    def read(self) -> Credential:
        return self._run_with_database(self._credential)

    def write(self, consumed: Credential, fresh: Credential) -> bool:
        return self._run_with_database(lambda connection: _replace_tokens(connection, consumed, fresh))

    def _credential(self, connection: apsw.Connection) -> Credential:
        row = _find_row(connection)
        if row is None:
            raise CredentialError(f"{self.path} holds no token: `kiro-cli login`, or `dragoman login kiro`")
        token = parse_or(row.value, _Token, None)
        if token is None:
            raise CredentialError(f"{self.path}: {row.key} cannot be parsed: run `kiro-cli login`")
        registered = _read_registration(connection, row) if row.method is Method.OIDC else None
        expiry = registered.client_secret_expires_at if registered else None
        credential = Credential(
            method=row.method,
            access_token=token.access_token,
            refresh_token=token.refresh_token or "",
            expires_at=parse_timestamp(token.expires_at) or 0.0,
            region=token.region or None,
            profile_arn=token.profile_arn or _read_profile_arn(connection),
            client_id=registered.client_id if registered else token.client_id or "",
            client_secret=(registered.client_secret or "") if registered else "",
            client_expires_at=parse_timestamp(expiry) if expiry else None,
            token_endpoint=token.token_endpoint or "",
            issuer_url=token.issuer_url or "",
            scopes=split_words(token.scopes),
            builder_id=row.method is Method.OIDC and (not token.start_url or is_builder_id("", token.start_url)),
        )
        return check_credential(credential, self.location)

    def _run_with_database(self, work: Callable[[apsw.Connection], T]) -> T:
        try:
            connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
            try:
                connection.set_busy_timeout(BUSY_TIMEOUT_MS)
                return work(connection)
            finally:
                connection.close()
        except apsw.Error as error:
            raise CredentialError(f"{self.path} cannot be used: {type(error).__name__}") from error


def is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _replace_tokens(connection: apsw.Connection, consumed: Credential, fresh: Credential) -> bool:
    row = _find_row(connection)
    if row is None:
        return False
    table = msgspec.json.decode(row.value, type=dict[str, object])
    if table.get("refresh_token") != consumed.refresh_token:
        return False
    table |= {
        "access_token": fresh.access_token,
        "refresh_token": fresh.refresh_token,
        "expires_at": format_timestamp(fresh.expires_at),
    }
    if fresh.profile_arn and "profile_arn" in table:
        table["profile_arn"] = fresh.profile_arn
    encoded = msgspec.json.encode(table)
    value = encoded.decode() if isinstance(row.value, str) else encoded
    connection.execute("UPDATE auth_kv SET value = ? WHERE key = ? AND value = ?", (value, row.key, row.value))
    return connection.changes() == 1


def _find_row(connection: apsw.Connection) -> _Row | None:
    for key, method in TOKENS:
        value = _read_value(connection, "SELECT value FROM auth_kv WHERE key = ?", key)
        if value is not None:
            return _Row(key, method, value)
    return None


def _read_registration(connection: apsw.Connection, row: _Row) -> _Registration:
    key = row.key.removesuffix("token") + "device-registration"
    value = _read_value(connection, "SELECT value FROM auth_kv WHERE key = ?", key)
    return parse_or(value or b"", _Registration, _Registration())


def _read_profile_arn(connection: apsw.Connection) -> str | None:
    try:
        value = _read_value(connection, "SELECT value FROM state WHERE key = ?", PROFILE)
    except apsw.SQLError:  # older databases have no such table
        return None
    return parse_or(value or b"", _Profile, _Profile()).arn


def _read_value(connection: apsw.Connection, query: str, key: str) -> str | bytes | None:
    for (value,) in connection.execute(query, (key,)):
        if isinstance(value, str | bytes) and value:
            return value
    return None


REMEDY = "sign in with Kiro, or `dragoman login kiro`"

_HASH = re.compile(r"[A-Za-z0-9_-]{1,128}")  # no separators: the file must be in the same directory


class TokenForm(CredentialForm[Credential]):
    """The file of the IDE, with the registration that an IdC token needs, which the IDE has in another file."""

    kind = "kiro"
    remedy = REMEDY

    def parse(self, table: Table, location: str) -> Credential:
        credential = Credential(
            method=read_method(table),
            access_token=read_text(table, "accessToken"),
            refresh_token=read_text(table, "refreshToken"),
            expires_at=_read_timestamp(table, "expiresAt") or 0.0,
            region=read_text(table, "region") or None,
            profile_arn=read_text(table, "profileArn") or None,
            client_id=read_text(table, "clientId"),
            client_secret=read_text(table, "clientSecret"),
            client_expires_at=_read_timestamp(table, "clientSecretExpiresAt"),
            token_endpoint=read_text(table, "tokenEndpoint"),
            issuer_url=read_text(table, "issuerUrl"),
            scopes=split_words(table.get("scopes")),
            builder_id=is_builder_id(read_text(table, "provider"), read_text(table, "startUrl")),
        )
        return check_credential(credential, location)

    def read_refresh_token(self, table: Table) -> str:
        return read_text(table, "refreshToken")

    def renewed_fields(self, table: Table, fresh: Credential) -> Table:
        return renewed_fields(fresh)


FORM = TokenForm()


def read_method(table: Table) -> Method:
    return parse_method(
        read_text(table, "authMethod"),
        registered=bool(table.get("clientId") or table.get("clientIdHash")),
        external=bool(table.get("tokenEndpoint")),
    )


class JsonFile(JsonSource[Credential]):
    """A JSON file. `{clientIdHash}.json` beside it contains the registration that an IdC token needs."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, FORM)

    def read_object(self) -> Table:
        table = super().read_object()
        if read_method(table) is not Method.OIDC or table.get("clientId"):
            return table
        client = self._registration(read_text(table, "clientIdHash"))
        registration = {"clientId": client.get("clientId"), "clientSecret": client.get("clientSecret")}
        return {**table, **registration, "clientSecretExpiresAt": client.get("expiresAt")} if client else table

    def _registration(self, name: str) -> Table:
        if not name:
            return {}
        if not _HASH.fullmatch(name):
            raise CredentialError(f"{self.location}: its clientIdHash cannot be a file name")
        beside = self.path.with_name(f"{name}.json")
        return load_table(beside, REMEDY)[1] if beside.is_file() else {}


def renewed_fields(fresh: Credential) -> Table:
    """Return the keys that a renewal changes."""
    table: Table = {
        "accessToken": fresh.access_token,
        "refreshToken": fresh.refresh_token,
        "expiresAt": format_timestamp(fresh.expires_at),
    }
    return {**table, "profileArn": fresh.profile_arn} if fresh.profile_arn else table


def make_table(credential: Credential) -> Table:
    """Return a credential in the form of the IDE's file, with all that it needs."""
    expiry = credential.client_expires_at
    fields: Table = {
        "authMethod": credential.method.value,
        **renewed_fields(credential),
        "region": credential.region,
        "provider": "BuilderId" if credential.builder_id else None,
        "clientId": credential.client_id,
        "clientSecret": credential.client_secret,
        "clientSecretExpiresAt": None if expiry is None else format_timestamp(expiry),
        "tokenEndpoint": credential.token_endpoint,
        "issuerUrl": credential.issuer_url,
        "scopes": list(credential.scopes),
    }
    return {name: value for name, value in fields.items() if value}


def _read_timestamp(table: Table, key: str) -> float | None:
    """Read ISO 8601, or seconds or milliseconds since the epoch."""
    match table.get(key):
        case str() as text:
            return parse_timestamp(text)
        case bool() | None:
            return None
        case int() | float() as number:
            return number / 1000 if number > 1e11 else float(number)
        case _:
            return None


class RefreshToken(LocalSource[Credential]):
    """A refresh token from a variable. Tokens rotate: its successor is kept beside our store, under its hash."""

    def __init__(self, read: Callable[[], str], location: str, directory: Path | None) -> None:
        super().__init__(location)
        self._read = read
        self._directory = directory

    @property
    def lock(self) -> Path | None:
        if self._directory is None:
            return None
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            return None
        return self._file()

    def read(self) -> Credential:
        kept = self._file()
        if kept is not None and kept.is_file():
            return replace(JsonFile(kept).read(), is_given=True)
        given = Credential(method=Method.DESKTOP, refresh_token=self._read(), is_given=True)
        return check_credential(given, self.location)

    def write(self, consumed: Credential, fresh: Credential) -> bool:
        kept = self._file()
        if kept is None:
            return True
        if kept.is_file():
            return JsonFile(kept).write(consumed, fresh)
        return replace_file(kept, encode_table({"authMethod": Method.DESKTOP.value, **renewed_fields(fresh)}), None)

    def _file(self) -> Path | None:
        if self._directory is None:
            return None
        return self._directory / f"kiro-{sha256(self._read().encode()).hexdigest()[:16]}.json"


API_KEY_PREFIX = "ksk_"

NO_CREDENTIAL = "Run `dragoman login kiro`, or set `credentials`"


def find_source(
    config: KiroProviderConfig, environ: Mapping[str, str], stored: StoredCredentials | None = None
) -> Callable[[], CredentialSource[Credential]]:
    """Return a function that finds the credential at each use, so that a new login needs no restart."""
    home = home_directory(environ)
    secret = config.credentials or config.api_key
    if secret is not None:
        shared = find_stored_source(secret, stored, FORM)
        if shared is not None:
            return lambda: shared
        directory = data_directory(environ, home) if home is not None else None
        return lambda: _open_configured(secret, environ, directory)
    places = kiro_credential_paths(environ, home) if home is not None else ()
    return lambda: _find_installed(places)


def _find_installed(places: tuple[Path, ...]) -> LocalSource[Credential]:
    path = next((path for path in places if path.is_file()), None)
    return make_missing_source(NO_CREDENTIAL) if path is None else open_file(path)


def _open_configured(
    secret: SecretSource, environ: Mapping[str, str], directory: Path | None
) -> LocalSource[Credential]:
    path = find_named_file(secret, PATH_ENDS, lambda file: is_database(file) or holds_object(file))
    if path is not None:
        return open_file(path)
    read, location = partial(reveal, secret, environ), describe_place(secret)
    if not read().startswith(API_KEY_PREFIX):
        return RefreshToken(read, location, directory)
    return GivenSource(location, lambda: _read_api_key(read(), location))


def _read_api_key(key: str, location: str) -> Credential:
    return check_credential(Credential(method=Method.API_KEY, access_token=key, expires_at=NEVER_EXPIRES), location)


def open_file(path: Path) -> FileSource[Credential]:
    return Database(path) if is_database(path) or path.suffix.startswith((".sqlite", ".db")) else JsonFile(path)


def read_account_file(path: Path) -> Table | None:
    """Return what the store keeps of a credential file, with its registration; None if it is another vendor's."""
    if is_database(path):
        return make_table(Database(path).read())
    source = JsonFile(path)
    table = source.read_object()
    if not {"accessToken", "refreshToken"} & table.keys():
        return None
    source.form.parse(table, source.location)
    return table
