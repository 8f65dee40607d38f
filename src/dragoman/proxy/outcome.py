"""The outcome of one request: the only input of its usage row, its log line and its metrics."""

from collections.abc import Callable

from msgspec import Struct

from dragoman.translate.hub.server_tools import FETCH, SEARCH
from dragoman.translate.hub.usage import Usage

OK = "ok"
CLIENT_GONE = "client_gone"  # the client closed the connection before the end
CANCELLED = "cancelled"  # a tool run that was given up with its request


class FailedAttempt(Struct, frozen=True, gc=False):
    """A failed attempt to get a reply from an upstream."""

    route: str  # provider/model
    why: str  # the value of a failure's Kind


class ToolRun(Struct, frozen=True, gc=False):
    """A web search or fetch that the gateway ran for the model."""

    tool: str  # web_search or web_fetch
    backend: str
    result: str  # OK, CANCELLED, or the value of a ToolErrorCode
    duration_s: float


class Origin(Struct, frozen=True, kw_only=True, gc=False):
    """Who made a request; what is not known is empty."""

    session: str = ""  # which several conversations may share
    agent: str = ""  # the client's own id of a subagent
    parent_agent: str = ""


UNKNOWN_ORIGIN = Origin()


class TurnUsage(Struct, frozen=True, gc=False):
    """What one upstream request has used."""

    provider: str
    model: str  # the upstream's name
    usage: Usage


class CacheUse(Struct, frozen=True, gc=False):
    """What the upstream's prompt cache could have had of a request, and why it had less."""

    possible_tokens: int | None = None  # of the input; None: not known
    miss: str | None = None  # the value of a Miss; None: it had nine tenths of what it could, or that is not known
    miss_path: str | None = None  # JSON pointer of the first block of the upstream's request that differs


UNKNOWN_CACHE_USE = CacheUse()


class Outcome(Struct, gc=False):
    """Complete once its record has made it; observers change nothing of it."""

    request_id: str  # the gateway's own, as in x-dragoman-request-id and log lines
    started_at: float  # seconds since the epoch
    client_protocol: str
    key: str = ""  # the id of the client's key, never the key
    client: str = ""  # the client program, by its user agent
    upstream_protocol: str = ""  # "" if no upstream was reached
    requested_model: str = ""  # the model name in the client's request
    provider: str = ""
    model: str = ""  # the upstream's name of the model
    reported_model: str = ""  # the model name in the reply
    stream: bool = False
    passthrough: bool = False
    usage: Usage | None = None  # None: not reported and not estimated
    ttft_s: float | None = None
    duration_s: float = 0.0
    outcome: str = OK  # or CLIENT_GONE, or the kind of the failure
    error_code: str | None = None  # the vendor's error code
    losses: int = 0
    losses_by_how: tuple[int, ...] = ()  # counts in the order of LossKind; () if there are none
    deltas: int = 0
    failed_attempts: tuple[FailedAttempt, ...] = ()  # before the last attempt
    rounds: int = 1  # parts of the reply: one, and another after each run of server tools
    attempts: int = 0  # upstream requests that were sent: failed ones, every round, and those that complete a cut call
    is_answered: bool = True  # the last of them was answered; else it is the last failed attempt
    tool_runs: tuple[ToolRun, ...] = ()
    origin: Origin = UNKNOWN_ORIGIN
    cache_use: CacheUse = UNKNOWN_CACHE_USE
    traceparent: str = ""  # the client's traceparent header, unchanged
    run: str = ""  # the resumable reply that the client got, which several requests may share
    client_request_id: str = ""  # as the client sent it in x-request-id; not unique
    upstream_bytes: int = 0  # of the last upstream's stream, as they came; 0 for one that was not streamed
    upstream_chunks: int = 0  # reads that they came in
    user: str = ""  # whose key it was, and of which team, at that moment
    team: str = ""
    tags: str = ""  # that the client has given to its request: "job=7,branch=main"
    lease: str = ""  # under which it was admitted; empty: no limit applied
    turns: tuple[TurnUsage, ...] = ()  # whose sum the usage is; () of a single one
    charged_nano: int | None = None  # nanodollars that its limits have counted; None: no limit, or no price

    @property
    def route(self) -> str:
        return f"{self.provider}/{self.model}" if self.provider else ""

    @property
    def web_searches(self) -> int:
        """Return how many searches succeeded, whether the gateway or the upstream ran them."""
        return max(self._count_runs(SEARCH), 0 if self.usage is None else self.usage.web_searches)

    @property
    def web_fetches(self) -> int:
        """Return how many pages were fetched, by the gateway or the upstream."""
        return max(self._count_runs(FETCH), 0 if self.usage is None else self.usage.web_fetches)

    def _count_runs(self, tool: str) -> int:
        """Return how many runs of ours succeeded; the usage has those before the last round that was answered."""
        return sum(run.tool == tool and run.result == OK for run in self.tool_runs)


OutcomeObserver = Callable[[Outcome], None]
