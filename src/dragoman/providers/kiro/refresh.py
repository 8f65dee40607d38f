"""Renewal of Kiro credentials by the three kinds of issuers."""

from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Struct

from dragoman.accounts.credential import CredentialError, TokenRejected
from dragoman.accounts.service_client import ServiceClient, ServiceResponse
from dragoman.hub.failure import Kind
from dragoman.providers.kiro.credential import Credential, Method, describe_truncation
from dragoman.providers.kiro.hosts import desktop_host, oidc_host

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


class ErrorBody(Struct):
    error: object = None
    code: object = None
    type: object = msgspec.field(default=None, name="__type")


class TokenIssuers:
    """The three kinds of token issuers."""

    remedy = "`dragoman login kiro` makes a new one"

    def __init__(self, service: ServiceClient, region: str, auth: str | None) -> None:
        self._service = service
        self._region = region
        self._auth = auth

    async def renew(self, old: Credential) -> Credential:
        """Raise TokenRejected if the refresh token is not accepted, CredentialError if that is not known."""
        if describe_truncation(old):
            raise TokenRejected("truncated", is_permanent=True)
        match old.method:
            case Method.DESKTOP:
                url = f"{self._auth or desktop_host(old.region or self._region)}/refreshToken"
                response = await self._service.post(url, {"refreshToken": old.refresh_token})
            case Method.OIDC:
                response = await self._renew_oidc(old)
            case Method.EXTERNAL:
                response = await self._renew_external(old)
            case Method.API_KEY:
                raise TokenRejected("api_key")
        return self._merge(old, read_tokens(response))

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

    async def _renew_external(self, old: Credential) -> ServiceResponse:
        _check_external(old)
        form = {"grant_type": "refresh_token", "client_id": old.client_id, "refresh_token": old.refresh_token}
        if old.scopes:
            form["scope"] = " ".join(old.scopes)
        return await self._service.post_form(old.token_endpoint, form)

    def _merge(self, old: Credential, new: TokenResponse) -> Credential:
        life = new.expiresIn or new.expires_in or DEFAULT_LIFE_S
        return msgspec.structs.replace(
            old,
            access_token=new.accessToken or new.access_token,
            refresh_token=new.refreshToken or new.refresh_token or old.refresh_token,
            expires_at=self._service.clock.now() + min(max(life, 0.0), MAX_LIFE_S),
            profile_arn=new.profileArn or old.profile_arn,
        )


def read_tokens(response: ServiceResponse) -> TokenResponse:
    """Return the tokens in an issuer's response. Raises TokenRejected or CredentialError."""
    if response.status == 200:
        try:
            tokens = msgspec.json.decode(response.body, type=TokenResponse)
        except msgspec.MsgspecError:
            tokens = TokenResponse()
        if tokens.accessToken or tokens.access_token:
            return tokens
        raise CredentialError("the token service responded without a token", Kind.UPSTREAM)
    if response.status in (400, 401, 403):
        raise TokenRejected(read_error_code(response))
    kind = Kind.RATE_LIMITED if response.status == 429 else Kind.UPSTREAM
    raise CredentialError(f"the token service responded with HTTP {response.status}", kind)


def read_error_code(response: ServiceResponse) -> str:
    """Return the issuer's error code, such as `invalid_grant`, or the status."""
    try:
        body = msgspec.json.decode(response.body, type=ErrorBody)
    except msgspec.MsgspecError:
        body = ErrorBody()
    for word in (body.error, body.code, body.type):
        if isinstance(word, str) and word:
            return word.rpartition("#")[2][:64]
    return f"HTTP {response.status}"


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
