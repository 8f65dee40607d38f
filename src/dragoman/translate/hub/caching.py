"""How a translated request uses its upstream's prompt cache, as the values that `Target` carries to `build`."""

from collections.abc import Callable
from enum import Enum

from msgspec import Struct

FIVE_MINUTES = "5m"
ONE_HOUR = "1h"


class CacheMode(Enum):
    """Who decides what is cached; the provider's setting `cache`."""

    AUTO = "auto"  # the gateway adds marks and keys
    CLIENT = "client"  # only what the client marked
    OFF = "off"  # no marks, no keys


class SessionMemory(Struct, frozen=True):
    """What is remembered of the requests that a session has sent to one upstream model."""

    branches: tuple[bytes, ...] = ()  # chained digests of the blocks of each conversation, 8 bytes a block
    strays: int = 0  # how many requests in a row, up to the last one, continued none of the branches
    ttl: str = FIVE_MINUTES  # that fits the pauses of the session
    # The heads of the client key's last sessions, where none of them was continued; None: some were, or they are few.
    one_shot_heads: tuple[bytes, ...] | None = None


class CachePlan(Struct, frozen=True):
    """What `build` has to know to place marks and keys. By default only the client's own marks are sent."""

    mode: CacheMode = CacheMode.CLIENT
    ttl: str = FIVE_MINUTES  # of marks whose lifetime the client has not chosen
    memory: SessionMemory | None = None  # None: nothing is known about the session
    breakpoints: bool = False  # the model takes explicit breakpoints
    takes_keys: bool = True  # the host knows `prompt_cache_key`
    key: str | None = None  # of the session, where the client has none
    take: Callable[["SentPrompt"], None] = lambda sent: None  # called with what was built


class SentPrompt(Struct, frozen=True):
    """What is remembered of a request that was built."""

    chain: bytes  # chained digests of its blocks, marks aside
    head: bytes  # the digest at the end of tools and system prompt
