"""The search and fetch backends of a configuration, and which of them run the server tools of a provider's requests."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.problems import ConfigError
from dragoman.config.proxies import EnvironmentProxies
from dragoman.config.secret import SecretSource, resolve_secret
from dragoman.config.settings import ACCOUNT_BACKEND, NATIVE, Tools, WebFetch, WebSearch
from dragoman.net.body_threads import run_off_loop
from dragoman.net.client import DialOptions, SendRequest
from dragoman.net.headers import Header
from dragoman.net.tasks import spawn
from dragoman.server_tools.addresses import DomainRules
from dragoman.server_tools.guarded_fetch import GuardedFetcher
from dragoman.server_tools.mcp import HttpMcpServer, McpServer, StdioMcpServer
from dragoman.server_tools.service import ToolService
from dragoman.server_tools.tool_results import read_page, read_search
from dragoman.server_tools.web_fetch import FetchBackend, PageFetcher, PageLimits, TavilyFetch, limit_time
from dragoman.server_tools.web_search import (
    SEARCH_APIS,
    AccountSearch,
    RestSearch,
    SearchBackend,
    SearchQuery,
    ServiceAccount,
)
from dragoman.translate.hub.server_tools import (
    FETCH,
    SEARCH,
    FetchOutcome,
    SearchOutcome,
    ToolErrorCode,
    ToolFailure,
    ToolText,
)

NEED_ENDPOINT = frozenset(("searxng", "mcp"))


class McpSearch:
    """A search tool of an MCP server."""

    name = "mcp"

    def __init__(self, server: McpServer, tool: str) -> None:
        self.server = server
        self.tool = tool

    async def search(self, query: SearchQuery, timeout_s: float) -> SearchOutcome:
        result = await self.server.call_tool(self.tool, {"query": query.text}, timeout_s)
        if isinstance(result, ToolFailure):
            return result
        return await run_off_loop(result.size, lambda: read_search(result, self.name))


class McpFetch:
    """A fetch tool of an MCP server."""

    name = "mcp"

    def __init__(self, server: McpServer, settings: WebFetch) -> None:
        self.server = server
        self.tool = settings.tool
        self._settings = settings

    async def fetch(self, url: str, domains: DomainRules) -> FetchOutcome:
        return await limit_time(self.name, self._settings.timeout_s, self._read(url))

    async def _read(self, url: str) -> FetchOutcome:
        settings = self._settings
        result = await self.server.call_tool(self.tool, {"url": url}, settings.timeout_s)
        if isinstance(result, ToolFailure):
            return result
        return await run_off_loop(result.size, lambda: read_page(result, url, self.name, settings.max_chars))


class Network(Struct, frozen=True):
    """How backends reach the network."""

    send: SendRequest
    proxies: EnvironmentProxies | None
    environ: Mapping[str, str]
    user_agent: str


class McpServers:
    """The MCP servers of a configuration: closed once it is replaced and the last request that uses them has ended."""

    def __init__(self, servers: Sequence[McpServer] = ()) -> None:
        self._servers = servers
        self._users = 0
        self._is_retired = False

    def acquire(self) -> None:
        self._users += 1

    def release(self) -> None:
        self._users -= 1
        self._close_unused()

    def retire(self) -> None:
        """Note that no later request will use them."""
        self._is_retired = True
        self._close_unused()

    async def close(self) -> None:
        """Close them at once, whoever uses them."""
        await asyncio.gather(*(server.close() for server in self._servers))

    def _close_unused(self) -> None:
        if self._is_retired and self._users == 0 and self._servers:
            spawn(self.close(), name="close MCP servers")


class UnusableSearch:
    """A search service whose key cannot be read; the log of the start says why."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def search(self, query: SearchQuery, timeout_s: float) -> SearchOutcome:
        return _unreadable_key(self.name)


class UnusableFetch:
    """A fetch service whose key cannot be read."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def fetch(self, url: str, domains: DomainRules) -> FetchOutcome:
        return _unreadable_key(self.name)


def _unreadable_key(name: str) -> ToolFailure:
    return ToolFailure(ToolErrorCode.UNAVAILABLE, f"{name}: the gateway cannot read its API key.")


class Backends(Struct, frozen=True):
    """What a configuration offers, besides what an upstream or its account has."""

    search: Mapping[str, SearchBackend]  # by name
    fetch: FetchBackend | None
    servers: McpServers
    secrets: tuple[bytes, ...] = ()  # API keys, to be kept out of captures and results


def read_tool_secrets(settings: Tools, environ: Mapping[str, str]) -> tuple[bytes, ...]:
    """Return the API keys that can be read."""
    sources = (settings.web_search.api_key, settings.web_fetch.api_key)
    found = (None if source is None else _read_secret(source, environ) for source in sources)
    return tuple(key.encode() for key in found if key)


def make_backends(settings: Tools, network: Network) -> Backends:
    """Make every backend that is named. One whose secret cannot be read fails at each use."""
    servers: list[McpServer] = []
    search: dict[str, SearchBackend] = {}
    for name in settings.web_search.backend:
        if name not in (*SEARCH_APIS, "mcp"):
            continue
        if _is_unreadable(settings.web_search, network):
            search[name] = UnusableSearch(name)
        elif name in SEARCH_APIS:
            api = SEARCH_APIS[name]
            endpoint = api.endpoint or settings.web_search.endpoint or ""
            if settings.web_search.endpoint is not None and not NEED_ENDPOINT & set(settings.web_search.backend):
                endpoint = settings.web_search.endpoint
            account = ServiceAccount(endpoint, _secret(settings.web_search, network), network.user_agent)
            search[name] = RestSearch(api, account, _service(name, network))
        else:
            servers.append(_make_mcp_server(settings.web_search, network))
            search[name] = McpSearch(servers[-1], settings.web_search.tool)
    fetch = _make_fetch(settings.web_fetch, network, servers)
    return Backends(search, fetch, McpServers(servers), read_tool_secrets(settings, network.environ))


class CurrentBackends:
    """The backends of the configuration in effect. They stay while neither their settings nor their secrets change."""

    def __init__(self) -> None:
        self._settings: Tools | None = None
        self._backends: Backends | None = None

    def find(self, settings: Tools, network: Network) -> Backends:
        """Return those in use, or new ones if they have to be replaced."""
        old, secrets = self._backends, read_tool_secrets(settings, network.environ)
        if old is not None and self._settings == settings and old.secrets == secrets:
            return old
        self._settings, self._backends = settings, make_backends(settings, network)
        if old is not None:
            old.servers.retire()
        return self._backends

    async def close(self) -> None:
        if self._backends is not None:
            await self._backends.servers.close()


def _make_fetch(settings: WebFetch, network: Network, servers: list[McpServer]) -> FetchBackend | None:
    if settings.backend in ("tavily", "mcp") and _is_unreadable(settings, network):
        return UnusableFetch(settings.backend)
    match settings.backend:
        case "builtin":
            limits = PageLimits(
                settings.timeout_s,
                settings.max_bytes,
                settings.max_chars,
                network.user_agent,
                frozenset(settings.ports),
            )
            return PageFetcher(GuardedFetcher(network.send, proxies=network.proxies), limits)
        case "tavily":
            endpoint = settings.endpoint or SEARCH_APIS["tavily"].endpoint or ""
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


def _service(name: str, network: Network) -> ToolService:
    return ToolService(name, network.send, DialOptions(environment_proxies=network.proxies))


def _secret(settings: WebSearch | WebFetch, network: Network) -> str:
    return "" if settings.api_key is None else _read_secret(settings.api_key, network.environ) or ""


def _is_unreadable(settings: WebSearch | WebFetch, network: Network) -> bool:
    return settings.api_key is not None and _read_secret(settings.api_key, network.environ) is None


def _read_secret(source: SecretSource, environ: Mapping[str, str]) -> str | None:
    try:
        return resolve_secret(source, environ).reveal()
    except ConfigError:
        return None


LOCATES_BY_COUNTRY = frozenset(("brave",))


DescribeTool = Callable[
    [bool], Coroutine[object, object, ToolText | None]
]  # argument: whether it is for the first round of a reply


class ToolPlan(Struct, frozen=True):
    """The server tools of one provider's requests."""

    search: SearchBackend | None
    fetch: FetchBackend | None
    native: frozenset[str]  # kinds that the upstream can run itself
    search_settings: WebSearch
    servers: McpServers
    kinds: frozenset[str]  # that the gateway runs when a request is translated for this provider
    marks: tuple[bytes, ...]  # one of them stands in every body that declares a tool which the upstream cannot run
    secrets: tuple[bytes, ...] = ()
    describe_search: DescribeTool | None = None  # None: the gateway's own text is declared
    beside_functions: "ToolPlan | None" = None  # instead, where the upstream's own tools do not work beside functions

    @property
    def located_by(self) -> tuple[str, ...]:
        """Return the fields of a user's location that the search service uses."""
        return ("country",) if self.search is not None and self.search.name in LOCATES_BY_COUNTRY else ()

    def mentions(self, body: bytes) -> bool:
        """Whether a body that could pass unchanged may declare a tool that the upstream cannot run."""
        for mark in self.marks:  # noqa: SIM110 - a generator takes twice the time
            if body.find(mark) >= 0:
                return True
        return False


class UpstreamTools(Struct, frozen=True):
    """What a provider has without the gateway."""

    native: frozenset[str]  # kinds that the upstream can run itself
    account_search: AccountSearch | None
    mixes: bool = True  # its own tools work beside functions


def plan_tools(settings: Tools, backends: Backends, upstream: UpstreamTools) -> ToolPlan | None:
    """Choose the first search backend that fits; None if the gateway runs nothing for this provider."""
    native, account_search = upstream.native, upstream.account_search
    without_native = UpstreamTools(frozenset(), account_search)
    instead = None if upstream.mixes else plan_tools(settings, backends, without_native)
    search = _choose_search(settings.web_search, backends, native, account_search)
    fetch = None if FETCH in native else backends.fetch
    if search is None and fetch is None and instead is None:
        return None
    plan = make_plan(ChosenBackends(search, fetch, backends.servers, backends.secrets), native, settings)
    plan = plan if instead is None else replace(plan, beside_functions=instead)
    if account_search is None or search is not account_search:
        return plan
    return replace(plan, describe_search=account_search.describe)


class ChosenBackends(Struct, frozen=True):
    """The backends that run the tools of one provider's requests."""

    search: SearchBackend | None
    fetch: FetchBackend | None
    servers: McpServers
    secrets: tuple[bytes, ...] = ()


def make_plan(chosen: ChosenBackends, native: frozenset[str], settings: Tools) -> ToolPlan:
    search, fetch = chosen.search, chosen.fetch
    kinds = frozenset(kind for kind, backend in ((SEARCH, search), (FETCH, fetch)) if backend is not None)
    marks = tuple(kind.encode() for kind in sorted(kinds - native))
    return ToolPlan(search, fetch, native, settings.web_search, chosen.servers, kinds, marks, chosen.secrets)


def _choose_search(
    settings: WebSearch, backends: Backends, native: frozenset[str], account_search: SearchBackend | None
) -> SearchBackend | None:
    for name in settings.backend:
        if name == "off" or (name == NATIVE and SEARCH in native):
            return None
        if name == ACCOUNT_BACKEND and account_search is not None:
            return account_search
        if name in backends.search:
            return backends.search[name]
    return None
