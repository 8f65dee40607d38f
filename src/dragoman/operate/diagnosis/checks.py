"""Check providers, and the backends of web search and web fetch: do they respond, and do they accept the credential."""

import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.discovery import find_credentials, home_directory
from dragoman.config.problems import ConfigError
from dragoman.config.providers import find_stored_name, list_credentials, split_by_credential
from dragoman.config.proxies import read_proxies
from dragoman.config.secret import SecretSource, find_unreadable_secrets
from dragoman.config.settings import ACCOUNT_BACKEND, Config, ProviderConfig, WebSearch
from dragoman.net.client import ConnectionLost, HttpClient, OutgoingRequest, UpstreamTimeout
from dragoman.server_tools.backends import McpFetch, McpSearch, Network, make_backends
from dragoman.server_tools.web_search import SEARCH_APIS, SearchBackend, SearchQuery, search
from dragoman.translate.framing.known_secrets import list_secrets, redact_known
from dragoman.translate.framing.redaction import redact
from dragoman.translate.hub.server_tools import FETCH, SEARCH, ToolFailure
from dragoman.translate.protocols import PROTOCOLS
from dragoman.upstreams import KINDS, Surroundings
from dragoman.upstreams.account_state import BROKEN, OK, WARNING, Finding
from dragoman.upstreams.credentials.credential import PATH_ENDS, find_named_file
from dragoman.upstreams.provider import Provider, SendRequest, UnsignedRequest
from dragoman.upstreams.section import USER_AGENT

MODELS_TIMEOUT_S = 10.0
OTHERS = 0o077  # the mode bits of group and others

SeeDate = Callable[[bytes | None], None]  # called with the Date header of a response
QUERY = "weather"


async def check_provider(config: ProviderConfig, label: str, around: Surroundings, see_date: SeeDate) -> list[Finding]:
    """Check one provider with one credential; `label` names the credential where there are several."""
    name = f"provider {config.name}"
    what = f"{name}, credential {label}" if label else name
    try:
        provider = KINDS[config.kind](config, around)
        if provider.account.inspect is not None:
            findings = [_redact_finding(finding, provider) for finding in await provider.account.inspect()]
            return [replace(finding, what=finding.what.replace(name, what, 1)) for finding in findings]
        if config.kind == "echo":
            return [Finding(what, OK, "built in")]
        # The request for the list of models, without its credential.
        protocol = provider.endpoint.protocols[0]
        upstream = PROTOCOLS[protocol].upstream
        assert upstream is not None
        headers = (*provider.endpoint.headers, *upstream.required_headers)
        url = provider.catalogue.list_url or f"{provider.endpoint.url}/models"
        request = UnsignedRequest(protocol, "GET", url, headers)
        credentials = await provider.auth.authorize(request)
        if not provider.catalogue.has_list:
            return [Finding(what, OK, "has a credential; without a model list, nothing else can be checked for free")]
    except ConfigError as error:
        return [Finding(what, BROKEN, str(error), "set it, or remove the provider")]
    status = await _ask_status(provider, request.add_credentials(credentials), around.send, see_date)
    return [_judge_status(what, provider.endpoint.url, status)]


def find_readable_secrets(config: ProviderConfig, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Report the files with a provider's secrets that other users can read."""
    for path in _secret_files(config, environ):
        mode = _mode(path)
        if mode & OTHERS:
            found = f"{path} can be read by others (mode {mode:o})"
            yield Finding(f"secrets of {config.name}", WARNING, found, f"chmod 600 {path}")


def _redact_finding(finding: Finding, provider: Provider) -> Finding:
    """Remove secrets from a finding: a server may repeat what it was sent, a secret of `headers` for example."""
    found = redact_known(finding.found.encode(errors="replace"), list_secrets((), provider.auth.secrets)).decode()
    return replace(finding, found=redact(found))


async def _ask_status(provider: Provider, out: OutgoingRequest, send: SendRequest, see_date: SeeDate) -> int | str:
    """Return the status of the response, or why there is none."""
    try:
        response = await send(out, provider.endpoint.dial, head_timeout_s=MODELS_TIMEOUT_S)
    except (ConnectionLost, UpstreamTimeout, ValueError) as fault:
        return redact(str(fault))
    see_date(response.headers.get(b"date"))
    response.close()
    return response.status


def _judge_status(what: str, endpoint: str, status: int | str) -> Finding:
    if isinstance(status, str):
        to_do = f"check that {endpoint} is right and its server is up; a proxy belongs in `proxy`"
        return Finding(what, BROKEN, status, to_do)
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
        if path is not None and find_stored_name(credential) is None:
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


class _Section(Struct, frozen=True):
    """Where a tool is configured."""

    tool: str
    timeout_s: float

    @property
    def key(self) -> str:
        return f"tools.{self.tool}"

    def name(self, backend: str) -> str:
        return f"{self.tool.replace('_', ' ')}, {backend}"


async def check_tools(config: Config, environ: Mapping[str, str], http: HttpClient) -> list[Finding]:
    """Search once with each configured service, and list the tools of each MCP server. No page is fetched."""
    network = Network(http.send, read_proxies(environ), environ, USER_AGENT)
    backends = make_backends(config.tools, network)
    secrets = list_secrets((), backends.secrets)
    try:
        findings = [finding async for finding in _check_backends(config, environ, backends.search, backends.fetch)]
    finally:
        await backends.servers.close()
    return [replace(finding, found=_redact_text(finding.found, secrets)) for finding in findings]


async def _check_backends(
    config: Config, environ: Mapping[str, str], searches: Mapping[str, SearchBackend], fetch: object
) -> AsyncIterator[Finding]:
    settings = config.tools
    section = _Section(SEARCH, settings.web_search.timeout_s)
    problems = find_unreadable_secrets(settings.web_search, environ)
    for name, backend in searches.items():
        if problems:
            yield Finding(section.name(name), BROKEN, str(problems[0]), f"set it, or correct {section.key}.api_key")
        elif isinstance(backend, McpSearch):
            yield await _check_mcp(section, backend)
        else:
            yield await _try_search(section, backend)
    section = _Section(FETCH, settings.web_fetch.timeout_s)
    problems = find_unreadable_secrets(settings.web_fetch, environ)
    if problems:
        what = section.name(settings.web_fetch.backend)
        yield Finding(what, BROKEN, str(problems[0]), f"set it, or correct {section.key}.api_key")
    elif isinstance(fetch, McpFetch):
        yield await _check_mcp(section, fetch)


async def check_account_search(config: ProviderConfig, settings: WebSearch, around: Surroundings) -> list[Finding]:
    """Search once with a provider's own search, if it has one and is configured to be used."""
    if ACCOUNT_BACKEND not in settings.backend:
        return []
    try:
        first = split_by_credential(config)[0]
        provider = KINDS[first.kind](first, around)
    except ConfigError:
        return []  # which the check of the provider reports
    if provider.account.search is None:
        return []
    finding = await _try_search(_Section(SEARCH, settings.timeout_s), provider.account.search)
    secrets = list_secrets((), provider.auth.secrets)
    state = OK if finding.state == OK else WARNING  # its chat works without
    to_do = "" if state == OK else "requests with web search go without it; see the check of the provider"
    what = f"{SEARCH.replace('_', ' ')}, {config.name}"
    return [Finding(what, state, _redact_text(finding.found, secrets), to_do)]


async def _try_search(section: _Section, backend: SearchBackend) -> Finding:
    outcome = await search(backend, SearchQuery(QUERY, 1), section.timeout_s)
    what = section.name(backend.name)
    if isinstance(outcome, ToolFailure):
        keys = "endpoint" if not (backend.name in SEARCH_APIS and SEARCH_APIS[backend.name].needs_key) else "api_key"
        return Finding(what, BROKEN, outcome.message, f"check {section.key}.{keys}, and that the service is up")
    if not outcome.results:
        return Finding(what, WARNING, f"responds, but found nothing for {QUERY!r}", "check its engines and its index")
    return Finding(what, OK, f"responds, and found pages for {QUERY!r}")


async def _check_mcp(section: _Section, backend: McpSearch | McpFetch) -> Finding:
    listed = await backend.server.list_tools(section.timeout_s)
    what = section.name(backend.name)
    if isinstance(listed, ToolFailure):
        return Finding(what, BROKEN, listed.message, f"check {section.key}.command or {section.key}.endpoint")
    names = [tool.name for tool in listed.tools]
    if backend.tool in names:
        return Finding(what, OK, f"responds, and has the tool {backend.tool!r}")
    found = f"has no tool {backend.tool!r}, but {', '.join(map(repr, names)) or 'none'}"
    return Finding(what, BROKEN, found, f"set {section.key}.tool")


def _redact_text(text: str, secrets: tuple[bytes, ...]) -> str:
    return redact(redact_known(text.encode(errors="replace"), secrets).decode(errors="replace"))
