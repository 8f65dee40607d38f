"""The usage API: sums and rows of usage as JSON, and the speed of each route."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from datetime import UTC, datetime
from typing import cast, get_args

import msgspec

from dragoman.accounts.usage_writer import UsageWriter
from dragoman.admin.usage import DAY, ROWS, TooMuchUsage, UsageReport, make_report, read_usage
from dragoman.flow.gateway import Gateway
from dragoman.http.api.wire import Parameters, convert_errors, respond
from dragoman.http.routes import RoutedRequest
from dragoman.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.store import Store
from dragoman.store.usage_rows import GroupBy, UsageSpan, make_record

STORE_TIMEOUT_S = 10.0
FOREVER_MS = 10**17
GROUPS = (DAY, *get_args(GroupBy), ROWS)
STEPS = ("quarter", "hour", "day", "all")
STEP = "step"
ZONE = "time_zone"


class UsageApi:
    """Reports all usage to the owner and admin tokens, and to a client key its own usage."""

    def __init__(self, gateway: Gateway, writer: UsageWriter) -> None:
        self._gateway = gateway
        self._writer = writer

    async def report_usage(self, request: RoutedRequest) -> None:
        query = Parameters(request.exchange.query, ("since_ms", "until_ms", "by", STEP, ZONE))
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
                store = await self._store()
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

        span = _parse_span(request, Parameters(request.exchange.query, ("since_ms", "until_ms")))
        with _convert_errors():
            async with asyncio.timeout(STORE_TIMEOUT_S):
                speeds = await read_speed(await self._store(), span)
        respond(request, {"whole": span.key is None, "routes": speeds})

    async def _store(self) -> Store:
        Context().run(self._gateway.observers.flush)  # its log lines are not about this request
        return await self._writer.wait_until_written()


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
