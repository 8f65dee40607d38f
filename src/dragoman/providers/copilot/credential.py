"""A stanza and the environment come in; where a GitHub token is found, and how requests prove themselves with it."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct

from dragoman.accounts.credential import NEVER, Source, Unusable, is_sendable
from dragoman.accounts.json_table import Table, inner, load, text
from dragoman.accounts.named import named_file, revealed, shown
from dragoman.config.installed import copilot_places, home_of
from dragoman.config.settings import CopilotProviderConfig

REMEDY = "`dragoman login copilot`"
VARIABLE = "COPILOT_GITHUB_TOKEN"
OPENCODE = "github-copilot"

# Tokens of GitHub Apps, the editors' among them, are exchanged; those of OAuth apps and installations work themselves.
MODES = {"ghu_": "exchange", "gho_": "direct", "github_pat_": "direct", "ghs_": "server"}


class Session(Struct, frozen=True):
    """What requests carry. Where that is exchanged for the GitHub token, the latter is what renews it."""

    access_token: str = ""
    refresh_token: str = ""
    expires_at: float = 0.0
    api: str = ""  # where GitHub says that it is served
    account: str = ""

    def __repr__(self) -> str:
        return "Session(***)"


class GithubToken:
    """Read anew each time: a person may sign in again, and an installation's token lives an hour. Never written."""

    lock = None

    def __init__(self, read: Callable[[], str], where: str, mode: str) -> None:
        self._read = read
        self.where = where
        self._mode = mode

    def read(self) -> Session:
        token = self._read()
        if not token or not is_sendable(token):
            raise Unusable(f"{self.where} holds no GitHub token: {REMEDY}")
        if token.startswith("ghp_"):
            raise Unusable(f"{self.where} holds a classic personal access token, which Copilot does not take: {REMEDY}")
        if mode_of(token, self._mode) == "exchange":
            return Session(refresh_token=token)
        return Session(access_token=token, expires_at=NEVER)

    def write(self, consumed: Session, fresh: Session) -> bool:
        return True


def mode_of(token: str, configured: str) -> str:
    if configured != "auto":
        return configured
    return next((mode for prefix, mode in MODES.items() if token.startswith(prefix)), "exchange")


def source_of(config: CopilotProviderConfig, environ: Mapping[str, str]) -> Callable[[], Source[Session]]:
    """Looked for at each use: a login made while we run is found without a restart."""
    home = home_of(environ)
    secret, mode, domain = config.credentials, config.auth, config.domain
    if secret is not None:
        path = named_file(secret)
        read = partial(revealed, secret, environ) if path is None else partial(_stored, path, domain)
        configured = GithubToken(read, shown(secret) if path is None else str(path), mode)
        return lambda: configured
    places = copilot_places(environ, home) if home is not None else ()

    def found() -> Source[Session]:
        own = next((path for path in places[:1] if path.is_file()), None)
        if own is None and environ.get(VARIABLE):
            return GithubToken(lambda: environ[VARIABLE].strip(), VARIABLE, mode)
        path = own or next((path for path in places if path.is_file() and _token(path, domain)), None)
        if path is None:
            return GithubToken(_nothing, "no credential", mode)
        return GithubToken(partial(_stored, path, domain), str(path), mode)

    return found


def _nothing() -> str:
    raise Unusable(f"it has no credential: {REMEDY} makes one, {VARIABLE} holds one, or `credentials` names one")


def _stored(path: Path, domain: str) -> str:
    token = _token(path, domain)
    if not token:
        raise Unusable(f"{path} holds no token for {domain}: {REMEDY}")
    return token


def _token(path: Path, domain: str) -> str:
    _, table = load(path, REMEDY)
    return _entry(table, domain) or text(inner(table, OPENCODE), "refresh")


def _entry(table: Table, domain: str) -> str:
    """By the host alone, or by host and app; nothing of another host is ever used."""
    for key in table:
        if key == domain or key.startswith(f"{domain}:"):
            token = text(inner(table, key), "oauth_token")
            if token:
                return token
    return ""
