"""What one request used, as it is stored, and what many used together, as it is read."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import fields

By = Literal["all", "model", "key", "client", "provider"]

SLOT_MS = 15 * 60 * 1000  # no time zone begins its day elsewhere than at a quarter of an hour


class UsageRow(Struct, frozen=True, gc=False):
    """One request. Counts are None where nobody told them, the cost where no price is known: never zero."""

    id: bytes  # the same row stored twice is stored once
    began_ms: int  # since the epoch
    request: str
    key: str
    client: str
    asked: str
    spoken: str
    provider: str
    model: str
    wanted: str
    stream: bool
    input: int | None  # with what was read from and written to a cache
    cached: int | None
    written: int | None
    output: int | None  # with reasoning
    reasoning: int | None
    credits: float | None
    source: str | None
    cost_nano: int | None  # 10**-9 US dollars
    first_token_ms: int | None
    duration_ms: int
    result: str
    code: str | None
    losses: int
    attempts: int


COLUMNS = tuple(field.name for field in fields(UsageRow))  # named as the tables name theirs, in this order


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
    gone: int  # whose client left
    input: int
    cached: int
    written: int
    output: int
    reasoning: int
    credits: float
    cost_nano: int
    priced: int  # requests that have a cost
    told: int  # requests that have counts
    derived: int
    estimated: int
    estimated_tokens: int
    duration_ms: int
