"""GitHub tokens for Copilot: where they are stored, and whether they are exchanged or used directly."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.discovery import copilot_credential_paths, home_directory
from dragoman.config.settings import CopilotProviderConfig
from dragoman.translate.hub.failure import Kind
from dragoman.upstreams.credentials.credential import (
    NEVER_EXPIRES,
    Credential,
    CredentialError,
    CredentialForm,
    CredentialSource,
    GivenSource,
    JsonSource,
    Table,
    TokenRejected,
    describe_place,
    find_named_file,
    format_timestamp,
    is_sendable,
    load_table,
    make_missing_source,
    parse_timestamp,
    read_table,
    read_text,
    reveal,
)
from dragoman.upstreams.credentials.service_client import ServiceClient, ServiceResponse
from dragoman.upstreams.credentials.stored import StoredCredentials, find_stored_source

REMEDY = "`dragoman login copilot`"
VARIABLE = "COPILOT_GITHUB_TOKEN"
NO_CREDENTIAL = f"Run {REMEDY}, or set ${VARIABLE} or `credentials`"
OPENCODE = "github-copilot"

# Tokens of GitHub Apps, such as editors, are exchanged; those of OAuth apps and installations are used directly.
MODES = {"ghu_": "exchange", "gho_": "direct", "github_pat_": "direct", "ghs_": "server"}


class Session(Credential, frozen=True):
    """The token that requests carry, and what renews it: the GitHub token it was exchanged for, or a refresh token."""

    api: str = ""  # the API's URL as GitHub reports it
    client_id: str = ""  # of the app that the refresh token belongs to


class TokenForm(CredentialForm[Session]):
    """Our own file, or that of an editor's plugin. Only our own contains renewable tokens, which are written."""

    kind = "copilot"
    remedy = REMEDY

    def __init__(self, domain: str, mode: str) -> None:
        self._domain = domain
        self._mode = mode

    def parse(self, table: Table, location: str) -> Session:
        entry = _entry(table, self._domain)
        token = read_text(entry, "oauth_token") or read_text(read_table(table, OPENCODE), "refresh")
        if not token:
            raise CredentialError(f"{location} holds no token for {self._domain}: {REMEDY}")
        mode = (read_text(entry, "auth") or self._mode) if self._mode == "auto" else self._mode
        session = _session(token, location, mode)
        if not self.read_refresh_token(table) or not session.access_token:
            return session
        return replace(
            session,
            refresh_token=self.read_refresh_token(table),
            expires_at=parse_timestamp(read_text(entry, "expires_at")) or 0.0,
            client_id=read_text(entry, "client_id"),
        )

    def read_refresh_token(self, table: Table) -> str:
        return read_text(_entry(table, self._domain), "refresh_token")

    def renewed_fields(self, table: Table, fresh: Session) -> Table:
        renewed = renewable_fields(fresh.access_token, fresh.refresh_token, fresh.expires_at)
        return {self._domain: {**_entry(table, self._domain), **renewed}}

    def is_written(self, credential: Session) -> bool:
        return bool(credential.client_id)  # exchanged tokens are kept in memory


class TokenFile(JsonSource[Session]):
    @property
    def lock(self) -> Path | None:
        return self.path if self.form.read_refresh_token(load_table(self.path, REMEDY)[1]) else None


def renewable_fields(token: str, refresh_token: str, expires_at: float) -> Table:
    """Return the keys of an entry that a renewal changes."""
    return {"oauth_token": token, "refresh_token": refresh_token, "expires_at": format_timestamp(expires_at)}


def _session(token: str, location: str, mode: str) -> Session:
    if not token or not is_sendable(token):
        raise CredentialError(f"{location} holds no GitHub token: {REMEDY}")
    if token.startswith("ghp_"):
        raise CredentialError(
            f"{location} holds a classic personal access token, which Copilot does not accept: {REMEDY}"
        )
    if detect_mode(token, mode) == "exchange":
        return Session(refresh_token=token)
    return Session(access_token=token, expires_at=NEVER_EXPIRES)


def detect_mode(token: str, configured: str) -> str:
    if configured != "auto":
        return configured
    return next((mode for prefix, mode in MODES.items() if token.startswith(prefix)), "exchange")


def find_source(
    config: CopilotProviderConfig, environ: Mapping[str, str], stored: StoredCredentials | None = None
) -> Callable[[], CredentialSource[Session]]:
    """Return a function that finds the credential at each use, so that a new login needs no restart."""
    home = home_directory(environ)
    secret, mode, domain = config.credentials, config.auth, config.domain
    form = TokenForm(domain, mode)
    if secret is not None:
        path = find_named_file(secret)
        named = find_stored_source(secret, stored, form) or (None if path is None else TokenFile(path, form))
        if named is not None:
            return lambda: named
        given = _bare_token(partial(reveal, secret, environ), describe_place(secret), mode)
        return lambda: given
    places = copilot_credential_paths(environ, home) if home is not None else ()

    def find_saved() -> CredentialSource[Session]:
        own = next((path for path in places[:1] if path.is_file()), None)
        if own is None and environ.get(VARIABLE):
            return _bare_token(lambda: environ[VARIABLE].strip(), VARIABLE, mode)
        path = own or next((path for path in places if path.is_file() and _holds(path, domain)), None)
        return make_missing_source(NO_CREDENTIAL) if path is None else TokenFile(path, form)

    return find_saved


def _bare_token(read: Callable[[], str], location: str, mode: str) -> CredentialSource[Session]:
    """Return the source of a token, which is read again each time: an installation's is valid for an hour."""
    return GivenSource(location, lambda: _session(read(), location, mode))


def _holds(path: Path, domain: str) -> bool:
    return bool(_entry(load_table(path, REMEDY)[1], domain))


def _entry(table: Table, domain: str) -> Table:
    """Return the entry of the host, or of host and app; never that of another host."""
    for key in table:
        if (key == domain or key.startswith(f"{domain}:")) and read_text(read_table(table, key), "oauth_token"):
            return read_table(table, key)
    return {}


PUBLIC = "github.com"


def read_account_file(path: Path) -> Table | None:
    """Return what the store keeps of a credential file; None if it is another vendor's."""
    table = load_table(path, REMEDY)[1]
    domain = _find_domain(table)
    if not domain:
        return None
    TokenForm(domain, "auto").parse(table, str(path))
    return table


def _find_domain(table: Table) -> str:
    """Return the host whose token a file has first; empty if it has none."""
    hosts = (key.partition(":")[0] for key in table if read_text(read_table(table, key), "oauth_token"))
    return next(hosts, PUBLIC if read_text(read_table(table, OPENCODE), "refresh") else "")


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


class TokenResponse(Struct):
    """The response of GitHub's token endpoint, which reports errors with status 200 too."""

    access_token: str = ""
    refresh_token: str = ""  # only of apps whose tokens expire
    expires_in: float | None = None
    error: str = ""
    interval: float | None = None


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
        answer = response.parse(TokenResponse)
        if answer is None:
            raise CredentialError(f"GitHub responded with HTTP {response.status}", Kind.UPSTREAM)
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
        token = response.parse(_Token)
        if token is not None and token.token:
            return token
        raise CredentialError("GitHub responded without a Copilot token", Kind.UPSTREAM)
    if response.status not in (401, 403, 404):
        kind = Kind.RATE_LIMITED if response.status == 429 else Kind.UPSTREAM
        raise CredentialError(f"GitHub responded with HTTP {response.status}", kind)
    raise _read_refusal(response)


def _read_refusal(response: ServiceResponse) -> TokenRejected | CredentialError:
    body = response.parse(_Refusal) or _Refusal()
    if body.error_details is None:
        if response.status == 403 and "rate limit" in (body.message or "").lower():
            return CredentialError("GitHub's rate limit is reached", Kind.RATE_LIMITED)
        return TokenRejected(f"HTTP {response.status}")
    why = body.error_details.message or "no reason given"
    return TokenRejected(f"{body.error_details.notification_id}: {why[:200]}", kind=Kind.FORBIDDEN)
