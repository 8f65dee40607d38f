"""Past requests: sums of their usage and the speed of each route; search them page by page, and export them."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from datetime import UTC, datetime
from typing import Annotated, cast, get_args

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from dragoman.net.guest_threads import run_on_file_thread
from dragoman.operate.captures.files import find_captured
from dragoman.operate.usage.reports import (
    DAY,
    GROUPS,
    ROWS,
    TAG,
    TooMuchUsage,
    UsageQuestion,
    UsageReport,
    find_group_problem,
    format_csv_header,
    format_csv_rows,
    make_report,
    read_usage,
)
from dragoman.operate.usage.request_filter import name_keys, parse_filter, restrict_usage
from dragoman.operate.usage.series import RouteSpeed, Step, TimeSteps, find_zone, read_series, read_speed
from dragoman.operate.usage.usage_writer import UsageWriter
from dragoman.proxy.gateway import Gateway
from dragoman.server.api.wire import (
    PAGE,
    Operation,
    Parameters,
    QueryParameter,
    choice_parameter,
    convert_errors,
    invalid_cursor,
    make_cursor,
    number_parameter,
    response_headers,
    text_parameter,
)
from dragoman.server.routes import RoutedRequest
from dragoman.store import Store
from dragoman.store.usage_rows import (
    ID_BYTES,
    RECORD_NAMES,
    STORED_ONLY,
    Condition,
    RequestPage,
    RequestSearch,
    UsageRow,
    UsageSpan,
    UsageSum,
    make_record,
    time_of_id,
)
from dragoman.tenancy.keys import ENVIRONMENT_KEY
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError

STORE_TIMEOUT_S = 10.0
FOREVER_MS = 10**17
GROUP = {"anyOf": [{"enum": [DAY, *GROUPS, ROWS]}, {"type": "string", "pattern": f"^{TAG}:"}]}
STEPS = get_args(Step)
STEP = "step"
ZONE = "time_zone"
FILTER = "q"
FORMAT = "format"
MAX_EXPORTED = 100_000
TEXT, FLAG = {"type": "string"}, {"type": "boolean"}
DOLLARS = {"anyOf": [{"type": "number"}, {"type": "null"}]}
TYPES = {"csv": b"text/csv; charset=utf-8", "json": b"application/json"}


def _describe_record(*added: str, hidden: tuple[str, ...] = ()) -> dict[str, object]:
    """Return the JSON schema of a usage row as it is shown: that of its columns, and of what is computed from them."""
    _, components = msgspec.json.schema_components([UsageRow])
    shown = {name: schema for name, schema in components["UsageRow"]["properties"].items() if name not in hidden}
    for schema in shown.values():
        schema.pop("default", None)
    computed = {"time": TEXT, "route": TEXT, "cost_usd": DOLLARS}
    more = dict.fromkeys(added, FLAG)
    properties = shown | computed | more
    return {"properties": properties, "required": list(properties)}


# Rows are shown as dictionaries, made by make_record.
ExportedRequest = Annotated[dict[str, object], Meta(extra_json_schema=_describe_record(hidden=STORED_ONLY))]
FoundRequest = Annotated[dict[str, object], Meta(extra_json_schema=_describe_record("captured", hidden=STORED_ONLY))]
StoredRequest = Annotated[dict[str, object], Meta(extra_json_schema=_describe_record())]


class UsageAnswer(Struct, frozen=True):
    """Usage in sums or in rows. `whole` is false if only that of one key, user, team or provider is reported."""

    whole: bool
    by: str
    sums: tuple[UsageSum, ...]
    rows: list[StoredRequest]
    names: dict[str, str]  # of keys, by their ids


class SpeedAnswer(Struct, frozen=True):
    whole: bool
    routes: list[RouteSpeed]


class FoundPage(Struct, frozen=True):
    """Requests that fit the filter; everything since `examined_since` has been searched."""

    requests: list[FoundRequest]
    names: dict[str, str]  # of keys, by their ids
    next: str | None
    examined_since: str | None


SPAN = (
    number_parameter("since_ms", "Milliseconds since the epoch; 0 if it is absent."),
    number_parameter("until_ms", "Milliseconds since the epoch, not included; without an end if it is absent."),
)
FILTERED = text_parameter(FILTER, "A filter: terms separated by spaces, all of which must hold.")
REPORT_USAGE = Operation(
    "Report usage in sums, by group and step, or in rows.",
    (UsageAnswer,),
    (
        *SPAN,
        QueryParameter("by", "How requests are grouped; all if it is absent. tag:NAME is by a tag's value.", GROUP),
        choice_parameter(STEP, f"The length of one sum; not with by={DAY}, {ROWS}.", STEPS),
        text_parameter(ZONE, "The time zone of days and hours, such as Europe/Berlin; UTC if it is absent."),
        text_parameter(FILTER, "A filter of key, user, team, provider, after and before, as of the list of requests."),
    ),
)
REPORT_SPEED = Operation("Report the time to the first token, and the speed after it.", (SpeedAnswer,), SPAN)
LIST_REQUESTS = Operation("Find requests, the newest first.", (FoundPage,), (FILTERED, *PAGE))
EXPORT_REQUESTS = Operation(
    "Export the requests that fit a filter, the newest first, as a file.",
    (list[ExportedRequest],),
    (FILTERED, choice_parameter(FORMAT, "csv if it is absent.", TYPES)),
    media_types=("text/csv", "application/json"),
)


class UsageApi:
    """Reports all usage to the owner and admin tokens, and to a client key its own usage."""

    def __init__(self, gateway: Gateway, writer: UsageWriter) -> None:
        self._gateway = gateway
        self._writer = writer

    @REPORT_USAGE.handled_by
    async def report_usage(self, request: RoutedRequest) -> None:
        query = REPORT_USAGE.read_query(request)
        by, step = query.text("by") or "all", query.text(STEP)
        problem = find_group_problem(by, (DAY, ROWS))
        if problem is not None:
            raise BadRequest("/by", problem)
        if step is not None and (step not in STEPS or by in (DAY, ROWS)):
            raise BadRequest(
                "/step", f"step must be one of {', '.join(STEPS)}, and cannot be used with by={DAY}, {ROWS}."
            )
        with _convert_errors():
            async with asyncio.timeout(STORE_TIMEOUT_S):
                store = await wait_for_store(self._gateway, self._writer)
                question = UsageQuestion(await _filter_span(request, query, store), by)
                if step is None:
                    report = await read_usage(store, question, limited=True)
                else:
                    report = await _read_series(store, question, step, query.text(ZONE) or "UTC")
        rows = [msgspec.structs.asdict(row) | make_record(row) for row in report.rows]
        REPORT_USAGE.respond(request, UsageAnswer(report.whole, by, report.sums, rows, report.names))

    @REPORT_SPEED.handled_by
    async def report_speed(self, request: RoutedRequest) -> None:
        span = _parse_span(request, REPORT_SPEED.read_query(request))
        if span.team is not None:
            message = f'The speed of routes is not reported for the team "{span.team}" alone.'
            raise RequestError(Failure(Kind.FORBIDDEN, message, code="scope_required"))
        with _convert_errors():
            async with asyncio.timeout(STORE_TIMEOUT_S):
                speeds = await read_speed(await wait_for_store(self._gateway, self._writer), span)
        REPORT_SPEED.respond(request, SpeedAnswer(span.key is None, speeds))


async def wait_for_store(gateway: Gateway, writer: UsageWriter) -> Store:
    """Return the store once it has the rows of all requests that have ended."""
    Context().run(gateway.observers.flush)  # its log lines are not about this request
    return await writer.wait_until_written()


async def _read_series(store: Store, question: UsageQuestion, step: str, zone_name: str) -> UsageReport:
    with convert_errors(ZONE):
        zone = find_zone(zone_name)
    steps = TimeSteps(cast(Step, step), zone, datetime.now(UTC))
    sums = await read_series(store, question.span, question.by, steps)
    return await make_report(store, sums, question, limited=True)


def _parse_span(request: RoutedRequest, query: Parameters) -> UsageSpan:
    key = None if request.sees_all else request.key
    since, until = query.number("since_ms", 0), query.number("until_ms", FOREVER_MS)
    return UsageSpan(min(since, FOREVER_MS), min(until, FOREVER_MS), key, request.access.team or None)


async def _filter_span(request: RoutedRequest, query: Parameters, store: Store) -> UsageSpan:
    span, text = _parse_span(request, query), query.text(FILTER)
    if not text:
        return span
    names = name_keys(await store.list_keys())
    with convert_errors(FILTER):
        return restrict_usage(span, parse_filter(text, datetime.now(UTC), names))


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

    @LIST_REQUESTS.handled_by
    async def list_requests(self, request: RoutedRequest) -> None:
        query = LIST_REQUESTS.read_query(request)
        limit, position = query.limit(), _parse_position(query.cursor())
        names = await self._key_names(request)
        search = replace(_parse_search(request, query, names), limit=limit, after=position)
        page = await self._search(search)
        ids = [row.request_id for row in page.rows]
        captured = await run_on_file_thread(lambda: find_captured(self._gateway.runtime.config.debug, ids))
        keys = {row.key for row in page.rows}
        found = FoundPage(
            [make_record(row) | {"captured": row.request_id in captured} for row in page.rows],
            {key: name for key, name in names.items() if key in keys},
            None if page.next is None else make_cursor(page.next),
            None if page.next is None else _format_time(time_of_id(page.next)),
        )
        LIST_REQUESTS.respond(request, found)

    @EXPORT_REQUESTS.handled_by
    async def export_requests(self, request: RoutedRequest) -> None:
        """Stream everything that a filter finds, up to MAX_EXPORTED rows."""
        query = EXPORT_REQUESTS.read_query(request)
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
        await sink.send(b"[" if form == "json" else format_csv_header(RECORD_NAMES).encode())
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
                store = await wait_for_store(self._gateway, self._writer)
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
