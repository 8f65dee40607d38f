"""Credentials of a ChatGPT account: the file that `codex login` and `dragoman login codex` write, and their renewal."""

import base64
import binascii
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.translate.hub.failure import Kind
from dragoman.upstreams.credentials import credential as accounts
from dragoman.upstreams.credentials.credential import (
    CredentialError,
    CredentialForm,
    Table,
    TokenRejected,
    format_timestamp,
    is_sendable,
    load_table,
    parse_timestamp,
    read_table,
    read_text,
)
from dragoman.upstreams.credentials.service_client import ServiceClient, ServiceResponse

REMEDY = "`codex login`, or `dragoman login codex`"
NO_CREDENTIAL = (
    "Run `dragoman login codex`; or `codex login`, unless Codex stores its tokens in a keyring; or set `credentials`"
)
UNREADABLE_LIFE_S = 8 * 86_400.0  # of a token without an expiry, from its last renewal

OTHER_MODES = {
    "apikey": 'an API key: that is for a provider of kind "openai"',
    "personalAccessToken": "a personal access token",
    "agentIdentity": "an agent's identity",
    "bedrockApiKey": "a key for Bedrock",
    "headers": "headers of a managed set-up",
}


class Credential(accounts.Credential, frozen=True):
    id_token: str = ""
    renewed_at: float = 0.0
    plan: str = ""
    fedramp: bool = False
    residency: str = ""  # the region in which its data must stay


class AuthForm(CredentialForm[Credential]):
    """The file of Codex, which uses no lock and writes in place: if it has written meanwhile, its content stays."""

    kind = "codex"
    remedy = REMEDY

    def parse(self, table: Table, location: str) -> Credential:
        credential = make_credential(
            read_table(table, "tokens"), parse_timestamp(read_text(table, "last_refresh")) or 0.0
        )
        if not credential.access_token and not credential.refresh_token:
            raise CredentialError(f"{location} {_describe_contents(table)}: {REMEDY}")
        if not is_sendable(credential.access_token + credential.refresh_token + credential.account):
            raise CredentialError(f"{location} holds a token with characters that no token has: {REMEDY}")
        return credential

    def read_refresh_token(self, table: Table) -> str:
        return read_text(read_table(table, "tokens"), "refresh_token")

    def renewed_fields(self, table: Table, fresh: Credential) -> Table:
        tokens = {**read_table(table, "tokens"), **token_fields(fresh)}
        return {"tokens": tokens, "last_refresh": format_timestamp(fresh.renewed_at)}


def read_account_file(path: Path) -> Table | None:
    """Return what the store keeps of a credential file; None if it is another vendor's."""
    table = load_table(path, REMEDY)[1]
    if not {"tokens", "auth_mode"} & table.keys():
        return None
    AuthForm().parse(table, str(path))
    return table


def make_credential(tokens: Table, renewed_at: float) -> Credential:
    access, identity = read_text(tokens, "access_token"), read_text(tokens, "id_token")
    claimed = read_claims(identity) or read_claims(access)
    response = read_account_claims(claimed)
    residency = read_text(response, "chatgpt_compute_residency")
    unreadable = renewed_at + UNREADABLE_LIFE_S if renewed_at else 0.0
    return Credential(
        access_token=access,
        refresh_token=read_text(tokens, "refresh_token"),
        id_token=identity,
        expires_at=read_expiry(access) or unreadable,
        renewed_at=renewed_at,
        account=read_text(tokens, "account_id") or read_account_id(claimed),
        plan=read_text(response, "chatgpt_plan_type"),
        fedramp=response.get("chatgpt_account_is_fedramp") is True,
        residency="" if residency == "no_constraint" else residency,
    )


def token_fields(credential: Credential) -> Table:
    """Return the tokens as the file stores them."""
    return {
        "id_token": credential.id_token,
        "access_token": credential.access_token,
        "refresh_token": credential.refresh_token,
    }


def _describe_contents(table: Table) -> str:
    mode = read_text(table, "auth_mode") or ("apikey" if read_text(table, "OPENAI_API_KEY") else "")
    return f"holds {OTHER_MODES[mode]}" if mode in OTHER_MODES else "holds no token"


NAMESPACE = "https://api.openai.com/auth"

_claims_decoder = msgspec.json.Decoder(dict[str, object])


def read_claims(token: str) -> Table:
    """Return the claims of a JWT, unverified; none if it is not one."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        return _claims_decoder.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return {}


def read_expiry(token: str) -> float | None:
    match read_claims(token).get("exp"):
        case bool():
            return None
        case int() | float() as moment:
            return float(moment)
        case _:
            return None


def read_account_claims(claimed: Table) -> Table:
    """Return OpenAI's claims about the account."""
    return read_table(claimed, NAMESPACE)


def read_account_id(claimed: Table) -> str:
    """Return the account's id from any of the claims that have contained it."""
    named = read_text(read_account_claims(claimed), "chatgpt_account_id") or read_text(claimed, "chatgpt_account_id")
    if named:
        return named
    organizations = claimed.get("organizations")
    first = organizations[0] if isinstance(organizations, list) and organizations else None
    return read_text(first, "id") if isinstance(first, dict) else ""


ISSUER_URL = "https://auth.openai.com"
PERMANENT_ERRORS = frozenset(
    {"refresh_token_expired", "refresh_token_reused", "refresh_token_invalidated", "invalid_grant"}
)


class Tokens(Struct):
    """The response of the token service. Tokens that are missing stay as they were."""

    id_token: str | None = None
    access_token: str | None = None
    refresh_token: str | None = None
    expires_in: float | None = None


class TokenIssuer:
    remedy = "`codex login` or `dragoman login codex` makes a new one"

    def __init__(self, service: ServiceClient, root: str, client_id: str) -> None:
        self._service = service
        self._root = root
        self._client_id = client_id

    async def renew(self, old: Credential) -> Credential:
        body = {
            "client_id": self._client_id,
            "grant_type": "refresh_token",
            "refresh_token": old.refresh_token,
        }
        tokens = read_tokens(await self._service.post(f"{self._root}/oauth/token", body))
        return merge_tokens(old, tokens, self._service.clock.now())

    def describe_rejection(self, credential: Credential, rejected: TokenRejected) -> str:
        return f"its refresh token was rejected ({rejected.code})"


def read_tokens(response: ServiceResponse) -> Tokens:
    """Return the tokens in OpenAI's response. Raises TokenRejected or CredentialError."""
    if response.status == 200:
        tokens = response.parse(Tokens)
        if tokens is None:
            raise CredentialError("the token service's response cannot be parsed", Kind.UPSTREAM)
        return tokens
    code = response.error_code
    if code in PERMANENT_ERRORS or response.status == 401:
        raise TokenRejected(code, is_permanent=True)
    kind = Kind.RATE_LIMITED if response.status == 429 else Kind.UPSTREAM
    raise CredentialError(f"the token service answered {code}", kind)


def merge_tokens(old: Credential, new: Tokens, now: float) -> Credential:
    access = new.access_token or old.access_token
    if not access:
        raise CredentialError("the token service answered without a token", Kind.UPSTREAM)
    table: Table = {
        "id_token": new.id_token or old.id_token,
        "access_token": access,
        "refresh_token": new.refresh_token or old.refresh_token,
        "account_id": old.account,
    }
    fresh = make_credential(table, now)
    if read_expiry(access) is not None:
        return fresh
    return msgspec.structs.replace(fresh, expires_at=now + (new.expires_in or UNREADABLE_LIFE_S))
