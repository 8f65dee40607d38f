"""The store on PostgreSQL."""

from collections.abc import Sequence
from functools import partial

from dragoman.store.postgres import tables, usage
from dragoman.store.postgres.connection import ConnectionPool
from dragoman.store.postgres.responses import PostgresResponses
from dragoman.store.postgres.runs import PostgresRuns
from dragoman.store.rollup import SumQuery
from dragoman.store.store import AuditRow, KeyId, KeyRow, LiveKey, Rotation, SessionRow
from dragoman.store.usage_rows import RequestPage, RequestSearch, UsageRow, UsageSpan, UsageSum


class PostgresStore:
    """Runs each operation on a pooled connection, with a timeout; several gateways may share the database."""

    def __init__(self, url: str) -> None:
        self._connections = ConnectionPool(url)
        self.responses = PostgresResponses(self._connections)
        self.runs = PostgresRuns(self._connections)

    @property
    def name(self) -> str:
        return self._connections.name

    async def open(self) -> None:
        await self.version()

    async def close(self) -> None:
        await self._connections.close()

    async def version(self) -> int:
        return await self._connections.run(tables.count_key_changes)

    async def add_key(self, row: KeyRow, digest: bytes) -> None:
        await self._connections.run(partial(tables.add_key, row=row, digest=digest))

    async def add_first_key(self, row: KeyRow, digest: bytes) -> bool:
        return await self._connections.run(partial(tables.add_first_key, row=row, digest=digest))

    async def list_keys(self) -> tuple[KeyRow, ...]:
        return await self._connections.run(tables.list_keys)

    async def list_live_keys(self) -> tuple[LiveKey, ...]:
        return await self._connections.run(tables.list_live_keys)

    async def find_key(self, digest: bytes) -> KeyRow | None:
        return await self._connections.run(partial(tables.find_key, digest=digest))

    async def revoke_key(self, which: str, now: int, version: int | None = None) -> KeyRow | None:
        return await self._connections.run(partial(tables.revoke_key, which=which, now=now, version=version))

    async def rotate_key(self, which: str, rotation: Rotation, version: int | None = None) -> KeyRow | None:
        return await self._connections.run(partial(tables.rotate_key, which=which, rotation=rotation, version=version))

    async def touch_keys(self, used: frozenset[KeyId], now: int) -> None:
        await self._connections.run(partial(tables.touch_keys, used=used, now=now))

    async def remember_cut(self, tenant: str, digest: bytes, lost: bytes, now: int) -> None:
        await self._connections.run(partial(tables.remember_cut, tenant=tenant, digest=digest, lost=lost, now=now))

    async def recall_cut(self, tenant: str, digests: tuple[bytes, ...], now: int) -> bytes | None:
        return await self._connections.run(partial(tables.recall_cut, tenant=tenant, digests=digests, now=now))

    async def has_cuts(self, now: int) -> bool:
        return await self._connections.run(partial(tables.has_cuts, now=now))

    async def append_usage(self, rows: Sequence[UsageRow]) -> None:
        await self._connections.run(partial(usage.append_usage, rows=rows))

    async def remove_usage(self, before_ms: int, limit: int) -> int:
        return await self._connections.run(partial(usage.remove_usage, before_ms=before_ms, limit=limit))

    async def read_usage_rows(self, span: UsageSpan) -> tuple[UsageRow, ...]:
        return await self._connections.run(partial(usage.list_usage, span=span))

    async def read_usage_sums(self, query: SumQuery) -> tuple[UsageSum, ...]:
        return await self._connections.query(partial(usage.sum_usage, query=query))

    async def read_ttft_counts(self, query: SumQuery) -> dict[str, dict[int, int]]:
        return await self._connections.query(partial(usage.count_ttft, query=query))

    async def search_requests(self, search: RequestSearch) -> RequestPage:
        return await self._connections.query(partial(usage.search_requests, search=search))

    async def add_audit(self, row: AuditRow) -> None:
        await self._connections.run(partial(tables.add_audit, row=row))

    async def remove_audit(self, before_ms: int) -> int:
        return await self._connections.run(partial(tables.remove_audit, before_ms=before_ms))

    async def list_audit_rows(self, before: int, limit: int) -> tuple[AuditRow, ...]:
        return await self._connections.query(partial(tables.list_audit, before=before, limit=limit))

    async def add_session(self, row: SessionRow) -> None:
        await self._connections.run(partial(tables.add_session, row=row))

    async def find_session(self, digest: bytes) -> SessionRow | None:
        return await self._connections.run(partial(tables.find_session, digest=digest))

    async def touch_session(self, id: str, used_at: int) -> None:
        await self._connections.run(partial(tables.touch_session, id=id, used_at=used_at))

    async def end_session(self, id: str) -> bool:
        return await self._connections.run(partial(tables.end_session, id=id))

    async def list_sessions(self) -> tuple[SessionRow, ...]:
        return await self._connections.run(tables.list_sessions)
