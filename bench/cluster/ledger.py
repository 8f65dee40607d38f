"""What PostgreSQL says about leases, counters and rows, and Valkey about slots."""

import asyncio
import time
from collections.abc import Callable, Iterator

import asyncpg
from msgspec import Struct
from msgspec.structs import replace

COUNTER = "all:usd:total"
HELD = "SELECT count(*) FROM dragoman.meter_leases WHERE state = 0 AND at_ms < $1"
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
LEFT = """
    SELECT (SELECT count(*) FROM dragoman.meter_leases WHERE state < 2) AS leases,
        (SELECT coalesce(sum(reserved), 0) FROM dragoman.meter_counters) AS reserved,
        (SELECT coalesce(sum(running), 0) FROM dragoman.meter_counters) AS running,
        (SELECT spent FROM dragoman.meter_counters WHERE counter = $1) AS spent,
        (SELECT coalesce(sum(cost_nano_usd), 0) FROM dragoman.usage) AS of_rows,
        (SELECT count(*) FROM dragoman.usage WHERE lease <> '') AS rows,
        (SELECT count(*) - count(DISTINCT lease) FROM dragoman.usage WHERE lease <> '') AS second_rows
"""
POLL_S = 0.5


class Left(Struct, frozen=True):
    """What is there once no request runs."""

    leases: int  # that are running, or whose row is not written
    reserved: int
    running: int
    spent: int  # as the meter counts it
    of_rows: int
    rows: int
    second_rows: int  # of requests that have one already

    @property
    def is_settled(self) -> bool:
        return self.leases == self.reserved == self.running == 0

    def list_problems(self) -> Iterator[str]:
        if not self.is_settled:
            yield f"{self.leases} leases, {self.running} slots and {self.reserved} nanodollars are left"
        if self.spent != self.of_rows:
            yield f"the meter has {self.spent} nanodollars, the rows {self.of_rows}"
        if self.second_rows:
            yield f"{self.second_rows} requests have a second row"


class Ledger:
    """Reads the store of a cluster; while PostgreSQL is away, nothing is read."""

    def __init__(self, url: str, count_slots: Callable[[], int]) -> None:
        self._url = url
        self._count_slots = count_slots  # in Valkey

    async def read_clock(self) -> int:
        """Return the time of the store in milliseconds: leases have it."""
        return await self.fetch_value(NOW)

    async def measure_held(self, now_ms: int, patience_s: float) -> float:
        """Return for how many seconds from now on requests that began before `now_ms` hold their leases, at most."""
        began = time.monotonic()
        while time.monotonic() - began < patience_s:
            try:
                if not await self.fetch_value(HELD, now_ms):
                    break
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                pass  # PostgreSQL is what the fault is about
            await asyncio.sleep(POLL_S)
        return time.monotonic() - began

    async def fetch_value(self, query: str, *arguments: int) -> int:
        """Return the number that a query has as its result."""
        connection = await asyncpg.connect(self._url, timeout=5)
        try:
            return int(await connection.fetchval(query, *arguments))
        finally:
            connection.terminate()

    async def settle(self, patience_s: float) -> Left:
        """Return what is left once every lease has ended and has its row, or once the patience is over."""
        until = time.monotonic() + patience_s
        while True:
            left = await self.read()
            if left.is_settled or time.monotonic() > until:
                return left
            await asyncio.sleep(POLL_S)

    async def read(self) -> Left:
        connection = await asyncpg.connect(self._url, timeout=30)
        try:
            found = await connection.fetchrow(LEFT, COUNTER)
        finally:
            await connection.close()
        left = Left(**{name: int(value or 0) for name, value in found.items()})
        return replace(left, running=left.running + await asyncio.to_thread(self._count_slots))
