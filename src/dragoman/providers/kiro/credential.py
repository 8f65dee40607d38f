"""A Kiro credential: its tokens, its expiry, and what renews it."""

import re
from enum import Enum

from msgspec import Struct

from dragoman.accounts.credential import CredentialError, is_sendable

MIN_TOKEN_LENGTH = 100  # real refresh tokens have several hundred characters; the IDE sometimes writes fewer
BUILDER_ID_START = "https://view.awsapps.com/start"

_REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d{1,2}")


class Method(Enum):
    """How a token is renewed."""

    DESKTOP = "social"
    OIDC = "IdC"
    EXTERNAL = "external_idp"
    API_KEY = "api_key"  # never


class Credential(Struct, frozen=True):
    method: Method
    access_token: str = ""
    refresh_token: str = ""
    expires_at: float = 0.0  # seconds since the epoch, without a safety margin
    region: str | None = None  # of the sign-in; the API's may differ
    profile_arn: str | None = None
    client_id: str = ""
    client_secret: str = ""
    client_expires_at: float | None = None
    token_endpoint: str = ""
    issuer_url: str = ""
    scopes: tuple[str, ...] = ()
    builder_id: bool = False

    @property
    def account(self) -> str:
        return ""  # any account that signs in is accepted

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.access_token, self.refresh_token, self.client_secret)

    def __repr__(self) -> str:
        return f"Credential({self.method.value})"


def check_credential(credential: Credential, location: str) -> Credential:
    """Return the credential. Raises CredentialError if it cannot be sent."""
    for token in (credential.access_token, credential.refresh_token, credential.client_id, credential.client_secret):
        if not is_sendable(token):
            raise CredentialError(f"{location} holds a token with characters that no token has")
    if credential.region is not None and not _REGION.fullmatch(credential.region):
        raise CredentialError(f"{location} names a region that is not valid")
    if not credential.access_token and not credential.refresh_token:
        raise CredentialError(f"{location} holds no token: sign in again")
    return credential


def describe_truncation(credential: Credential) -> str:
    """Return why a refresh token is recognisably truncated; empty if it is not."""
    if credential.method not in (Method.DESKTOP, Method.OIDC):
        return ""
    length = len(credential.refresh_token)
    if "..." in credential.refresh_token or 0 < length < MIN_TOKEN_LENGTH:
        return f"its refresh token is truncated ({length} characters): sign in again, so that a complete one is written"
    return ""


def parse_method(name: str, *, registered: bool, external: bool) -> Method:
    """Return the method by its name in any spelling, else by the fields that came with it."""
    folded = name.strip().lower().replace("-", "_")
    if folded in ("external_idp", "externalidp") or (not folded and external):
        return Method.EXTERNAL
    if folded in ("idc", "builder_id", "builderid", "sso", "sso_oidc"):
        return Method.OIDC
    return Method.OIDC if registered and folded != "social" else Method.DESKTOP


def is_builder_id(provider: str, start_url: str) -> bool:
    named = re.sub(r"[-_]", "", provider.lower()) == "builderid"
    return named or start_url.rstrip("/") == BUILDER_ID_START


def split_words(value: object) -> tuple[str, ...]:
    """Return scopes, given as a list or as one string."""
    if isinstance(value, str):
        return tuple(value.split())
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()
