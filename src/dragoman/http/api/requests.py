"""Past requests: search them page by page, export them; read and replay their captures, with a row in the audit log."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextvars import Context
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from dragoman.accounts.keys import ENVIRONMENT_KEY
from dragoman.accounts.usage_writer import UsageWriter
from dragoman.admin.captures import describe_capture, find_capture, find_captured, list_captures
from dragoman.admin.request_filter import parse_filter
from dragoman.admin.usage import format_csv_header, format_csv_rows
from dragoman.flow.capture.files import to_json
from dragoman.flow.capture.format import Capture
from dragoman.flow.gateway import Gateway
from dragoman.http.api.operations import AuditLog
from dragoman.http.api.wire import (
    CURSOR,
    LIMIT,
    NoFields,
    Parameters,
    convert_errors,
    invalid_cursor,
    make_cursor,
    read_body,
    respond,
    respond_bytes,
    response_headers,
)
from dragoman.http.routes import RoutedRequest
from dragoman.hub.failure import BadRequest
from dragoman.store import Store
from dragoman.store.usage_rows import (
    ID_BYTES,
    RECORD_NAMES,
    Condition,
    RequestPage,
    RequestSearch,
    make_record,
    time_of_id,
)

FILTER = "q"
FORMAT = "format"
STORE_TIMEOUT_S = 10.0
MAX_EXPORTED = 100_000
TYPES = {"csv": b"text/csv; charset=utf-8", "json": b"application/json"}
UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class RequestsApi:
    """Finds requests: all of them for the owner and admin tokens, for a client key its own."""

    def __init__(self, gateway: Gateway, writer: UsageWriter) -> None:
        self._gateway = gateway
        self._writer = writer

    async def list_requests(self, request: RoutedRequest) -> None:
        query = Parameters(request.exchange.query, (FILTER, LIMIT, CURSOR))
        limit, position = query.limit(), _parse_position(query.cursor())
        names = await self._key_names(request)
        search = replace(_parse_search(request, query, names), limit=limit, after=position)
        page = await self._search(search)
        ids = [row.request_id for row in page.rows]
        captured = await asyncio.to_thread(find_captured, self._gateway.runtime.config.debug, ids)
        keys = {row.key for row in page.rows}
        body = {
            "requests": [make_record(row) | {"captured": row.request_id in captured} for row in page.rows],
            "names": {key: name for key, name in names.items() if key in keys},
            "next": None if page.next is None else make_cursor(page.next),
            "examined_since": None if page.next is None else _format_time(time_of_id(page.next)),
        }
        respond(request, body)

    async def export_requests(self, request: RoutedRequest) -> None:
        """Stream everything that a filter finds, newest first, up to MAX_EXPORTED rows."""
        query = Parameters(request.exchange.query, (FILTER, FORMAT))
        form = query.text(FORMAT) or "csv"
        if form not in TYPES:
            raise BadRequest(f"/{FORMAT}", f"{FORMAT} must be csv or json, got {form!r}.")
        search = _parse_search(request, query, await self._key_names(request))
        pages = self._pages(search)
        first = await anext(pages)  # an error of the store is reported with a status, as long as nothing is sent
        attachment = f'attachment; filename="requests.{form}"'.encode()
        head = [(b"content-type", TYPES[form]), (b"content-disposition", attachment), *response_headers(request)]
        exchange = request.exchange
        exchange.start(200, head)
        await exchange.send(_format_start(form))
        await exchange.send(_format_rows(form, first))
        is_first = not first
        async for records in pages:
            if records:
                separator = b"," if form == "json" and not is_first else b""
                await exchange.send(separator + _format_rows(form, records))
                is_first = False
        exchange.finish(b"]\n" if form == "json" else b"")

    async def _pages(self, search: RequestSearch) -> AsyncIterator[list[dict[str, object]]]:
        left = MAX_EXPORTED
        while left > 0:
            page = await self._search(search)
            yield [make_record(row) for row in page.rows[:left]]
            left -= len(page.rows)
            if page.next is None:
                return
            search = replace(search, after=page.next)

    async def _search(self, search: RequestSearch) -> RequestPage:
        with convert_errors():
            async with asyncio.timeout(STORE_TIMEOUT_S):
                store = await self._store()
                return await store.search_requests(search)

    async def _store(self) -> Store:
        Context().run(self._gateway.observers.flush)  # its log lines are not about this request
        return await self._writer.wait_until_written()

    async def _key_names(self, request: RoutedRequest) -> dict[str, str]:
        """Return the names of the keys that the caller may see, by their ids."""
        with convert_errors():
            async with asyncio.timeout(STORE_TIMEOUT_S):
                rows = await self._writer.store.keys()
        names = {row.id: row.name for row in rows} | {ENVIRONMENT_KEY: str(ENVIRONMENT_KEY)}
        return {key: name for key, name in names.items() if request.sees_all or key == request.key}


def _parse_search(request: RoutedRequest, query: Parameters, names: Mapping[str, str]) -> RequestSearch:
    """Return the search that the filter describes, restricted to what the caller may see."""
    with convert_errors(FILTER):
        search = parse_filter(query.text(FILTER) or "", datetime.now(UTC), names)
    if request.sees_all:
        return search
    others = tuple(condition for condition in search.conditions if condition.field != "key" or condition.negated)
    is_other = any(
        condition.field == "key" and not condition.negated and request.key not in _values(condition)
        for condition in search.conditions
    )
    own = Condition("key", "=", request.key) if not is_other else Condition("key", "in", ())
    return replace(search, conditions=(own, *others))


def _values(condition: Condition) -> tuple[object, ...]:
    return condition.value if isinstance(condition.value, tuple) else (condition.value,)


def _format_start(form: str) -> bytes:
    return b"[" if form == "json" else format_csv_header(RECORD_NAMES).encode()


def _format_rows(form: str, records: list[dict[str, object]]) -> bytes:
    if form == "json":
        return msgspec.json.encode(records)[1:-1]
    return format_csv_rows(records, RECORD_NAMES).encode(errors="replace")


def _format_time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat("T", "milliseconds")


def _parse_position(position: bytes | None) -> bytes | None:
    """Return the id of a row that a cursor names."""
    if position is not None and len(position) != ID_BYTES:
        raise invalid_cursor()
    return position


class CapturesApi:
    """Captures of the directory that is configured."""

    def __init__(self, gateway: Gateway, audit: AuditLog) -> None:
        self._gateway = gateway
        self._audit = audit
        self._replaying = asyncio.Lock()  # one at a time: it takes the processor from other requests

    async def list_captures(self, request: RoutedRequest) -> None:
        query = Parameters(request.exchange.query, (LIMIT, CURSOR))
        limit, position = query.limit(), query.cursor()
        files = await asyncio.to_thread(list_captures, self._gateway.runtime.config.debug)
        # The cursor is compared with names, and never opened.
        older = [file for file in reversed(files) if position is None or file.file.name.encode() < position]
        page = older[:limit]
        following = make_cursor(page[-1].file.name.encode()) if len(older) > limit else None
        listed = [file.summary.list_fields() | {"bytes": file.size} for file in page]
        respond(request, {"captures": listed, "next": following})

    async def read_capture(self, request: RoutedRequest) -> None:
        first = Parameters(request.exchange.query, ("first",)).number("first", 0)
        capture = await self._find(request)
        await self._audit.record(request, "captures.read", capture.request_id)
        body = await asyncio.to_thread(lambda: msgspec.json.encode(describe_capture(capture, first)))
        respond_bytes(request, body)

    async def replay_capture(self, request: RoutedRequest) -> None:
        """Run a captured request through the current code, with the recorded responses, and report what differs."""
        from dragoman.admin.replay.difference import compare_captures

        await read_body(request, NoFields)
        capture = await self._find(request)
        await self._audit.record(request, "captures.replay", capture.request_id)
        replayed = await self._rerun(capture)
        parts = await asyncio.to_thread(compare_captures, capture, replayed)
        respond(request, {"same": not any(part.changes for part in parts), "parts": parts})

    async def make_fixture(self, request: RoutedRequest) -> None:
        """Return a fixture, for `tests/fixtures/captures`, which expects what the current code does."""
        from dragoman.admin.replay.rerun import make_fixture

        await read_body(request, NoFields)
        capture = await self._find(request)
        await self._audit.record(request, "captures.fixture", capture.request_id)
        replayed = await self._rerun(capture)
        body = await asyncio.to_thread(lambda: to_json(make_fixture(capture, replayed)))
        name = UNSAFE.sub("_", capture.request_id)
        respond_bytes(request, body, [(b"content-disposition", f'attachment; filename="{name}.json"'.encode())])

    async def _find(self, request: RoutedRequest) -> Capture:
        with convert_errors("id"):
            return await asyncio.to_thread(find_capture, self._gateway.runtime.config.debug, request.rest)

    async def _rerun(self, capture: Capture) -> Capture:
        from dragoman.admin.replay.rerun import rerun
        from dragoman.http.handler import replay_site  # which imports this module

        async with self._replaying:
            with convert_errors("id"):
                return await asyncio.to_thread(rerun, capture, replay_site)
