"""Make the search and fetch backends of a configuration."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from dragoman.config.proxies import EnvironmentProxies
from dragoman.config.secret import resolve_secret
from dragoman.config.settings import Tools, WebFetch, WebSearch
from dragoman.hub.server_tools import FetchOutcome, SearchOutcome, ToolFailure
from dragoman.net.client import DialOptions, SendRequest
from dragoman.net.headers import Header
from dragoman.tools.domains import DomainRules
from dragoman.tools.guarded_fetch import GuardedFetcher
from dragoman.tools.mcp import HttpMcpServer, McpServer, StdioMcpServer
from dragoman.tools.search_services import SEARCH_APIS, Account, RestSearch
from dragoman.tools.service import Service
from dragoman.tools.tool_results import read_page, read_search
from dragoman.tools.web_fetch import PageFetcher, PageLimits, TavilyFetch
from dragoman.tools.web_search import SearchBackend, SearchQuery


class FetchBackend(Protocol):
    @property
    def name(self) -> str: ...
    async def fetch(self, url: str, domains: DomainRules) -> FetchOutcome: ...


class McpSearch:
    """A search tool of an MCP server."""

    name = "mcp"

    def __init__(self, server: McpServer, tool: str) -> None:
        self._server = server
        self._tool = tool

    async def search(self, query: SearchQuery, timeout_s: float) -> SearchOutcome:
        result = await self._server.call_tool(self._tool, {"query": query.text}, timeout_s)
        return result if isinstance(result, ToolFailure) else read_search(result, self.name)


class McpFetch:
    """A fetch tool of an MCP server."""

    name = "mcp"

    def __init__(self, server: McpServer, settings: WebFetch) -> None:
        self._server = server
        self._settings = settings

    async def fetch(self, url: str, domains: DomainRules) -> FetchOutcome:
        settings = self._settings
        result = await self._server.call_tool(settings.tool, {"url": url}, settings.timeout_s)
        return result if isinstance(result, ToolFailure) else read_page(result, url, self.name, settings.max_chars)


class Network(Struct, frozen=True):
    """How backends reach the network."""

    send: SendRequest
    proxies: EnvironmentProxies | None
    environ: Mapping[str, str]
    user_agent: str


class Backends(Struct, frozen=True):
    """What a configuration offers, besides what an upstream or its account has."""

    search: Mapping[str, SearchBackend]  # by name
    fetch: FetchBackend | None
    servers: tuple[McpServer, ...] = ()  # to be closed when the configuration is replaced

    async def close(self) -> None:
        for server in self.servers:
            await server.close()


def make_backends(settings: Tools, network: Network) -> Backends:
    """Make every backend that is named. Raises ConfigError if a secret cannot be read."""
    servers: list[McpServer] = []
    search: dict[str, SearchBackend] = {}
    for name in settings.web_search.backend:
        if name in SEARCH_APIS:
            search[name] = _make_rest_search(name, settings.web_search, network)
        elif name == "mcp":
            servers.append(_make_mcp_server(settings.web_search, network))
            search[name] = McpSearch(servers[-1], settings.web_search.tool)
    fetch = _make_fetch(settings.web_fetch, network, servers)
    return Backends(search, fetch, tuple(servers))


def _make_rest_search(name: str, settings: WebSearch, network: Network) -> SearchBackend:
    api = SEARCH_APIS[name]
    endpoint = (settings.endpoint if api.endpoint is None else api.endpoint) or ""
    account = Account(endpoint.rstrip("/"), _secret(settings, network), network.user_agent)
    return RestSearch(api, account, _service(name, network))


def _make_fetch(settings: WebFetch, network: Network, servers: list[McpServer]) -> FetchBackend | None:
    match settings.backend:
        case "builtin":
            limits = PageLimits(settings.timeout_s, settings.max_bytes, settings.max_chars, network.user_agent)
            return PageFetcher(GuardedFetcher(network.send, proxies=network.proxies), limits)
        case "tavily":
            endpoint = (settings.endpoint or "https://api.tavily.com").rstrip("/")
            return TavilyFetch(endpoint, _secret(settings, network), _service("tavily", network), settings)
        case "mcp":
            servers.append(_make_mcp_server(settings, network))
            return McpFetch(servers[-1], settings)
        case "off":
            return None


def _make_mcp_server(settings: WebSearch | WebFetch, network: Network) -> McpServer:
    if settings.endpoint is None:
        return StdioMcpServer("mcp", settings.command, {})
    headers: tuple[Header, ...] = ((b"user-agent", network.user_agent.encode()),)
    secret = _secret(settings, network)
    if secret:
        headers = (*headers, (b"authorization", b"Bearer " + secret.encode()))
    return HttpMcpServer(settings.endpoint, _service("mcp", network), headers)


def _service(name: str, network: Network) -> Service:
    return Service(name, network.send, DialOptions(environment_proxies=network.proxies))


def _secret(settings: WebSearch | WebFetch, network: Network) -> str:
    return "" if settings.api_key is None else resolve_secret(settings.api_key, network.environ).reveal()
