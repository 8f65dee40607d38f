"""What conversations lost: told by a reply that was cut, asked for by the next request of that conversation."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from dragoman.passes.truncation_notice import LostCall
from dragoman.store import Store, StoreError, cut_calls

log = logging.getLogger(__name__)

_lost = msgspec.msgpack.Decoder(tuple[LostCall, ...])


class Memory:
    """Kept in the store where there is one, so that all workers share it; bounded, and expires."""

    def __init__(self, store: Store | None, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._own: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()

    async def remember(self, digest: bytes, lost: tuple[LostCall, ...]) -> None:
        now = int(self._clock())
        packed = msgspec.msgpack.encode(lost)
        if self._store is None:
            self._own[digest] = (now + cut_calls.LIFE_S, packed)
            while len(self._own) > cut_calls.KEPT:
                self._own.popitem(last=False)
            return
        try:
            await self._store.remember_cut(digest, packed, now)
        except StoreError as error:
            log.warning("a lost tool call could not be remembered: %s", error)

    async def recall(self, digests: tuple[bytes, ...]) -> tuple[LostCall, ...]:
        now = int(self._clock())
        if self._store is None:
            found = next((self._own[digest] for digest in digests if digest in self._own), None)
            packed = found[1] if found is not None and found[0] > now else None
        else:
            try:
                packed = await self._store.recall_cut(digests, now)
            except StoreError as error:
                log.warning("lost tool calls could not be recalled: %s", error)
                packed = None
        return _lost.decode(packed) if packed else ()
