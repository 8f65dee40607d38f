"""A question about usage comes in; what everybody used goes out as JSON, or what the key that asks has used."""

import asyncio
import re
from typing import get_args
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct

from dragoman.accounts.keys import ENVIRONMENT_KEY, KeyId
from dragoman.accounts.usage_writer import UsageWriter
from dragoman.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.store import Store, StoreError
from dragoman.store.usage_rows import By, Span, UsageRow, UsageSum, as_record, sum_days

PATH = "/api/usage"
PATHS = (PATH, "/api/v1/usage")
DAY = "day"
ROWS = "rows"  # instead of a group: every request by itself
MOST_ROWS = 10_000
MOST_SUMS = 40_000
STORE_TIMEOUT_S = 10.0
TIMESTAMP = re.compile("[0-9]{1,18}")
ALL_TIME = Span(0, 10**18)


class UsageReport(Struct, frozen=True):
    """What was used, in sums or in rows. `whole`: by everybody, not by the asking key alone."""

    whole: bool
    sums: tuple[UsageSum, ...] = ()
    rows: tuple[UsageRow, ...] = ()
    names: dict[str, str] = {}  # of keys, by their ids, where the sums are by key


class UsageApi:
    """The key of the environment is its owner's, and is told everything; a key of the store what it used itself."""

    def __init__(self, writer: UsageWriter) -> None:
        self._writer = writer

    async def answer(self, query: str, key: KeyId) -> bytes:
        span, by = _question(query)
        if key != ENVIRONMENT_KEY:
            span = msgspec.structs.replace(span, key=key)
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                told = await read_usage(await self._writer.caught_up(), span, by)
        except (StoreError, TimeoutError):
            raise RequestError(Failure(Kind.OVERLOADED, "The store cannot be read_usage just now.")) from None
        return msgspec.json.encode(
            {
                "whole": told.whole,
                "by": by,
                "sums": told.sums,
                "rows": [msgspec.structs.asdict(row) | as_record(row) for row in told.rows],
                "names": told.names,
            }
        )


async def read_usage(store: Store, span: Span, by: str, most: bool = True) -> UsageReport:
    """What a store knows; `most` refuses what would be too long for one answer."""
    whole = span.key is None
    if by == ROWS:
        if most and sum(part.requests for part in await store.usage_sums(span, "all")) > MOST_ROWS:
            raise _too_long(MOST_ROWS)
        return UsageReport(whole, rows=await store.usage_rows(span))
    if by == DAY:
        return UsageReport(whole, sum_days(await store.usage_sums(span, "all")))
    sums = await store.usage_sums(span, by)  # type: ignore[arg-type]
    if most and len(sums) > MOST_SUMS:
        raise _too_long(MOST_SUMS)
    keys = await store.keys() if by == "key" else ()
    return UsageReport(whole, sums, names={row.id: row.name for row in keys if whole or row.id == span.key})


def _question(query: str) -> tuple[Span, str]:
    asked = {name: values[-1] for name, values in parse_qs(query).items()}
    by = asked.get("by", "all")
    groups = (DAY, *get_args(By), ROWS)
    if by not in groups:
        raise BadRequest("/by", f"by must be one of {', '.join(groups)}, got {by[:80]!r}.")
    since, until = _moment(asked, "since_ms", ALL_TIME.since_ms), _moment(asked, "until_ms", ALL_TIME.until_ms)
    return Span(since, until), by


def _moment(asked: dict[str, str], name: str, absent: int) -> int:
    text = asked.get(name)
    if text is None:
        return absent
    if not TIMESTAMP.fullmatch(text):
        raise BadRequest(f"/{name}", f"{name} is a number of milliseconds since 1970.")
    return int(text)


def _too_long(most: int) -> RequestError:
    return RequestError(Failure(Kind.TOO_LARGE, f"The answer would have more than {most} lines: ask for less time."))
