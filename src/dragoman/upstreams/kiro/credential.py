"""A Kiro credential: its tokens, its expiry, and its renewal by the three kinds of issuers."""

import re
from enum import Enum
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Struct

from dragoman.translate.hub.failure import Kind
from dragoman.upstreams.credentials import credential as accounts
from dragoman.upstreams.credentials.credential import CredentialError, TokenRejected, is_sendable
from dragoman.upstreams.credentials.service_client import ServiceClient, ServiceResponse

MIN_TOKEN_LENGTH = 100  # real refresh tokens have several hundred characters; the IDE sometimes writes fewer
BUILDER_ID_START = "https://view.awsapps.com/start"

REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d{1,2}")


class Method(Enum):
    """How a token is renewed."""

    DESKTOP = "social"
    OIDC = "IdC"
    EXTERNAL = "external_idp"
    API_KEY = "api_key"  # never


class Credential(accounts.Credential, frozen=True, kw_only=True):
    method: Method
    region: str | None = None  # of the sign-in; the API's may differ
    profile_arn: str | None = None
    client_id: str = ""
    client_secret: str = ""
    client_expires_at: float | None = None
    token_endpoint: str = ""
    issuer_url: str = ""
    scopes: tuple[str, ...] = ()
    builder_id: bool = False
    is_given: bool = False  # by the user, as a value, or by the issuer: no other program can have cut its refresh token

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.access_token, self.refresh_token, self.client_secret)


def check_credential(credential: Credential, location: str) -> Credential:
    """Return the credential. Raises CredentialError if it cannot be sent."""
    for token in (credential.access_token, credential.refresh_token, credential.client_id, credential.client_secret):
        if not is_sendable(token):
            raise CredentialError(f"{location} holds a token with characters that no token has")
    if credential.region is not None and not REGION.fullmatch(credential.region):
        raise CredentialError(f"{location} names a region that is not valid")
    if not credential.access_token and not credential.refresh_token:
        raise CredentialError(f"{location} holds no token: sign in again")
    return credential


def describe_truncation(credential: Credential) -> str:
    """Return why a refresh token is recognisably truncated; empty if it is not."""
    if credential.method not in (Method.DESKTOP, Method.OIDC):
        return ""
    length = len(credential.refresh_token)
    if "..." in credential.refresh_token or (0 < length < MIN_TOKEN_LENGTH and not credential.is_given):
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


DEFAULT_LIFE_S = 3600.0  # of a token whose issuer does not state it
MAX_LIFE_S = 90 * 86_400.0
EXPIRED_CLIENT = frozenset({"invalid_client", "ExpiredClientException", "InvalidClientException"})


class TokenResponse(Struct):
    """Desktop and OIDC issuers use camel case, external ones snake case; refresh tokens may rotate or not."""

    accessToken: str = ""
    refreshToken: str | None = None
    expiresIn: float | None = None
    profileArn: str | None = None
    access_token: str = ""
    refresh_token: str | None = None
    expires_in: float | None = None


class TokenIssuers:
    """The three kinds of token issuers."""

    remedy = "`dragoman login kiro` makes a new one"

    def __init__(self, service: ServiceClient, region: str, auth: str | None) -> None:
        self._service = service
        self._region = region
        self._auth = auth
        self._issued = ""  # the newest refresh token; read back from a file, nothing else says that it is whole

    async def renew(self, old: Credential) -> Credential:
        """Raise TokenRejected if the refresh token is not accepted, CredentialError if that is not known."""
        if old.refresh_token != self._issued and describe_truncation(old):
            raise TokenRejected("truncated", is_permanent=True)
        match old.method:
            case Method.DESKTOP:
                url = f"{self._auth or desktop_host(old.region or self._region)}/refreshToken"
                response = await self._service.post(url, {"refreshToken": old.refresh_token})
            case Method.OIDC:
                response = await self._renew_oidc(old)
            case Method.EXTERNAL:
                _check_external(old)
                form = {"grant_type": "refresh_token", "client_id": old.client_id, "refresh_token": old.refresh_token}
                if old.scopes:
                    form["scope"] = " ".join(old.scopes)
                response = await self._service.post_form(old.token_endpoint, form)
            case Method.API_KEY:
                raise TokenRejected("api_key")
        fresh = self._merge(old, read_tokens(response))
        self._issued = fresh.refresh_token
        return fresh

    def describe_rejection(self, credential: Credential, rejected: TokenRejected) -> str:
        if rejected.code in EXPIRED_CLIENT:
            return "its client registration has expired"
        return describe_truncation(credential) or f"its refresh token was rejected ({rejected.code})"

    async def _renew_oidc(self, old: Credential) -> ServiceResponse:
        if not old.client_id or not old.client_secret:
            raise CredentialError("its client registration is missing: sign in again, or `dragoman login kiro`")
        if old.client_expires_at is not None and old.client_expires_at < self._service.clock.now():
            raise TokenRejected("ExpiredClientException")
        url = f"{self._auth or oidc_host(old.region or self._region)}/token"
        body = {
            "clientId": old.client_id,
            "clientSecret": old.client_secret,
            "grantType": "refresh_token",
            "refreshToken": old.refresh_token,
        }
        return await self._service.post(url, body)

    def _merge(self, old: Credential, new: TokenResponse) -> Credential:
        life = new.expiresIn or new.expires_in or DEFAULT_LIFE_S
        return msgspec.structs.replace(
            old,
            access_token=new.accessToken or new.access_token,
            refresh_token=new.refreshToken or new.refresh_token or old.refresh_token,
            expires_at=self._service.clock.now() + min(max(life, 0.0), MAX_LIFE_S),
            profile_arn=new.profileArn or old.profile_arn,
            is_given=True,
        )


def read_tokens(response: ServiceResponse) -> TokenResponse:
    """Return the tokens in an issuer's response. Raises TokenRejected or CredentialError."""
    if response.status == 200:
        tokens = response.parse(TokenResponse)
        if tokens is not None and (tokens.accessToken or tokens.access_token):
            return tokens
        raise CredentialError("the token service responded without a token", Kind.UPSTREAM)
    if response.status in (400, 401, 403):
        raise TokenRejected(response.error_code)
    kind = Kind.RATE_LIMITED if response.status == 429 else Kind.UPSTREAM
    raise CredentialError(f"the token service responded with HTTP {response.status}", kind)


def _check_external(old: Credential) -> None:
    """Check that the token endpoint is at the issuer's own host and uses TLS, whatever a file says."""
    try:
        endpoint, issuer = urlsplit(old.token_endpoint), urlsplit(old.issuer_url)
    except ValueError:
        raise CredentialError("its token endpoint is not a URL") from None
    if not endpoint.hostname or endpoint.hostname != issuer.hostname:
        raise CredentialError("its token endpoint is not at its issuer's host")
    if endpoint.scheme != "https" and not _is_loopback(endpoint):
        raise CredentialError("its token endpoint is not https")


def _is_loopback(parts: SplitResult) -> bool:
    try:
        return ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def desktop_host(region: str) -> str:
    return f"https://prod.{region}.auth.desktop.kiro.dev"


def oidc_host(region: str) -> str:
    return f"https://oidc.{region}.amazonaws.com"
