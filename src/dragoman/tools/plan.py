"""Decide for one provider which server tools the gateway runs, and with which backends."""

from msgspec import Struct

from dragoman.config.settings import Tools, WebFetch, WebSearch
from dragoman.tools.backends import Backends, McpServers
from dragoman.tools.web_fetch import FetchBackend
from dragoman.tools.web_search import SearchBackend

LOCATES_BY_COUNTRY = frozenset(("brave",))
SEARCH = "web_search"
FETCH = "web_fetch"


class ToolPlan(Struct, frozen=True):
    """The server tools of one provider's requests."""

    search: SearchBackend | None
    fetch: FetchBackend | None
    native: frozenset[str]  # kinds that the upstream can run itself
    search_settings: WebSearch
    fetch_settings: WebFetch
    servers: McpServers
    secrets: tuple[bytes, ...] = ()

    @property
    def kinds(self) -> frozenset[str]:
        """Return the kinds that the gateway runs when a request is translated for this provider."""
        found = ((SEARCH, self.search), (FETCH, self.fetch))
        return frozenset(kind for kind, backend in found if backend is not None)

    @property
    def located_by(self) -> tuple[str, ...]:
        """Return the fields of a user's location that the search service uses."""
        return ("country",) if self.search is not None and self.search.name in LOCATES_BY_COUNTRY else ()

    def mentions(self, body: bytes) -> bool:
        """Whether a body that could pass unchanged may declare a tool that the upstream cannot run."""
        return any(kind.encode() in body for kind in self.kinds - self.native)


def plan_tools(
    settings: Tools, backends: Backends, native: frozenset[str], account_search: SearchBackend | None
) -> ToolPlan | None:
    """Choose the first search backend that fits; None if the gateway runs nothing for this provider."""
    search = _choose_search(settings.web_search, backends, native, account_search)
    fetch = None if FETCH in native else backends.fetch
    if search is None and fetch is None:
        return None
    return ToolPlan(search, fetch, native, settings.web_search, settings.web_fetch, backends.servers, backends.secrets)


def _choose_search(
    settings: WebSearch, backends: Backends, native: frozenset[str], account_search: SearchBackend | None
) -> SearchBackend | None:
    for name in settings.backend:
        if name == "off" or (name == "native" and SEARCH in native):
            return None
        if name == "kiro" and account_search is not None:
            return account_search
        if name in backends.search:
            return backends.search[name]
    return None
