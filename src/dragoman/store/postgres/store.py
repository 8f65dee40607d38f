"""The store on PostgreSQL: operations come in, each on a connection of a small pool; results go out."""

from collections.abc import Sequence
from functools import partial

from dragoman.store.client_keys import KeyId, KeyRow
from dragoman.store.postgres import client_keys, cut_calls, usage
from dragoman.store.postgres.connecting import Connections
from dragoman.store.usage_rows import By, Span, UsageRow, UsageSum


class PostgresStore:
    """May be shared by several gateways. Nothing here waits for longer than a bounded time."""

    def __init__(self, url: str) -> None:
        self._connections = Connections(url)

    @property
    def name(self) -> str:
        return self._connections.name

    async def open(self) -> None:
        await self.version()

    async def close(self) -> None:
        await self._connections.close()

    async def version(self) -> int:
        return await self._connections.run(client_keys.changes)

    async def add_key(self, row: KeyRow, digest: bytes) -> None:
        await self._connections.run(partial(client_keys.add, row=row, digest=digest))

    async def add_first_key(self, row: KeyRow, digest: bytes) -> bool:
        return await self._connections.run(partial(client_keys.add_first, row=row, digest=digest))

    async def keys(self) -> tuple[KeyRow, ...]:
        return await self._connections.run(client_keys.rows)

    async def live_digests(self) -> dict[bytes, KeyId]:
        return await self._connections.run(client_keys.live_digests)

    async def find_key(self, digest: bytes) -> KeyRow | None:
        return await self._connections.run(partial(client_keys.find, digest=digest))

    async def revoke_key(self, which: str, now: int) -> KeyRow | None:
        return await self._connections.run(partial(client_keys.revoke, which=which, now=now))

    async def touch_keys(self, used: frozenset[KeyId], now: int) -> None:
        await self._connections.run(partial(client_keys.touch, used=used, now=now))

    async def remember_cut(self, tenant: str, digest: bytes, lost: bytes, now: int) -> None:
        await self._connections.run(partial(cut_calls.remember, tenant=tenant, digest=digest, lost=lost, now=now))

    async def recall_cut(self, tenant: str, digests: tuple[bytes, ...], now: int) -> bytes | None:
        return await self._connections.run(partial(cut_calls.recall, tenant=tenant, digests=digests, now=now))

    async def has_cuts(self, now: int) -> bool:
        return await self._connections.run(partial(cut_calls.has_any, now=now))

    async def append_usage(self, rows: Sequence[UsageRow]) -> None:
        await self._connections.run(partial(usage.append, rows=rows))

    async def remove_usage(self, before_ms: int, most: int) -> int:
        return await self._connections.run(partial(usage.remove, before_ms=before_ms, most=most))

    async def usage_rows(self, span: Span) -> tuple[UsageRow, ...]:
        return await self._connections.run(partial(usage.rows, span=span))

    async def usage_sums(self, span: Span, by: By) -> tuple[UsageSum, ...]:
        return await self._connections.run(partial(usage.sums, span=span, by=by))
