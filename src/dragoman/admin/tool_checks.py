"""Check the backends of web search and web fetch: do their services respond, and do they accept the credential."""

from collections.abc import AsyncIterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from dragoman.config import Config, ConfigError, ProviderConfig
from dragoman.config.providers import split_by_credential
from dragoman.config.proxies import read_proxies
from dragoman.config.secret import find_unreadable_secrets
from dragoman.config.settings import WebSearch
from dragoman.framing.known_secrets import list_secrets, redact_known
from dragoman.framing.redaction import redact
from dragoman.hub.server_tools import FETCH, SEARCH, ToolFailure
from dragoman.net.client import HttpClient
from dragoman.providers import KINDS
from dragoman.providers.account_state import BROKEN, OK, WARNING, Finding
from dragoman.providers.connection import USER_AGENT
from dragoman.tools.backends import McpFetch, McpSearch, Network, make_backends
from dragoman.tools.search_services import SEARCH_APIS
from dragoman.tools.web_search import SearchBackend, SearchQuery, search

QUERY = "weather"
ACCOUNT_BACKEND = "kiro"  # a search that comes with a provider's account


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
    return [replace(finding, found=_redact(finding.found, secrets)) for finding in findings]


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


async def check_account_search(
    config: ProviderConfig, settings: WebSearch, environ: Mapping[str, str], http: HttpClient
) -> list[Finding]:
    """Search once with a provider's own search, if it has one and is configured to be used."""
    if ACCOUNT_BACKEND not in settings.backend:
        return []
    first = split_by_credential(config)[0]
    try:
        provider = KINDS[first.kind](first, http.send, environ)
    except ConfigError:
        return []  # which the check of the provider reports
    if provider.account.search is None:
        return []
    finding = await _try_search(_Section(SEARCH, settings.timeout_s), provider.account.search)
    secrets = list_secrets((), provider.auth.secrets)
    state = OK if finding.state == OK else WARNING  # its chat works without
    to_do = "" if state == OK else "requests with web search go without it; see the check of the provider"
    what = f"{SEARCH.replace('_', ' ')}, {config.name}"
    return [Finding(what, state, _redact(finding.found, secrets), to_do)]


async def _try_search(section: _Section, backend: SearchBackend) -> Finding:
    outcome = await search(backend, SearchQuery(QUERY, 1), section.timeout_s)
    what = section.name(backend.name)
    if isinstance(outcome, ToolFailure):
        keys = "endpoint" if not _needs_key(backend.name) else "api_key"
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


def _needs_key(name: str) -> bool:
    return name in SEARCH_APIS and SEARCH_APIS[name].needs_key


def _redact(text: str, secrets: tuple[bytes, ...]) -> str:
    return redact(redact_known(text.encode(errors="replace"), secrets).decode(errors="replace"))
