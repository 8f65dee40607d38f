"""What the store has of the last hour: the live page counts requests from before a restart, too."""

import asyncio
import time
from collections.abc import Mapping

from msgspec import Struct

from dragoman.server.console.live_requests import ERRORS_S, HOUR_S, NANO, Row
from dragoman.store import Store, StoreError
from dragoman.store.rollup import SumQuery
from dragoman.store.usage_rows import UsageSum

READ_S = 5.0  # between two reads of one feed
TIMEOUT_S = 2.0
FOREVER_MS = 10**17


class StoredHour(Struct, frozen=True):
    """Sums over the stored requests that began in the last hour; of their errors, in the last five minutes."""

    requests: int = 0
    cost_nano_usd: int = 0
    unpriced: int = 0
    errors: int = 0

    def complete(self, totals: Mapping[str, object]) -> Row:
        """Return what a worker counted itself, or the stored sums where they have more.

        Each of them may lack some: a worker those before its start, the store those of the last moment.
        """
        counted = totals["requests_last_hour"], totals["errors"]
        assert isinstance(counted[0], int)
        assert isinstance(counted[1], int)
        completed = {**totals, "errors": max(self.errors, counted[1])}
        if self.requests < counted[0]:
            return completed
        return completed | {
            "requests_last_hour": self.requests,
            "cost_last_hour_usd": self.cost_nano_usd / NANO,
            "unpriced_last_hour": self.unpriced,
            "is_partial": False,
        }


class HourReader:
    """Reads the last hour of one key, or of all, for one feed. While the store fails, the last sums are kept."""

    def __init__(self, store: Store | None, key: str | None) -> None:
        self._store = store
        self._key = key
        self._due_at = 0.0
        self._hour = StoredHour()

    async def read(self) -> StoredHour:
        """Return the sums, read again if they are older than READ_S."""
        if self._store is None or time.monotonic() < self._due_at:
            return self._hour
        try:
            async with asyncio.timeout(TIMEOUT_S):
                self._hour = await self._sum(self._store)
        except (StoreError, TimeoutError):
            pass
        self._due_at = time.monotonic() + READ_S
        return self._hour

    async def _sum(self, store: Store) -> StoredHour:
        hour, minutes = await self._sum_since(store, HOUR_S), await self._sum_since(store, ERRORS_S)
        if hour is None:
            return StoredHour()
        errors = 0 if minutes is None else minutes.failed
        return StoredHour(hour.requests, hour.cost_nano_usd, hour.counted - hour.priced, errors)

    async def _sum_since(self, store: Store, seconds: float) -> UsageSum | None:
        since_ms = round((time.time() - seconds) * 1000)
        sums = await store.read_usage_sums(SumQuery(since_ms, FOREVER_MS, self._key, step_ms=0))
        return sums[0] if sums else None
