"""The usage API: sums and rows of usage as JSON."""

import asyncio
import re
from typing import get_args
from urllib.parse import parse_qs

import msgspec

from dragoman.accounts.keys import ENVIRONMENT_KEY, KeyId
from dragoman.accounts.usage_writer import UsageWriter
from dragoman.admin.accounting import DAY, PATH, ROWS, TooMuchUsage, read_usage
from dragoman.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.store import StoreError
from dragoman.store.usage_rows import GroupBy, UsageSpan, make_record

PATHS = (PATH, "/api/v1/usage")
STORE_TIMEOUT_S = 10.0
TIMESTAMP = re.compile("[0-9]{1,18}")
ALL_TIME = UsageSpan(0, 10**18)


class UsageApi:
    """Reports all usage to the key of the environment, and to any other key its own usage."""

    def __init__(self, writer: UsageWriter) -> None:
        self._writer = writer

    async def answer(self, query: str, key: KeyId) -> bytes:
        span, by = _parse_query(query)
        if key != ENVIRONMENT_KEY:
            span = msgspec.structs.replace(span, key=key)
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                report = await read_usage(await self._writer.wait_until_written(), span, by, limited=True)
        except TooMuchUsage as error:
            raise RequestError(Failure(Kind.TOO_LARGE, str(error))) from None
        except (StoreError, TimeoutError):
            raise RequestError(Failure(Kind.OVERLOADED, "The store cannot be read just now.")) from None
        return msgspec.json.encode(
            {
                "whole": report.whole,
                "by": by,
                "sums": report.sums,
                "rows": [msgspec.structs.asdict(row) | make_record(row) for row in report.rows],
                "names": report.names,
            }
        )


def _parse_query(query: str) -> tuple[UsageSpan, str]:
    parameters = {name: values[-1] for name, values in parse_qs(query).items()}
    by = parameters.get("by", "all")
    groups = (DAY, *get_args(GroupBy), ROWS)
    if by not in groups:
        raise BadRequest("/by", f"by must be one of {', '.join(groups)}, got {by[:80]!r}.")
    since = _parse_timestamp(parameters, "since_ms", ALL_TIME.since_ms)
    until = _parse_timestamp(parameters, "until_ms", ALL_TIME.until_ms)
    return UsageSpan(since, until), by


def _parse_timestamp(parameters: dict[str, str], name: str, absent: int) -> int:
    text = parameters.get(name)
    if text is None:
        return absent
    if not TIMESTAMP.fullmatch(text):
        raise BadRequest(f"/{name}", f"{name} is a number of milliseconds since 1970.")
    return int(text)
