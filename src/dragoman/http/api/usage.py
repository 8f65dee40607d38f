"""The usage API: sums and rows of usage as JSON."""

import asyncio
from contextvars import Context
from typing import get_args

import msgspec

from dragoman.accounts.usage_writer import UsageWriter
from dragoman.admin.accounting import DAY, ROWS, TooMuchUsage, read_usage
from dragoman.flow.gateway import Gateway
from dragoman.http.api.parameters import Parameters
from dragoman.http.api.responses import convert_errors, respond
from dragoman.http.routes import RoutedRequest
from dragoman.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.store.usage_rows import GroupBy, UsageSpan, make_record

STORE_TIMEOUT_S = 10.0
FOREVER_MS = 10**18
GROUPS = (DAY, *get_args(GroupBy), ROWS)


class UsageApi:
    """Reports all usage to the owner and admin tokens, and to a client key its own usage."""

    def __init__(self, gateway: Gateway, writer: UsageWriter) -> None:
        self._gateway = gateway
        self._writer = writer

    async def report_usage(self, request: RoutedRequest) -> None:
        query = Parameters(request.exchange.query, ("since_ms", "until_ms", "by"))
        by = query.text("by") or "all"
        if by not in GROUPS:
            raise BadRequest("/by", f"by must be one of {', '.join(GROUPS)}, got {by[:80]!r}.")
        key = None if request.sees_all else request.key
        span = UsageSpan(query.number("since_ms", 0), query.number("until_ms", FOREVER_MS), key)
        Context().run(self._gateway.observers.flush)  # its log lines are not about this request
        try:
            with convert_errors():
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    report = await read_usage(await self._writer.wait_until_written(), span, by, limited=True)
        except RequestError as error:
            if isinstance(error.__cause__, TooMuchUsage):
                raise RequestError(Failure(Kind.TOO_LARGE, str(error), at="/since_ms")) from None
            raise
        body = {
            "whole": report.whole,
            "by": by,
            "sums": report.sums,
            "rows": [msgspec.structs.asdict(row) | make_record(row) for row in report.rows],
            "names": report.names,
        }
        respond(request, body)
