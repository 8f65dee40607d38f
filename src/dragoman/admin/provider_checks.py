"""Check one provider: does its server respond, does it accept the credential, and who can read its secrets."""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from dragoman.accounts.credential import PATH_ENDS, find_named_file
from dragoman.config import ConfigError, ProviderConfig
from dragoman.config.discovery import find_credentials, home_directory
from dragoman.config.providers import list_credentials
from dragoman.config.secret import SecretSource
from dragoman.framing.known_secrets import list_secrets, redact_known
from dragoman.framing.redaction import redact
from dragoman.net.client import ConnectionLost, HttpClient, OutgoingRequest, UpstreamTimeout
from dragoman.net.headers import Header
from dragoman.protocols import PROTOCOLS
from dragoman.providers import KINDS
from dragoman.providers.account_state import BROKEN, OK, WARNING, Finding
from dragoman.providers.provider import Provider

TIMEOUT_S = 10.0
OTHERS = 0o077  # the mode bits of group and others

SeeDate = Callable[[bytes | None], None]  # called with the Date header of a response


async def check_provider(config: ProviderConfig, label: str, http: HttpClient, see_date: SeeDate) -> list[Finding]:
    """Check one provider with one credential; `label` names the credential where there are several."""
    name = f"provider {config.name}"
    what = f"{name}, credential {label}" if label else name
    try:
        provider = KINDS[config.kind](config, http.send, os.environ)
        if provider.account.inspect is not None:
            findings = [_redact(finding, provider) for finding in await provider.account.inspect()]
            return [replace(finding, what=finding.what.replace(name, what, 1)) for finding in findings]
        if config.kind == "echo":
            return [Finding(what, OK, "built in")]
        headers = await provider.auth.authorize(provider.endpoint.protocols[0])
        if not provider.catalogue.has_list:
            return [Finding(what, OK, "has a credential; without a model list, nothing else can be checked for free")]
    except ConfigError as error:
        return [Finding(what, BROKEN, str(error), "set it, or remove the provider")]
    return [await _request_models(what, provider, headers, http, see_date)]


def find_readable_secrets(config: ProviderConfig, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Report the files with a provider's secrets that other users can read."""
    for path in _secret_files(config, environ):
        mode = _mode(path)
        if mode & OTHERS:
            found = f"{path} can be read by others (mode {mode:o})"
            yield Finding(f"secrets of {config.name}", WARNING, found, f"chmod 600 {path}")


def _redact(finding: Finding, provider: Provider) -> Finding:
    """Remove secrets from a finding: a server may repeat what it was sent, a secret of `headers` for example."""
    found = redact_known(finding.found.encode(errors="replace"), list_secrets((), provider.auth.secrets)).decode()
    return replace(finding, found=redact(found))


async def _request_models(
    what: str, provider: Provider, credential: tuple[Header, ...], http: HttpClient, see_date: SeeDate
) -> Finding:
    upstream = PROTOCOLS[provider.endpoint.protocols[0]].upstream
    assert upstream is not None
    headers = (*provider.endpoint.headers, *upstream.required_headers, *credential)
    request = OutgoingRequest("GET", provider.catalogue.list_url or f"{provider.endpoint.url}/models", headers)
    try:
        response = await http.send(request, provider.endpoint.dial, head_timeout_s=TIMEOUT_S)
    except (ConnectionLost, UpstreamTimeout, ValueError) as fault:
        to_do = f"check that {provider.endpoint.url} is right and its server is up; a proxy belongs in `proxy`"
        return Finding(what, BROKEN, redact(str(fault)), to_do)
    see_date(response.headers.get(b"date"))
    response.close()
    return _judge_status(what, provider.endpoint.url, response.status)


def _judge_status(what: str, endpoint: str, status: int) -> Finding:
    if status == 200:
        return Finding(what, OK, f"{endpoint} responds and accepts the credential")
    if status in (401, 403):
        return Finding(what, BROKEN, f"{endpoint} rejects the credential (HTTP {status})", "renew `api_key`")
    if status == 404:
        to_do = "list them in `models`, and check the path of the endpoint"
        return Finding(what, WARNING, f"{endpoint} responds, but lists no models (HTTP 404)", to_do)
    return Finding(what, WARNING, f"{endpoint} responds with HTTP {status}", "try again later")


def _secret_files(config: ProviderConfig, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files that are configured, else the one that is found."""
    configured = list_credentials(config)
    home = home_directory(environ)
    if not configured and home is not None:
        found = find_credentials(environ, home).get(config.kind)
        if found is not None:
            yield found
    for credential in configured:
        path = _secret_file(credential) if isinstance(credential, SecretSource) else credential
        if path is not None:
            yield path


def _secret_file(secret: SecretSource) -> Path | None:
    if secret.text.startswith("file:"):
        return Path(secret.text.removeprefix("file:"))
    return find_named_file(secret, PATH_ENDS)


def _mode(path: Path) -> int:
    """Return the mode of a file; 0 where there is no such file, or where modes mean nothing."""
    try:
        return stat.S_IMODE(path.stat().st_mode) if os.name == "posix" else 0
    except OSError:
        return 0
