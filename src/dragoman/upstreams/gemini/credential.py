"""Access tokens for Vertex AI: from a command, a file as gcloud writes it, or a Google machine's metadata server."""

import asyncio
import shlex
from asyncio import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.config.discovery import home_directory
from dragoman.config.settings import GeminiProviderConfig
from dragoman.net.headers import Header
from dragoman.translate.hub.failure import Kind
from dragoman.upstreams.credentials.credential import (
    Credential,
    CredentialError,
    CredentialForm,
    CredentialSource,
    GivenSource,
    Table,
    TokenRejected,
    is_sendable,
    load_table,
)
from dragoman.upstreams.credentials.service_client import ServiceClient, ServiceResponse
from dragoman.upstreams.credentials.stored import StoredCredentials, find_stored_source

TOKEN_URL = "https://oauth2.googleapis.com/token"
METADATA_HOST = "metadata.google.internal"
COMMAND, METADATA, DEFAULT = "command:", "metadata", "adc"  # values of `credentials`; anything else is a file
COMMAND_TIMEOUT_S = 30.0
COMMAND_LIFE_S = 600.0  # a command does not say how long its token is valid
MAX_TOKEN_BYTES = 16 * 1024
DEFAULT_LIFE_S = 3600.0
_METADATA_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"
_FLAVOR: Header = (b"metadata-flavor", b"Google")
_JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
REMEDY = "Run `gcloud auth application-default login`, or set `credentials`"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ASSERTION_LIFE_S = 3600
NO_CRYPTOGRAPHY = (
    "a service account needs the package cryptography in the environment of dragoman; "
    "run: pip install cryptography (with pipx: pipx inject dragoman cryptography)"
)


class GoogleToken(Credential, frozen=True, kw_only=True):
    """A token, and what a new one is requested with; without a refresh token, what identifies the source."""

    method: str  # authorized_user, service_account, command or metadata
    client_id: str = ""
    client_secret: str = ""
    private_key: str = ""
    email: str = ""
    quota_project: str = ""

    @property
    def secrets(self) -> tuple[str, ...]:
        own = self.refresh_token if self.method == "authorized_user" else ""
        return tuple(filter(None, (self.access_token, own, self.client_secret, self.private_key)))


class _File(Struct):
    """A credentials file as gcloud and the console write it."""

    type: str = ""
    client_id: str = ""
    client_secret: str = ""
    refresh_token: str = ""
    private_key: str = ""
    private_key_id: str = ""
    client_email: str = ""
    quota_project_id: str = ""


def _parse(found: _File, location: str) -> GoogleToken:
    if found.type == "authorized_user" and found.refresh_token:
        return GoogleToken(
            method=found.type,
            refresh_token=found.refresh_token,
            client_id=found.client_id,
            client_secret=found.client_secret,
            quota_project=found.quota_project_id,
        )
    if found.type == "service_account" and found.private_key:
        key = found.private_key_id or found.client_email
        return GoogleToken(
            method=found.type, refresh_token=key, private_key=found.private_key, email=found.client_email
        )
    raise CredentialError(f"{location} has the type {found.type!r}, which cannot be used here. {REMEDY}")


class FileForm(CredentialForm[GoogleToken]):
    """A credentials file, which renewals do not change: each process has an access token of its own."""

    kind = "gemini"
    remedy = REMEDY

    def parse(self, table: Table, location: str) -> GoogleToken:
        try:
            return _parse(msgspec.convert(table, _File), location)
        except msgspec.ValidationError as error:
            raise CredentialError(f"{location} is no credentials file. {REMEDY}") from error

    def is_written(self, credential: GoogleToken) -> bool:
        return False


FORM = FileForm()


def read_account_file(path: Path) -> Table | None:
    """Return what the store keeps of a credentials file; None if it is another vendor's."""
    table = load_table(path, REMEDY)[1]
    if "type" not in table:
        return None
    FORM.parse(table, str(path))
    return table


def _file_source(path: Path) -> CredentialSource[GoogleToken]:
    """Return the source of a file of another program's, which is never written."""
    return GivenSource(str(path), lambda: FORM.parse(load_table(path, REMEDY)[1], str(path)))


def _named_source(method: str, text: str, location: str) -> CredentialSource[GoogleToken]:
    """Return a source without a file: a command or the metadata server."""
    return GivenSource(location, lambda: GoogleToken(method=method, refresh_token=text))


def find_source(
    config: GeminiProviderConfig, environ: Mapping[str, str], stored: StoredCredentials | None = None
) -> Callable[[], CredentialSource[GoogleToken]]:
    """Return a function that finds the source at each use, so that a new login needs no restart."""
    text = config.credentials.text if config.credentials is not None else DEFAULT
    if text.startswith(COMMAND):
        command = text.removeprefix(COMMAND).strip()
        return lambda: _named_source("command", command, f"command {command.partition(' ')[0]}")
    if text == METADATA:
        return lambda: _metadata_server(environ)
    if text == DEFAULT:
        return lambda: _find_default(environ)
    shared = None if config.credentials is None else find_stored_source(config.credentials, stored, FORM)
    if shared is not None:
        return lambda: shared
    path = Path(text.removeprefix("file:"))
    return lambda: _file_source(path)


def _find_default(environ: Mapping[str, str]) -> CredentialSource[GoogleToken]:
    """Return the source that Google's own libraries would use."""
    named = environ.get("GOOGLE_APPLICATION_CREDENTIALS", "").strip()
    if named:
        return _file_source(Path(named))
    home = home_directory(environ)
    directory = environ.get("CLOUDSDK_CONFIG") or (home / ".config" / "gcloud" if home is not None else None)
    path = Path(directory) / "application_default_credentials.json" if directory else None
    return _file_source(path) if path is not None and path.is_file() else _metadata_server(environ)


def _metadata_server(environ: Mapping[str, str]) -> CredentialSource[GoogleToken]:
    host = environ.get("GCE_METADATA_HOST", "").strip() or METADATA_HOST
    return _named_source("metadata", host, f"metadata server {host}")


class _Answer(Struct):
    access_token: str = ""
    expires_in: float = DEFAULT_LIFE_S
    error: str = ""


class TokenIssuer:
    """Gets new tokens."""

    remedy = REMEDY

    def __init__(self, service: ServiceClient, url: str, environ: Mapping[str, str]) -> None:
        self._service = service
        self._url = url
        self._environ = environ

    async def renew(self, old: GoogleToken) -> GoogleToken:
        match old.method:
            case "authorized_user":
                client = {"client_id": old.client_id, "client_secret": old.client_secret}
                form = {**client, "grant_type": "refresh_token", "refresh_token": old.refresh_token}
                answer = _read_answer(await self._service.post_form(self._url, form))
            case "service_account":
                now = int(self._service.clock.now())
                assertion = sign_assertion(old, self._url, now)
                form = {"grant_type": _JWT_GRANT, "assertion": assertion}
                answer = _read_answer(await self._service.post_form(self._url, form))
            case "metadata":
                url = f"http://{old.refresh_token}{_METADATA_PATH}"
                answer = _read_answer(await self._service.request("GET", url, (_FLAVOR,)))
            case _:
                answer = _Answer(await _run(old.refresh_token, self._environ), COMMAND_LIFE_S)
        expires_at = self._service.clock.now() + answer.expires_in
        return msgspec.structs.replace(old, access_token=answer.access_token, expires_at=expires_at)

    def describe_rejection(self, credential: GoogleToken, rejected: TokenRejected) -> str:
        return f"Google does not renew it ({rejected.code})"


def _read_answer(response: ServiceResponse) -> _Answer:
    answer = response.parse(_Answer) or _Answer()
    if response.status == 200 and answer.access_token and is_sendable(answer.access_token):
        return answer
    if response.status in (400, 401, 403) and answer.error:
        raise TokenRejected(answer.error[:64], is_permanent=answer.error == "invalid_grant")
    raise CredentialError(f"Google responded with HTTP {response.status} without a token", Kind.UPSTREAM)


async def _run(command: str, environ: Mapping[str, str]) -> str:
    """Return what the command prints. Raises CredentialError with its exit code, never with its output."""
    try:
        words = shlex.split(command)
        process = await subprocess.create_subprocess_exec(
            *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=dict(environ)
        )
    except (OSError, ValueError) as error:
        raise CredentialError(f"the command of `credentials` cannot be run: {error}") from error
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            printed, _ = await process.communicate()
    except TimeoutError as late:
        process.kill()
        await process.wait()
        raise CredentialError(f"the command of `credentials` took more than {COMMAND_TIMEOUT_S:g} s") from late
    token = printed[:MAX_TOKEN_BYTES].decode(errors="replace").strip()
    if process.returncode or not token or not is_sendable(token):
        raise CredentialError(f"the command of `credentials` printed no token (exit code {process.returncode})")
    return token


def sign_assertion(account: GoogleToken, issuer_url: str, now: int) -> str:
    """Return the signed assertion that the token endpoint takes. Raises CredentialError if the key is not usable."""
    try:
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    except ImportError as missing:
        raise CredentialError(NO_CRYPTOGRAPHY) from missing
    header = {"alg": "RS256", "typ": "JWT", "kid": account.refresh_token}
    claims = {"iss": account.email, "scope": SCOPE, "aud": issuer_url, "iat": now, "exp": now + ASSERTION_LIFE_S}
    signed = b".".join(_encode_base64url(msgspec.json.encode(part)) for part in (header, claims))
    try:
        key = serialization.load_pem_private_key(account.private_key.encode(), None)
    except ValueError as error:
        raise CredentialError("the private key of the service account cannot be read") from error
    if not isinstance(key, RSAPrivateKey):
        raise CredentialError("the private key of the service account is no RSA key")
    return b".".join((signed, _encode_base64url(key.sign(signed, PKCS1v15(), hashes.SHA256())))).decode()


def _encode_base64url(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")
