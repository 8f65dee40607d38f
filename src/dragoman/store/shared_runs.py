"""What gateways tell each other about runs: replies that are kept while they are made, and found by every replica."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from msgspec import Struct

from dragoman.translate.hub.failure import Failure


class RunCard(Struct, frozen=True, kw_only=True):
    """What a run is found by, and what is known of it before its reply begins."""

    id: str
    owner: str
    path: str
    digest: bytes  # of everything that decides the answer
    key: bytes | None  # its idempotency key
    model: str
    wants_array: bool


class RunBounds(Struct, frozen=True):
    """Bytes that the runs of all replicas may take in the shared state."""

    run: int
    owner: int
    all: int


class RunHead(Struct, frozen=True):
    """The head of a reply; its fields are in Latin-1."""

    status: int
    headers: Sequence[tuple[str, str]]


class RunEnd(Struct, frozen=True):
    """How a reply ended, and for how long it is kept."""

    is_whole: bool
    failure: Failure | None
    keep_s: float


class RunPart(Struct, kw_only=True):
    """What is added to a run in the shared state."""

    start: int  # the bytes that were added before
    pieces: Sequence[bytes] = ()  # of the body
    head: RunHead | None = None
    end: RunEnd | None = None  # with the last bytes
    signs: int = 0  # how many signs of life there were
    sign: bytes = b""  # the last one
    is_lost: bool = False  # its client left before the end, so that a retry may take it


class SharedRun(Struct, kw_only=True):
    """What is read of a run, from a piece on."""

    made: bytes  # differs once the run was added again, cut into other pieces
    card: RunCard
    head: RunHead | None
    pieces: Sequence[bytes]
    is_read: bool  # there are no further pieces now
    end: RunEnd | None
    signs: int
    sign: bytes


class Opening(Enum):
    """What became of a new run."""

    OPENED = "opened"
    CONFLICT = "conflict"  # another request has its idempotency key
    FULL = "full"  # there is no room for it


class JoinedId(Struct, frozen=True):
    """The run of the same request, whose reply is to be read instead of making one."""

    id: str


class Absence(Enum):
    """Why nothing is added to a run, or read of one."""

    UNKNOWN = "unknown"
    FULL = "full"  # there was no room for more of it, so that the run was removed; its replica may still make it


class RenewedRuns(Struct, frozen=True):
    epoch: bytes  # differs once the shared state has lost everything
    missing: frozenset[str]  # of the runs that were renewed


class SharedRuns(Protocol):
    """The runs of all replicas. Every answer may be None: the shared state does not answer now."""

    async def open(self, card: RunCard, *, is_retry: bool) -> Opening | JoinedId | None:
        """Add a run in one step, if no other one has its idempotency key.

        A retry without a key takes a lost run of the same request instead.
        """

    async def add(self, id: str, part: RunPart) -> int | Absence | None:
        """Return how many bytes of the body are there now; a part that begins elsewhere is not added."""

    async def read(self, id: str, place: int) -> SharedRun | Absence | None:
        """Return a run from a piece on; whoever reads it counts as a client of it for a while."""

    async def take(self, id: str) -> bool | None:
        """Return whether the run was not taken by a retry before."""

    async def release(self, id: str) -> bool | None:
        """Let others make a run of the same request, unless a client of another replica gets this one.

        Return whether none does.
        """

    async def renew(self, ids: Sequence[str]) -> RenewedRuns | None:
        """Say that the process that makes these runs is alive."""

    async def remove(self, id: str, *, is_outgrown: bool = False) -> bool | None:
        """Forget a run and its idempotency key; whoever reads one that was outgrown gets `Absence.FULL` for a while."""

    def listen(self, on_news: Callable[[str], None], on_gap: Callable[[], None]) -> Callable[[], None]:
        """Call `on_news` with each run that is read and has more, `on_gap` where some may have been missed."""

    async def stop(self) -> None:
        """End what only runs use."""
