"""GitHub tokens for Copilot: where they are stored, and whether they are exchanged or used directly."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dragoman.accounts.credential import NEVER_EXPIRES, CredentialError, Source, is_sendable
from dragoman.accounts.credential_files import (
    Table,
    describe_place,
    encode_table,
    find_named_file,
    load_table,
    read_table,
    read_text,
    replace_file,
    reveal,
)
from dragoman.accounts.timestamps import format_timestamp, parse_timestamp
from dragoman.config.discovery import copilot_credential_paths, home_directory
from dragoman.config.settings import CopilotProviderConfig

REMEDY = "`dragoman login copilot`"
VARIABLE = "COPILOT_GITHUB_TOKEN"
OPENCODE = "github-copilot"

# Tokens of GitHub Apps, such as editors, are exchanged; those of OAuth apps and installations are used directly.
MODES = {"ghu_": "exchange", "gho_": "direct", "github_pat_": "direct", "ghs_": "server"}


class Session(Struct, frozen=True):
    """The token that requests carry, and what renews it: the GitHub token it was exchanged for, or a refresh token."""

    access_token: str = ""
    refresh_token: str = ""
    expires_at: float = 0.0
    api: str = ""  # the API's URL as GitHub reports it
    client_id: str = ""  # of the app that the refresh token belongs to
    account: str = ""

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.access_token, self.refresh_token)

    def __repr__(self) -> str:
        return "Session(***)"


class GithubToken:
    """A bare token, read again each time: an installation's is valid for an hour."""

    lock = None

    def __init__(self, read: Callable[[], str], location: str, mode: str) -> None:
        self._read = read
        self.location = location
        self._mode = mode

    def read(self) -> Session:
        return _session(self._read(), self.location, self._mode)

    def write(self, consumed: Session, fresh: Session) -> bool:
        return True


class TokenFile:
    """Our own file, or that of an editor's plugin. Only our own contains renewable tokens and is written."""

    def __init__(self, path: Path, domain: str, mode: str) -> None:
        self._path = path
        self._domain = domain
        self._mode = mode

    @property
    def location(self) -> str:
        return str(self._path)

    @property
    def lock(self) -> Path | None:
        return self._path if _entry(load_table(self._path, REMEDY)[1], self._domain).get("refresh_token") else None

    def read(self) -> Session:
        _, table = load_table(self._path, REMEDY)
        entry = _entry(table, self._domain)
        token = read_text(entry, "oauth_token") or read_text(read_table(table, OPENCODE), "refresh")
        if not token:
            raise CredentialError(f"{self._path} holds no token for {self._domain}: {REMEDY}")
        mode = (read_text(entry, "auth") or self._mode) if self._mode == "auto" else self._mode
        session = _session(token, self.location, mode)
        if not read_text(entry, "refresh_token") or not session.access_token:
            return session
        return replace(
            session,
            refresh_token=read_text(entry, "refresh_token"),
            expires_at=parse_timestamp(read_text(entry, "expires_at")) or 0.0,
            client_id=read_text(entry, "client_id"),
        )

    def write(self, consumed: Session, fresh: Session) -> bool:
        if not consumed.client_id:
            return True  # exchanged tokens are kept in memory
        content, table = load_table(self._path, REMEDY)
        entry = _entry(table, self._domain)
        if read_text(entry, "refresh_token") != consumed.refresh_token:
            return False
        renewed = {**entry, **renewable_fields(fresh.access_token, fresh.refresh_token, fresh.expires_at)}
        return replace_file(self._path, encode_table({**table, self._domain: renewed}), content)


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


def find_source(config: CopilotProviderConfig, environ: Mapping[str, str]) -> Callable[[], Source[Session]]:
    """Return a function that finds the credential at each use, so that a new login needs no restart."""
    home = home_directory(environ)
    secret, mode, domain = config.credentials, config.auth, config.domain
    if secret is not None:
        path = find_named_file(secret)
        if path is not None:
            file = TokenFile(path, domain, mode)
            return lambda: file
        given = GithubToken(partial(reveal, secret, environ), describe_place(secret), mode)
        return lambda: given
    places = copilot_credential_paths(environ, home) if home is not None else ()

    def found() -> Source[Session]:
        own = next((path for path in places[:1] if path.is_file()), None)
        if own is None and environ.get(VARIABLE):
            return GithubToken(lambda: environ[VARIABLE].strip(), VARIABLE, mode)
        path = own or next((path for path in places if path.is_file() and _holds(path, domain)), None)
        return GithubToken(_nothing, "no credential", mode) if path is None else TokenFile(path, domain, mode)

    return found


def _nothing() -> str:
    raise CredentialError(f"no credential found. Run {REMEDY}, or set ${VARIABLE} or `credentials`")


def _holds(path: Path, domain: str) -> bool:
    return bool(_entry(load_table(path, REMEDY)[1], domain))


def _entry(table: Table, domain: str) -> Table:
    """Return the entry of the host, or of host and app; never that of another host."""
    for key in table:
        if (key == domain or key.startswith(f"{domain}:")) and read_text(read_table(table, key), "oauth_token"):
            return read_table(table, key)
    return {}
