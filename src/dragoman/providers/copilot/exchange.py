"""GitHub's addresses, and the exchange of a GitHub token for a short-lived Copilot token."""

from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.accounts.credential import CredentialError, TokenRejected
from dragoman.accounts.service_client import ServiceClient, ServiceResponse
from dragoman.config.settings import CopilotProviderConfig
from dragoman.hub.failure import Kind
from dragoman.providers.copilot.credential import Session

PUBLIC = "github.com"


class Addresses(Struct, frozen=True):
    login: str
    exchange: str
    api: str
    trusted: str  # a response may name another API host in this domain


def find_addresses(config: CopilotProviderConfig) -> Addresses:
    domain = config.domain
    if domain == PUBLIC:
        usual = Addresses(
            f"https://{PUBLIC}", f"https://api.{PUBLIC}", "https://api.githubcopilot.com", "githubcopilot.com"
        )
    else:
        usual = Addresses(f"https://{domain}", f"https://api.{domain}", f"https://copilot-api.{domain}", domain)
    return Addresses(
        login=config.auth_endpoint or usual.login,
        exchange=config.control_endpoint or usual.exchange,
        api=config.endpoint or usual.api,
        trusted=usual.trusted,
    )


def is_trusted(url: str, domain: str) -> bool:
    """Return whether a token may be sent there: over TLS, to that domain or a subdomain."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return parts.scheme == "https" and (host == domain or host.endswith(f".{domain}"))


DEFAULT_LIFE_S = 1500.0
GRACE_S = 60.0  # a token is valid a little longer than `refresh_in`


class _Endpoints(Struct):
    api: str | None = None


class _Token(Struct):
    token: str = ""
    expires_at: float | None = None
    refresh_in: float | None = None
    endpoints: _Endpoints | None = None


class _RenewedToken(Struct):
    """The response of GitHub's token endpoint, which reports errors with status 200 too."""

    access_token: str = ""
    refresh_token: str = ""
    expires_in: float | None = None
    error: str = ""


class _Details(Struct):
    notification_id: str | None = None
    message: str | None = None


class _Refusal(Struct):
    message: str | None = None
    error_details: _Details | None = None


class TokenExchange:
    remedy = "`dragoman login copilot` makes a new one"

    def __init__(self, service: ServiceClient, places: Addresses) -> None:
        self._service = service
        self._places = places

    async def renew(self, old: Session) -> Session:
        return await (self._renew_refreshable(old) if old.client_id else self._exchange(old))

    async def _renew_refreshable(self, old: Session) -> Session:
        form = {"client_id": old.client_id, "grant_type": "refresh_token", "refresh_token": old.refresh_token}
        response = await self._service.post_form(f"{self._places.login}/login/oauth/access_token", form)
        try:
            answer = msgspec.json.decode(response.body, type=_RenewedToken)
        except msgspec.MsgspecError:
            raise CredentialError(f"GitHub responded with HTTP {response.status}", Kind.UPSTREAM) from None
        if answer.error:
            raise TokenRejected(answer.error[:64], is_permanent=True)
        if not answer.access_token:
            raise CredentialError(f"GitHub responded with HTTP {response.status} without a token", Kind.UPSTREAM)
        return replace(
            old,
            access_token=answer.access_token,
            refresh_token=answer.refresh_token or old.refresh_token,
            expires_at=self._service.clock.now() + (answer.expires_in or DEFAULT_LIFE_S),
        )

    async def _exchange(self, old: Session) -> Session:
        url = f"{self._places.exchange}/copilot_internal/v2/token"
        github = (b"authorization", b"token " + old.refresh_token.encode())
        token = _read_token(await self._service.request("GET", url, (github,)))
        api = (token.endpoints.api if token.endpoints else None) or ""
        now = self._service.clock.now()
        # A duration is preferred: GitHub's absolute time is useless if our clock is wrong.
        expires_at = now + token.refresh_in + GRACE_S if token.refresh_in else token.expires_at or now + DEFAULT_LIFE_S
        return Session(
            access_token=token.token,
            refresh_token=old.refresh_token,
            expires_at=expires_at,
            api=api.rstrip("/") if is_trusted(api, self._places.trusted) else "",
        )

    def describe_rejection(self, credential: Session, rejected: TokenRejected) -> str:
        refused = "does not renew it" if credential.client_id else "gives no Copilot token for it"
        return f"GitHub {refused} ({rejected.code})"


def _read_token(response: ServiceResponse) -> _Token:
    if response.status == 200:
        try:
            token = msgspec.json.decode(response.body, type=_Token)
        except msgspec.MsgspecError:
            token = _Token()
        if token.token:
            return token
        raise CredentialError("GitHub responded without a Copilot token", Kind.UPSTREAM)
    if response.status not in (401, 403, 404):
        kind = Kind.RATE_LIMITED if response.status == 429 else Kind.UPSTREAM
        raise CredentialError(f"GitHub responded with HTTP {response.status}", kind)
    raise _read_refusal(response)


def _read_refusal(response: ServiceResponse) -> TokenRejected | CredentialError:
    try:
        body = msgspec.json.decode(response.body, type=_Refusal)
    except msgspec.MsgspecError:
        body = _Refusal()
    if body.error_details is None:
        if response.status == 403 and "rate limit" in (body.message or "").lower():
            return CredentialError("GitHub's rate limit is reached", Kind.RATE_LIMITED)
        return TokenRejected(f"HTTP {response.status}")
    why = body.error_details.message or "no reason given"
    return TokenRejected(f"{body.error_details.notification_id}: {why[:200]}", kind=Kind.FORBIDDEN)
