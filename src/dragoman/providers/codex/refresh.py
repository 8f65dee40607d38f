"""A ChatGPT credential comes in; one with a new access token goes out, asked of OpenAI."""

import msgspec
from msgspec import Struct

from dragoman.accounts.credential import Declined, Unusable
from dragoman.accounts.credential_files import Table
from dragoman.accounts.service_client import ServiceClient, ServiceResponse
from dragoman.hub.failure import Kind
from dragoman.providers.codex.claims import expiry
from dragoman.providers.codex.credential import UNREADABLE_LIFE_S, Credential, credential_of

ISSUER = "https://auth.openai.com"
FOR_GOOD = frozenset({"refresh_token_expired", "refresh_token_reused", "refresh_token_invalidated", "invalid_grant"})


class Tokens(Struct):
    """Every one may be missing, and then the old one stays."""

    id_token: str | None = None
    access_token: str | None = None
    refresh_token: str | None = None
    expires_in: float | None = None


class _Objection(Struct):
    error: object = None
    code: object = None


class Issuer:
    remedy = "`codex login` or `dragoman login codex` makes a new one"

    def __init__(self, line: ServiceClient, root: str, client_id: str) -> None:
        self._line = line
        self._root = root
        self._client_id = client_id

    async def renew(self, old: Credential) -> Credential:
        question = {
            "client_id": self._client_id,
            "grant_type": "refresh_token",
            "refresh_token": old.refresh_token,
        }
        tokens = granted(await self._line.post(f"{self._root}/oauth/token", question))
        return merged(old, tokens, self._line.clock.now())

    def told(self, credential: Credential, declined: Declined) -> str:
        return f"its refresh token was refused ({declined.code})"


def granted(told: ServiceResponse) -> Tokens:
    """The tokens in OpenAI's answer."""
    if told.status == 200:
        try:
            return msgspec.json.decode(told.body, type=Tokens)
        except msgspec.MsgspecError:
            raise Unusable("the token service gave an answer that cannot be read", Kind.UPSTREAM) from None
    code = objection(told)
    if code in FOR_GOOD or told.status == 401:
        raise Declined(code, for_good=True)
    kind = Kind.RATE_LIMITED if told.status == 429 else Kind.UPSTREAM
    raise Unusable(f"the token service answered {code}", kind)


def objection(told: ServiceResponse) -> str:
    """OpenAI's word for what is wrong, in any of the three places where it has stood; else the status."""
    try:
        body = msgspec.json.decode(told.body, type=_Objection)
    except msgspec.MsgspecError:
        body = _Objection()
    nested = body.error.get("code") if isinstance(body.error, dict) else body.error
    for word in (nested, body.code):
        if isinstance(word, str) and word:
            return word[:64]
    return f"HTTP {told.status}"


def merged(old: Credential, new: Tokens, now: float) -> Credential:
    access = new.access_token or old.access_token
    if not access:
        raise Unusable("the token service answered without a token", Kind.UPSTREAM)
    table: Table = {
        "id_token": new.id_token or old.id_token,
        "access_token": access,
        "refresh_token": new.refresh_token or old.refresh_token,
        "account_id": old.account,
    }
    fresh = credential_of(table, now)
    if expiry(access) is not None:
        return fresh
    return msgspec.structs.replace(fresh, expires_at=now + (new.expires_in or UNREADABLE_LIFE_S))
