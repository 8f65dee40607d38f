"""Credentials in kiro-cli's SQLite database."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec
from msgspec import Struct

from dragoman.accounts.credential import CredentialError, FileSource
from dragoman.accounts.timestamps import format_timestamp, parse_timestamp
from dragoman.providers.kiro.credential import Credential, Method, check_credential, is_builder_id, split_words

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


class Database(FileSource):
    def read(self) -> Credential:
        return self._with(self._credential)

    def write(self, consumed: Credential, fresh: Credential) -> bool:
        """Write the new tokens; return False if another program has renewed the stored ones."""
        return self._with(lambda connection: _replace_tokens(connection, consumed, fresh))

    def _credential(self, connection: apsw.Connection) -> Credential:
        row = _find_row(connection)
        if row is None:
            raise CredentialError(f"{self.path} holds no token: `kiro-cli login`, or `dragoman login kiro`")
        token = _decode(row.value, _Token)
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

    def _with(self, work: Callable[[apsw.Connection], T]) -> T:
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
    return (_decode(value, _Registration) if value is not None else None) or _Registration()


def _read_profile_arn(connection: apsw.Connection) -> str | None:
    try:
        value = _read_value(connection, "SELECT value FROM state WHERE key = ?", PROFILE)
    except apsw.SQLError:  # older databases have no such table
        return None
    found = _decode(value, _Profile) if value is not None else None
    return found.arn if found else None


def _read_value(connection: apsw.Connection, query: str, key: str) -> str | bytes | None:
    for (value,) in connection.execute(query, (key,)):
        if isinstance(value, str | bytes) and value:
            return value
    return None


def _decode(value: str | bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.MsgspecError:
        return None
