"""Past requests: sums of their usage and the speed of each route; search them page by page, and export them.

Their captures are read and replayed, with a row in the audit log.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from datetime import UTC, datetime
from typing import cast, get_args

import msgspec
from msgspec.structs import replace

from dragoman.accounts.keys import ENVIRONMENT_KEY
from dragoman.accounts.usage_writer import UsageWriter
from dragoman.admin.captures import describe_capture, find_capture, find_captured, list_captures
from dragoman.admin.request_filter import parse_filter
from dragoman.admin.usage import (
    DAY,
    ROWS,
    TooMuchUsage,
    UsageReport,
    format_csv_header,
    format_csv_rows,
    make_report,
    read_usage,
)
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
from dragoman.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.net.guest_threads import run_on_file_thread
from dragoman.store import Store
from dragoman.store.usage_rows import (
    ID_BYTES,
    RECORD_NAMES,
    Condition,
    GroupBy,
    RequestPage,
    RequestSearch,
    UsageSpan,
    make_record,
    time_of_id,
)

STORE_TIMEOUT_S = 10.0
FOREVER_MS = 10**17
GROUPS = (DAY, *get_args(GroupBy), ROWS)
STEPS = ("quarter", "hour", "day", "all")
STEP = "step"
ZONE = "time_zone"
FILTER = "q"
FORMAT = "format"
MAX_EXPORTED = 100_000
TYPES = {"csv": b"text/csv; charset=utf-8", "json": b"application/json"}
UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class UsageApi:
    """Reports all usage to the owner and admin tokens, and to a client key its own usage."""

    def __init__(self, gateway: Gateway, writer: UsageWriter) -> None:
        self._gateway = gateway
        self._writer = writer

    async def report_usage(self, request: RoutedRequest) -> None:
        query = Parameters(request.http.query, ("since_ms", "until_ms", "by", STEP, ZONE))
        by, step = query.text("by") or "all", query.text(STEP)
        if by not in GROUPS:
            raise BadRequest("/by", f"by must be one of {', '.join(GROUPS)}, got {by[:80]!r}.")
        if step is not None and (step not in STEPS or by in (DAY, ROWS)):
            raise BadRequest(
                "/step", f"step must be one of {', '.join(STEPS)}, and cannot be used with by={DAY}, {ROWS}."
            )
        span = _parse_span(request, query)
        with _convert_errors():
            async with asyncio.timeout(STORE_TIMEOUT_S):
                store = await _wait_for_store(self._gateway, self._writer)
                if step is None:
                    report = await read_usage(store, span, by, limited=True)
                else:
                    report = await _read_series(store, span, by, step, query.text(ZONE) or "UTC")
        body = {
            "whole": report.whole,
            "by": by,
            "sums": report.sums,
            "rows": [msgspec.structs.asdict(row) | make_record(row) for row in report.rows],
            "names": report.names,
        }
        respond(request, body)

    async def report_speed(self, request: RoutedRequest) -> None:
        from dragoman.admin.usage_series import read_speed

        span = _parse_span(request, Parameters(request.http.query, ("since_ms", "until_ms")))
        with _convert_errors():
            async with asyncio.timeout(STORE_TIMEOUT_S):
                speeds = await read_speed(await _wait_for_store(self._gateway, self._writer), span)
        respond(request, {"whole": span.key is None, "routes": speeds})


async def _wait_for_store(gateway: Gateway, writer: UsageWriter) -> Store:
    """Return the store once it has the rows of all requests that have ended."""
    Context().run(gateway.observers.flush)  # its log lines are not about this request
    return await writer.wait_until_written()


async def _read_series(store: Store, span: UsageSpan, by: str, step: str, zone_name: str) -> UsageReport:
    from dragoman.admin.usage_series import Step, find_zone, read_series

    with convert_errors(ZONE):
        zone = find_zone(zone_name)
    sums = await read_series(store, span, cast(GroupBy, by), cast(Step, step), zone, datetime.now(UTC))
    return await make_report(store, sums, span, by, limited=True)


def _parse_span(request: RoutedRequest, query: Parameters) -> UsageSpan:
    key = None if request.sees_all else request.key
    since, until = query.number("since_ms", 0), query.number("until_ms", FOREVER_MS)
    return UsageSpan(min(since, FOREVER_MS), min(until, FOREVER_MS), key)


@contextmanager
def _convert_errors() -> Iterator[None]:
    try:
        with convert_errors():
            yield
    except RequestError as error:
        if isinstance(error.__cause__, TooMuchUsage):
            raise RequestError(Failure(Kind.TOO_LARGE, str(error), at="/since_ms")) from None
        raise


class RequestsApi:
    """Finds requests: all of them for the owner and admin tokens, for a client key its own."""

    def __init__(self, gateway: Gateway, writer: UsageWriter) -> None:
        self._gateway = gateway
        self._writer = writer

    async def list_requests(self, request: RoutedRequest) -> None:
        query = Parameters(request.http.query, (FILTER, LIMIT, CURSOR))
        limit, position = query.limit(), _parse_position(query.cursor())
        names = await self._key_names(request)
        search = replace(_parse_search(request, query, names), limit=limit, after=position)
        page = await self._search(search)
        ids = [row.request_id for row in page.rows]
        captured = await run_on_file_thread(lambda: find_captured(self._gateway.runtime.config.debug, ids))
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
        query = Parameters(request.http.query, (FILTER, FORMAT))
        form = query.text(FORMAT) or "csv"
        if form not in TYPES:
            raise BadRequest(f"/{FORMAT}", f"{FORMAT} must be csv or json, got {form!r}.")
        search = _parse_search(request, query, await self._key_names(request))
        pages = self._pages(search)
        first = await anext(pages)  # an error of the store is reported with a status, as long as nothing is sent
        attachment = f'attachment; filename="requests.{form}"'.encode()
        head = [(b"content-type", TYPES[form]), (b"content-disposition", attachment), *response_headers(request)]
        sink = request.sink
        sink.begin(200, head)
        await sink.send(_format_start(form))
        await sink.send(_format_rows(form, first))
        is_first = not first
        async for records in pages:
            if records:
                separator = b"," if form == "json" and not is_first else b""
                await sink.send(separator + _format_rows(form, records))
                is_first = False
        sink.end(b"]\n" if form == "json" else b"")

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
                store = await _wait_for_store(self._gateway, self._writer)
                return await store.search_requests(search)

    async def _key_names(self, request: RoutedRequest) -> dict[str, str]:
        """Return the names of the keys that the caller may see, by their ids."""
        with convert_errors():
            async with asyncio.timeout(STORE_TIMEOUT_S):
                rows = await self._writer.store.list_keys()
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
        query = Parameters(request.http.query, (LIMIT, CURSOR))
        limit, position = query.limit(), query.cursor()
        files = await asyncio.to_thread(list_captures, self._gateway.runtime.config.debug)
        # The cursor is compared with names, and never opened.
        older = [file for file in reversed(files) if position is None or file.file.name.encode() < position]
        page = older[:limit]
        following = make_cursor(page[-1].file.name.encode()) if len(older) > limit else None
        listed = [file.summary.list_fields() | {"bytes": file.size} for file in page]
        respond(request, {"captures": listed, "next": following})

    async def read_capture(self, request: RoutedRequest) -> None:
        first = Parameters(request.http.query, ("first",)).number("first", 0)
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
