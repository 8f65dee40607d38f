"""What one request used, as it is stored, and what many used together, as it is read."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict, fields, replace

By = Literal["all", "model", "key", "client", "provider"]

SLOT_MS = 15 * 60 * 1000  # no time zone begins its day elsewhere than at a quarter of an hour


class UsageRow(Struct, frozen=True, gc=False):
    """One request. Counts are None where nobody told them, the cost where no price is known: never zero."""

    id: bytes  # the same row stored twice is stored once
    time_ms: int  # since the epoch
    request_id: str
    key: str
    client: str
    client_protocol: str
    upstream_protocol: str
    provider: str
    model: str
    requested_model: str
    stream: bool
    input_tokens: int | None  # with what was read from and written to a cache
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    output_tokens: int | None  # with reasoning
    reasoning_tokens: int | None
    credits: float | None
    usage_source: str | None
    cost_nano_usd: int | None  # 10**-9 US dollars
    ttft_ms: int | None
    duration_ms: int
    outcome: str
    error_code: str | None
    losses: int
    attempts: int

    @property
    def route(self) -> str:
        """Who answered, as provider/model; empty where no upstream was reached."""
        return f"{self.provider}/{self.model}" if self.provider else ""


COLUMNS = tuple(field.name for field in fields(UsageRow))  # named as the tables name theirs, in this order
STORED_ONLY = ("id", "time_ms")  # columns that `time` stands for, or that only the store needs
RECORD_NAMES = ("time", *(name for name in COLUMNS if name not in STORED_ONLY), "route", "cost_usd")


def as_record(row: UsageRow) -> dict[str, object]:
    """Return the row under the names of the contract, as JSON and CSV have it."""
    columns = {name: value for name, value in asdict(row).items() if name not in STORED_ONLY}
    moment = datetime.fromtimestamp(row.time_ms / 1000, UTC)
    dollars = None if row.cost_nano_usd is None else row.cost_nano_usd / 10**9
    return {"time": moment.isoformat("T", "milliseconds")} | columns | {"route": row.route, "cost_usd": dollars}


class Span(Struct, frozen=True):
    """From a moment to a moment, the second not included; of one key's requests, where it names a key."""

    since_ms: int
    until_ms: int
    key: str | None = None


class UsageSum(Struct, frozen=True):
    """What the requests of one group that began in one quarter of an hour used together."""

    group: str
    slot: int  # quarters of an hour since the epoch
    requests: int
    failed: int
    client_gone: int  # whose client left
    input_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    output_tokens: int
    reasoning_tokens: int
    credits: float
    cost_nano_usd: int
    priced: int  # requests that have a cost
    counted: int  # requests that have counts
    derived: int
    estimated: int
    estimated_tokens: int
    duration_ms: int


SUMMED = tuple(field.name for field in fields(UsageSum) if field.name not in ("group", "slot"))


def sum_days(sums: Iterable[UsageSum]) -> tuple[UsageSum, ...]:
    """Add up by day, in order of time; the days are those of this machine's time zone."""
    days: dict[str, UsageSum] = {}
    for part in sorted(sums, key=lambda part: part.slot):
        day = datetime.fromtimestamp(part.slot * SLOT_MS / 1000).date().isoformat()
        days[day] = _add(days[day], part) if day in days else replace(part, group=day)
    return tuple(days.values())


def _add(first: UsageSum, second: UsageSum) -> UsageSum:
    return replace(first, **{name: getattr(first, name) + getattr(second, name) for name in SUMMED})
