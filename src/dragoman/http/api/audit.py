"""The audit log: who changed something or read a request's content."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import msgspec

from dragoman.accounts.usage_writer import UsageWriter
from dragoman.http.api.wire import CURSOR, LIMIT, Parameters, convert_errors, invalid_cursor, make_cursor, respond
from dragoman.http.routes import RoutedRequest
from dragoman.hub.failure import RequestError
from dragoman.store.store import AuditRow

LATEST = 2**62
STORE_TIMEOUT_S = 10.0
MAX_SUBJECT = 200


class AuditLog:
    """Adds rows to the store's log, and lists them."""

    def __init__(self, writer: UsageWriter) -> None:
        self._writer = writer

    async def record(
        self,
        request: RoutedRequest,
        action: str,
        subject: str,
        detail: Mapping[str, object] | None = None,
        actor: str = "",
    ) -> None:
        """Add a row before the action is done; raises RequestError if the row cannot be stored.

        The actor is the key of the request, unless another one is named.
        """
        now = time.time_ns() // 1_000_000
        text = "" if detail is None else msgspec.json.encode(detail).decode()
        row = AuditRow(now, actor or request.key, action, subject[:MAX_SUBJECT], request.exchange.address, text)
        with convert_errors():
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await self._writer.store.add_audit(row)

    @asynccontextmanager
    async def recording(
        self, request: RoutedRequest, action: str, subject: str, detail: Mapping[str, object] | None = None
    ) -> AsyncIterator[None]:
        """Add a row before an action, and a second one, `ACTION.failed`, if the action raises RequestError."""
        await self.record(request, action, subject, detail)
        try:
            yield
        except RequestError as refused:
            with suppress(RequestError):  # the caller gets the reason of the action
                await self.record(request, f"{action}.failed", subject, {"error": refused.failure.message})
            raise

    async def list_rows(self, request: RoutedRequest) -> None:
        query = Parameters(request.exchange.query, (LIMIT, CURSOR))
        limit, position = query.limit(), query.cursor()
        before = LATEST if position is None else int.from_bytes(position, "big")
        if before > LATEST:
            raise invalid_cursor()
        with convert_errors():
            async with asyncio.timeout(STORE_TIMEOUT_S):
                rows = await self._writer.store.audit_rows(before, limit)
        following = make_cursor(rows[-1].number.to_bytes(8, "big")) if len(rows) == limit else None
        respond(request, {"audit": [_describe(row) for row in rows], "next": following})


def _describe(row: AuditRow) -> dict[str, object]:
    return {
        "number": row.number,
        "time": datetime.fromtimestamp(row.time_ms / 1000, UTC).isoformat("T", "milliseconds"),
        "actor": row.actor,
        "address": row.address,
        "action": row.action,
        "subject": row.subject,
        "detail": msgspec.json.decode(row.detail) if row.detail else None,
        "previous": row.previous.hex(),
    }
