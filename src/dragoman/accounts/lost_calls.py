"""Tool calls that a truncated reply lost, remembered for the conversation's next request."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from dragoman.passes.truncation_notice import LostCall
from dragoman.store import Store, StoreError
from dragoman.store.store import CUT_CALL_LIFE_S, MAX_CUT_CALLS, MAX_CUT_CALLS_PER_TENANT

T = TypeVar("T")

STORE_TIMEOUT_S = 0.5
CHECK_EVERY_S = 1.0  # how late a call that another worker lost may be noticed
STORE_RETRY_S = 10.0

log = logging.getLogger(__name__)

_lost = msgspec.msgpack.Decoder(tuple[LostCall, ...])


class LostCalls:
    """Lost calls by tenant and conversation; bounded, and they expire. A store lets all workers share them.

    The calls of one tenant are never returned to another, even if their conversations are equal. A store that fails is
    not used for a while: the request matters more than what the previous one lost.
    """

    def __init__(self, store: Store | None, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._own: OrderedDict[tuple[str, bytes], tuple[float, bytes]] = OrderedDict()
        self._left_alone_until = 0.0
        self._others_lost = False  # or this process before a restart
        self._looked_until = 0.0

    async def remember(self, tenant: str, digest: bytes, lost: tuple[LostCall, ...]) -> None:
        now = int(self._clock())
        packed = msgspec.msgpack.encode(lost)
        self._own.pop((tenant, digest), None)
        self._own[tenant, digest] = (now + CUT_CALL_LIFE_S, packed)
        self._make_room(tenant)
        await self._ask(lambda store: store.remember_cut(tenant, digest, packed, now))

    async def recall(self, tenant: str, digests: tuple[bytes, ...]) -> tuple[LostCall, ...]:
        now = int(self._clock())
        if await self._is_empty(now):
            return ()
        packed = await self._ask(lambda store: store.recall_cut(tenant, digests, now))
        if packed is None:
            found = next((self._own[tenant, digest] for digest in digests if (tenant, digest) in self._own), None)
            packed = found[1] if found is not None and found[0] > now else None
        return _lost.decode(packed) if packed else ()

    def _make_room(self, tenant: str) -> None:
        """Drop the oldest: first those of a tenant that exceeds its share, then of all."""
        own = [entry for entry in self._own if entry[0] == tenant]
        for entry in own[: max(0, len(own) - MAX_CUT_CALLS_PER_TENANT)]:
            del self._own[entry]
        while len(self._own) > MAX_CUT_CALLS:
            self._own.popitem(last=False)

    async def _is_empty(self, now: int) -> bool:
        """Return whether nothing was lost, which is nearly always so; the store is read only once in a while."""
        while self._own and next(iter(self._own.values()))[0] <= now:
            self._own.popitem(last=False)
        if self._own:
            return False
        if self._clock() >= self._looked_until:
            self._others_lost = bool(await self._ask(lambda store: store.has_cuts(now)))
            self._looked_until = self._clock() + CHECK_EVERY_S
        return not self._others_lost

    async def _ask(self, ask: Callable[[Store], Awaitable[T]]) -> T | None:
        if self._store is None or self._clock() < self._left_alone_until:
            return None
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                return await ask(self._store)
        except (StoreError, TimeoutError) as error:
            self._left_alone_until = self._clock() + STORE_RETRY_S
            log.warning("lost tool calls are not shared for a while: %s", error or "the store is slow")
            return None
