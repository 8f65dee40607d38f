"""The usage of one request as it is stored, sums over many requests, and the search for single requests."""

import operator
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict, astuple, fields, replace

GroupBy = Literal["all", "model", "key", "client", "provider", "user", "team", "session", "agent", "tag"]

SLOT_MS = 15 * 60 * 1000  # in every time zone, days begin at a multiple of this
TIME_BYTES = 6  # of a row's id
NUMBER_BITS = 80  # the rest of it
ID_BYTES = TIME_BYTES + NUMBER_BITS // 8
MAX_TIME_MS = (1 << 8 * TIME_BYTES) - 1


class UsageRow(Struct, gc=False):
    """One request. A count that was not reported and a cost without a known price are None, never zero.

    It is complete before it is stored, and does not change then.
    """

    id: bytes  # begins with time_ms, so that ids sort by time; a row that is appended again is stored once
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
    input_tokens: int | None = None  # including what was read from and written to a cache
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None  # including reasoning
    reasoning_tokens: int | None = None
    credits: float | None = None
    usage_source: str | None = None
    cost_nano_usd: int | None = None  # 10**-9 US dollars
    ttft_ms: int | None = None
    duration_ms: int = 0
    outcome: str = ""
    error_code: str | None = None
    losses: int = 0
    attempts: int = 0
    rounds: int = 1  # upstream requests for the reply: more than one if it used server tools
    web_searches: int = 0
    web_fetches: int = 0
    run: str = ""  # the resumable reply that the client got; several requests may have got the same
    client_request_id: str = ""  # what the client calls its request; several may have the same
    session: str = ""  # of the client's conversations, as it names it or by how its first one begins
    agent: str = ""  # of the client: a subagent
    parent_agent: str = ""
    user: str = ""
    team: str = ""
    tags: str = ""
    lease: str = ""
    cache_possible_tokens: int | None = None  # of the input: what a prompt cache could have had
    cache_miss: str | None = None  # why less was read
    cache_miss_path: str | None = None  # JSON pointer to what differs first in the upstream request
    cache_saved_nano_usd: int | None = None  # against the same input without a cache; may be negative

    @property
    def route(self) -> str:
        """The target that replied, as provider/model; empty if no upstream was reached."""
        return f"{self.provider}/{self.model}" if self.provider else ""


def make_id(time_ms: int, number: int) -> bytes:
    """Return the id of a row; `number` tells it from other rows of the same millisecond."""
    return (time_ms << NUMBER_BITS | number).to_bytes(ID_BYTES, "big")


def first_id(time_ms: int) -> bytes:
    """Return a lower bound of the ids of rows at this time or later."""
    return min(max(time_ms, 0), MAX_TIME_MS).to_bytes(TIME_BYTES, "big")


def time_of_id(id: bytes) -> int:
    """Return the time of a row in milliseconds since the epoch."""
    return int.from_bytes(id[:TIME_BYTES], "big")


NAMES = tuple(field.name for field in fields(UsageRow))
IN_SQL = {"user": "user_name"}  # a word of SQL's own
COLUMNS = tuple(IN_SQL.get(name, name) for name in NAMES)  # of the usage tables, in this order
STORED_ONLY = ("id", "time_ms")  # not part of a record
RECORD_NAMES = ("time", *(name for name in NAMES if name not in STORED_ONLY), "route", "cost_usd")


def make_record(row: UsageRow) -> dict[str, object]:
    """Return the row as JSON and CSV show it."""
    columns = {name: value for name, value in asdict(row).items() if name not in STORED_ONLY}
    moment = datetime.fromtimestamp(row.time_ms / 1000, UTC)
    dollars = None if row.cost_nano_usd is None else row.cost_nano_usd / 10**9
    return {"time": moment.isoformat("T", "milliseconds")} | columns | {"route": row.route, "cost_usd": dollars}


class UsageSpan(Struct, frozen=True):
    """A period of time, without its end: of all requests, or of one key, user, team or provider."""

    since_ms: int
    until_ms: int
    key: str | None = None
    team: str | None = None
    user: str | None = None
    provider: str | None = None

    @property
    def is_whole(self) -> bool:
        return (self.key, self.team, self.user, self.provider) == (None, None, None, None)


class UsageSum(Struct):
    """The usage of all requests of a group that began in the same quarter of an hour."""

    group: str
    slot: int = 0  # quarters of an hour since the epoch
    requests: int = 0
    failed: int = 0
    client_gone: int = 0  # requests whose client disconnected
    input_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    credits: float = 0.0
    cost_nano_usd: int = 0
    priced: int = 0  # requests that have a cost
    counted: int = 0  # requests that have counts, or a price of their own
    derived: int = 0
    estimated: int = 0
    estimated_tokens: int = 0
    duration_ms: int = 0
    web_searches: int = 0
    web_fetches: int = 0
    cache_possible_tokens: int = 0  # of requests of which that is known
    cache_had_tokens: int = 0  # what those have read, of each no more than was possible
    cache_saved_nano_usd: int = 0  # of requests that have a cost; may be negative
    generated_tokens: int = 0  # output tokens of requests whose time to the first token is known
    generating_ms: int = 0  # from the first token of those requests to their end


def sum_by_day(sums: Iterable[UsageSum]) -> tuple[UsageSum, ...]:
    """Sum by day of the local time zone, in order of time."""
    days: dict[str, UsageSum] = {}
    for part in sorted(sums, key=lambda part: part.slot):
        day = datetime.fromtimestamp(part.slot * SLOT_MS / 1000).date().isoformat()
        days[day] = add_sums(days[day], part) if day in days else replace(part, group=day)
    return tuple(days.values())


def add_sums(first: UsageSum, second: UsageSum) -> UsageSum:
    group, slot, *counts = astuple(first)
    return UsageSum(group, slot, *map(operator.add, counts, astuple(second)[2:]))


MAX_PAGE = 100
MAX_EXAMINED = 10_000  # rows, for one page: a search for something rare continues on the next page

ROUTE = "route"
FIELDS = frozenset((*NAMES, ROUTE)) - {"id"}
EXPRESSIONS = {ROUTE: "provider || '/' || model", **IN_SQL}

Comparison = Literal["=", "<", "<=", ">", ">=", "matches", "in"]
Single = str | int | float | bytes
Value = Single | tuple[str, ...]


class Condition(Struct, frozen=True):
    """What a field of a request must be, or with `negated` must not be. `matches` has `*` for any characters."""

    field: str
    comparison: Comparison
    value: Value
    negated: bool = False


class RequestSearch(Struct, frozen=True):
    """Which requests to return."""

    since_ms: int = 0
    until_ms: int = 10**17
    conditions: tuple[Condition, ...] = ()
    after: bytes | None = None  # the id of the last row that the page before examined
    limit: int = MAX_PAGE


class RequestPage(Struct, frozen=True):
    """Requests, newest first. The next page begins after the id `next`; None if there are no more requests.

    A page before the last may have fewer requests than the limit.
    """

    rows: tuple[UsageRow, ...]
    next: bytes | None


class SearchDialect(Struct, frozen=True):
    """How a database matches patterns."""

    matches: str
    make_pattern: Callable[[str], str]


class Statement(Struct, frozen=True):
    where: str
    values: tuple[Single, ...]


def narrow(search: RequestSearch, dialect: SearchDialect) -> Statement:
    """Return the conditions that an index decides: time, position, one key, one request id."""
    indexed = tuple(condition for condition in search.conditions if is_indexed(condition))
    return _build(search, indexed, None, dialect)


def filter_all(search: RequestSearch, last: bytes | None, dialect: SearchDialect) -> Statement:
    """Return all conditions, down to the row `last`, if that is given."""
    return _build(search, search.conditions, last, dialect)


def is_indexed(condition: Condition) -> bool:
    return condition.field in ("key", "request_id") and condition.comparison == "=" and not condition.negated


def make_page(search: RequestSearch, rows: tuple[UsageRow, ...], last: bytes | None) -> RequestPage:
    """Make a page of what was found down to `last`, which is None if everything was examined."""
    if len(rows) == search.limit:
        return RequestPage(rows, rows[-1].id)
    return RequestPage(rows, last)


def _build(
    search: RequestSearch, conditions: tuple[Condition, ...], last: bytes | None, dialect: SearchDialect
) -> Statement:
    # Ids begin with the time, so that they are all that has to be compared.
    first, end = first_id(search.since_ms), first_id(search.until_ms)
    parts = ["id >= {}", "id < {}"]
    all_values: list[Single] = [
        first if last is None else max(first, last),
        end if search.after is None else min(end, search.after),
    ]
    for condition in conditions:
        for part, found in _render(condition, dialect):
            parts.append(part)
            all_values += found
    where = " AND ".join(parts)
    for place in range(1, len(all_values) + 1):
        where = where.replace("{}", f"${place}", 1)
    return Statement(where, tuple(all_values))


def _render(condition: Condition, dialect: SearchDialect) -> Iterator[tuple[str, list[Single]]]:
    assert condition.field in FIELDS, condition.field
    column = EXPRESSIONS.get(condition.field, condition.field)
    value = condition.value
    if isinstance(value, tuple):
        places = ", ".join(["{}"] * len(value))
        part, values = f"({column}) IN ({places})" if value else "1 = 0", list[Single](value)
    elif condition.comparison == "matches":
        part, values = f"({column}) {dialect.matches} {{}}", [dialect.make_pattern(str(value))]
    else:
        part, values = f"{column} {condition.comparison} {{}}", [value]
    # A value that is not known is not equal to any.
    yield (f"({part}) IS NOT TRUE" if condition.negated else part), values
