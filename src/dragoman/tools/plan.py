"""Decide for one provider which server tools the gateway runs, and with which backends."""

from collections.abc import Callable, Coroutine

from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.settings import ACCOUNT_BACKEND, NATIVE, Tools, WebSearch
from dragoman.hub.server_tools import FETCH, SEARCH, ToolText
from dragoman.tools.backends import Backends, McpServers
from dragoman.tools.web_fetch import FetchBackend
from dragoman.tools.web_search import AccountSearch, SearchBackend

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
        return max(map(body.find, self.marks), default=-1) >= 0


def plan_tools(
    settings: Tools,
    backends: Backends,
    native: frozenset[str],
    account_search: AccountSearch | None,
    *,
    mixes: bool = True,
) -> ToolPlan | None:
    """Choose the first search backend that fits; None if the gateway runs nothing for this provider.

    `mixes`: the tools that the upstream runs itself work beside functions.
    """
    instead = None if mixes else plan_tools(settings, backends, frozenset(), account_search)
    search = _choose_search(settings.web_search, backends, native, account_search)
    fetch = None if FETCH in native else backends.fetch
    if search is None and fetch is None and instead is None:
        return None
    plan = make_plan(search, fetch, native, settings, backends.servers, backends.secrets)
    plan = plan if instead is None else replace(plan, beside_functions=instead)
    if account_search is None or search is not account_search:
        return plan
    return replace(plan, describe_search=account_search.describe)


def make_plan(
    search: SearchBackend | None,
    fetch: FetchBackend | None,
    native: frozenset[str],
    settings: Tools,
    servers: McpServers,
    secrets: tuple[bytes, ...] = (),
) -> ToolPlan:
    kinds = frozenset(kind for kind, backend in ((SEARCH, search), (FETCH, fetch)) if backend is not None)
    marks = tuple(kind.encode() for kind in sorted(kinds - native))
    return ToolPlan(search, fetch, native, settings.web_search, servers, kinds, marks, secrets)


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
