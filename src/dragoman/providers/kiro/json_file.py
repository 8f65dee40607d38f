"""A credential in a JSON file, as the Kiro IDE and `dragoman login` write it: read, and written back if still ours."""

import re

from dragoman.accounts.credential import InFile, Unusable
from dragoman.accounts.credential_files import Table, encode_table, load_table, read_text, replace_file
from dragoman.accounts.timestamps import format_timestamp, parse_timestamp
from dragoman.providers.kiro.credential import BUILDER_ID_START, Credential, Method, checked, method_of

REMEDY = "sign in with Kiro, or `dragoman login kiro`"

_HASH = re.compile(r"[A-Za-z0-9_-]{1,128}")  # no separators: the name must stay in its directory


class JsonFile(InFile):
    """`{clientIdHash}.json` beside it holds the registration that an IdC token needs; no other file is looked at."""

    def read(self) -> Credential:
        _, table = load_table(self.path, REMEDY)
        return checked(self._credential(table), self.where)

    def write(self, consumed: Credential, fresh: Credential) -> bool:
        """False where the file no longer holds what was consumed: somebody else has renewed it, and is newer."""
        content, table = load_table(self.path, REMEDY)
        if read_text(table, "refreshToken") != consumed.refresh_token:
            return False
        return replace_file(self.path, encode_table({**table, **renewed(fresh)}), content)

    def _credential(self, table: Table) -> Credential:
        method = method_of(
            read_text(table, "authMethod"),
            registered=bool(table.get("clientId") or table.get("clientIdHash")),
            external=bool(table.get("tokenEndpoint")),
        )
        client = table
        if method is Method.OIDC and not table.get("clientId"):
            client = self._registration(read_text(table, "clientIdHash"))
        return Credential(
            method=method,
            access_token=read_text(table, "accessToken"),
            refresh_token=read_text(table, "refreshToken"),
            expires_at=_moment(table, "expiresAt") or 0.0,
            region=read_text(table, "region") or None,
            profile_arn=read_text(table, "profileArn") or None,
            client_id=read_text(client, "clientId"),
            client_secret=read_text(client, "clientSecret"),
            client_expires_at=_moment(client, "expiresAt" if client is not table else "clientSecretExpiresAt"),
            token_endpoint=read_text(table, "tokenEndpoint"),
            issuer_url=read_text(table, "issuerUrl"),
            scopes=words(table.get("scopes")),
            builder_id=is_builder_id(read_text(table, "provider"), read_text(table, "startUrl")),
        )

    def _registration(self, name: str) -> Table:
        if not name:
            return {}
        if not _HASH.fullmatch(name):
            raise Unusable(f"{self.where}: its clientIdHash cannot be the name of a file")
        beside = self.path.with_name(f"{name}.json")
        return load_table(beside, REMEDY)[1] if beside.is_file() else {}


def renewed(fresh: Credential) -> Table:
    """The keys that a renewal changes."""
    table: Table = {
        "accessToken": fresh.access_token,
        "refreshToken": fresh.refresh_token,
        "expiresAt": format_timestamp(fresh.expires_at),
    }
    return {**table, "profileArn": fresh.profile_arn} if fresh.profile_arn else table


def is_builder_id(provider: str, start_url: str) -> bool:
    named = re.sub(r"[-_]", "", provider.lower()) == "builderid"
    return named or start_url.rstrip("/") == BUILDER_ID_START


def _moment(table: Table, key: str) -> float | None:
    """ISO 8601, or seconds or milliseconds since the epoch."""
    match table.get(key):
        case str() as text:
            return parse_timestamp(text)
        case bool() | None:
            return None
        case int() | float() as number:
            return number / 1000 if number > 1e11 else float(number)
        case _:
            return None


def words(value: object) -> tuple[str, ...]:
    """Scopes, in a list or as one string."""
    if isinstance(value, str):
        return tuple(value.split())
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()
