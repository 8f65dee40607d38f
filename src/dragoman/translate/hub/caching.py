"""How a translated request uses its upstream's prompt cache, as the values that `Target` carries to `build`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum

from msgspec import Raw, Struct

FIVE_MINUTES = "5m"
ONE_HOUR = "1h"
LIFE_S = {FIVE_MINUTES: 300.0, ONE_HOUR: 3600.0}


class CacheMode(Enum):
    """Who decides what is cached; the provider's setting `cache`."""

    AUTO = "auto"  # the gateway adds marks and keys
    CLIENT = "client"  # only what the client marked
    OFF = "off"  # no marks, no keys


class Moved(Enum):
    """How a target that a session has not used yet differs from where its last request went."""

    MODEL = "model"
    ACCOUNT = "account"  # or provider


class WrittenPrefix(Struct, frozen=True):
    """What the last request of a branch left in the upstream's cache."""

    blocks: int  # how many of its first blocks; 0: none, since nothing was marked
    expires_at: float


class SessionMemory(Struct, frozen=True):
    """What is remembered of the requests that a session has sent to one upstream model."""

    branches: tuple[bytes, ...] = ()  # digests of the blocks of each conversation, 8 bytes a block
    strays: int = 0  # how many requests in a row, up to the last one, continued none of the branches
    ttl: str = FIVE_MINUTES  # that fits the pauses of the session
    # The heads of the client key's last sessions, where none of them was continued; None: some were, or they are few.
    one_shot_heads: tuple[bytes, ...] | None = None
    written: tuple[WrittenPrefix, ...] = ()  # by each of the branches; captures of earlier versions have none
    moved: Moved | None = None  # None: the session is new, or has been here before


class CachePlan(Struct, frozen=True):
    """What `build` has to know to place marks and keys. By default only the client's own marks are sent."""

    mode: CacheMode = CacheMode.CLIENT
    ttl: str = FIVE_MINUTES  # of marks whose lifetime the client has not chosen
    memory: SessionMemory | None = None  # None: nothing is known about the session
    breakpoints: bool = False  # the model takes explicit breakpoints
    takes_keys: bool = True  # the host knows `prompt_cache_key`
    key: str | None = None  # of the session, where the client has none
    # Called with what was built, where marks are placed. None: it is not remembered.
    take: Callable[["BuiltPrompt"], None] | None = None


BodyFields = Mapping[str, Raw]


class BlockGroup(Struct, frozen=True):
    """Neighbouring blocks of a prompt that stand in one list or object of the request, or one that stands by itself."""

    section: str  # tools, system, settings or messages
    kind: int  # what distinguishes equal content in different places, such as a role: its checksum
    pointer: str  # JSON pointer of the list, of the object, or of the block
    blocks: Sequence[bytes | Raw]  # JSON
    is_list: bool = True
    offset: int = 0  # of the first block in the list
    names: tuple[str, ...] = ()  # of the blocks in the object; empty: they stand in a list, or one stands by itself

    def locate(self, block: int) -> str:
        """Return the JSON pointer of one of the blocks."""
        if self.names:
            return f"{self.pointer}/{self.names[block]}"
        return f"{self.pointer}/{block + self.offset}" if self.is_list else self.pointer


class SentPrompt(Struct, frozen=True):
    """What is remembered of a request, without content."""

    chain: bytes  # digests of its blocks, marks aside
    head: bytes = b""  # a digest of tools and system prompt, where marks are placed
    written: int = 0  # how many of its first blocks are written to the cache
    life_s: float = LIFE_S[FIVE_MINUTES]  # of what it writes


class MarkedBlocks(Struct, frozen=True):
    """The marks of a request to a vendor that caches at marks only."""

    marks: tuple[int, ...]  # the marked blocks, in order
    find_window: Callable[[int], int]  # the first block at which the vendor looks for an entry, by the marked one

    def reach(self, end: int) -> bool:
        """Whether the vendor finds, from one of the marks, an entry that ends before this block."""
        return any(mark + 1 >= end > self.find_window(mark) for mark in self.marks)


class BuiltPrompt(Struct, frozen=True):
    """A request that was built: what is remembered of it, and what is judged before that."""

    sent: SentPrompt
    sizes: tuple[int, ...]  # bytes of each block
    list_groups: Callable[[], Iterable[BlockGroup]]
    marked: MarkedBlocks | None = None  # None: the vendor needs no marks
    minimum: int = 0  # tokens below which nothing is cached

    def find_place(self, block: int) -> tuple[str, str] | None:
        """Return the section and the JSON pointer of a block in the upstream's request; None behind the last."""
        for group in self.list_groups():
            if block < len(group.blocks):
                return group.section, group.locate(block)
            block -= len(group.blocks)
        return None
