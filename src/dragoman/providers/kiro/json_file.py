"""A credential in a JSON file, as the Kiro IDE and `dragoman login` write it: read, and written back if still ours."""

import re

from dragoman.accounts import atomic
from dragoman.accounts.credential import InFile, Unusable
from dragoman.accounts.json_table import Table, encoded, load
from dragoman.accounts.json_table import text as _text
from dragoman.accounts.moments import format_moment, parse_moment
from dragoman.providers.kiro.credential import BUILDER_ID_START, Credential, Method, checked, method_of

REMEDY = "sign in with Kiro, or `dragoman login kiro`"

_HASH = re.compile(r"[A-Za-z0-9_-]{1,128}")  # no separators: the name must stay in its directory


class JsonFile(InFile):
    """`{clientIdHash}.json` beside it holds the registration that an IdC token needs; no other file is looked at."""

    def read(self) -> Credential:
        _, table = load(self.path, REMEDY)
        return checked(self._credential(table), self.where)

    def write(self, consumed: Credential, fresh: Credential) -> bool:
        """False where the file no longer holds what was consumed: somebody else has renewed it, and is newer."""
        content, table = load(self.path, REMEDY)
        if _text(table, "refreshToken") != consumed.refresh_token:
            return False
        return atomic.replace(self.path, encoded({**table, **renewed(fresh)}), content)

    def _credential(self, table: Table) -> Credential:
        method = method_of(
            _text(table, "authMethod"),
            registered=bool(table.get("clientId") or table.get("clientIdHash")),
            external=bool(table.get("tokenEndpoint")),
        )
        client = table
        if method is Method.OIDC and not table.get("clientId"):
            client = self._registration(_text(table, "clientIdHash"))
        return Credential(
            method=method,
            access_token=_text(table, "accessToken"),
            refresh_token=_text(table, "refreshToken"),
            expires_at=_moment(table, "expiresAt") or 0.0,
            region=_text(table, "region") or None,
            profile_arn=_text(table, "profileArn") or None,
            client_id=_text(client, "clientId"),
            client_secret=_text(client, "clientSecret"),
            client_expires_at=_moment(client, "expiresAt" if client is not table else "clientSecretExpiresAt"),
            token_endpoint=_text(table, "tokenEndpoint"),
            issuer_url=_text(table, "issuerUrl"),
            scopes=words(table.get("scopes")),
            builder_id=is_builder_id(_text(table, "provider"), _text(table, "startUrl")),
        )

    def _registration(self, name: str) -> Table:
        if not name:
            return {}
        if not _HASH.fullmatch(name):
            raise Unusable(f"{self.where}: its clientIdHash cannot be the name of a file")
        beside = self.path.with_name(f"{name}.json")
        return load(beside, REMEDY)[1] if beside.is_file() else {}


def renewed(fresh: Credential) -> Table:
    """The keys that a renewal changes."""
    table: Table = {
        "accessToken": fresh.access_token,
        "refreshToken": fresh.refresh_token,
        "expiresAt": format_moment(fresh.expires_at),
    }
    return {**table, "profileArn": fresh.profile_arn} if fresh.profile_arn else table


def is_builder_id(provider: str, start_url: str) -> bool:
    named = re.sub(r"[-_]", "", provider.lower()) == "builderid"
    return named or start_url.rstrip("/") == BUILDER_ID_START


def _moment(table: Table, key: str) -> float | None:
    """ISO 8601, or seconds or milliseconds since the epoch."""
    match table.get(key):
        case str() as text:
            return parse_moment(text)
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
