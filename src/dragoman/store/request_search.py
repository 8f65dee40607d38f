"""Search the usage rows of single requests: conditions on columns, in pages, newest first."""

from collections.abc import Callable, Iterator
from typing import Literal

from msgspec import Struct

from dragoman.store.usage_rows import COLUMNS, UsageRow, first_id

MAX_PAGE = 100
MAX_EXAMINED = 10_000  # rows, for one page: a search for something rare continues on the next page
QUERY_TIMEOUT_S = 2.0
MAX_QUERIES = 2  # at the same time, each on a connection that no other operation waits for

ROUTE = "route"
FIELDS = frozenset((*COLUMNS, ROUTE)) - {"id"}
EXPRESSIONS = {ROUTE: "provider || '/' || model"}

Comparison = Literal["=", "<", "<=", ">", ">=", "matches", "in"]
Value = str | int | float | bool | tuple[str, ...]


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


class Dialect(Struct, frozen=True):
    """How a database matches patterns, and writes the place of a value."""

    matches: str
    make_pattern: Callable[[str], str]
    place: Callable[[int], str]


class Statement(Struct, frozen=True):
    where: str
    values: tuple[object, ...]


def narrow(search: RequestSearch, dialect: Dialect) -> Statement:
    """Return the conditions that an index decides: time, position, one key, one request id."""
    indexed = tuple(condition for condition in search.conditions if is_indexed(condition))
    return _build(search, indexed, None, dialect)


def filter_all(search: RequestSearch, last: bytes | None, dialect: Dialect) -> Statement:
    """Return all conditions, down to the row `last`, if that is given."""
    return _build(search, search.conditions, last, dialect)


def is_indexed(condition: Condition) -> bool:
    return condition.field in ("key", "request_id") and condition.comparison == "=" and not condition.negated


def make_page(search: RequestSearch, rows: tuple[UsageRow, ...], last: bytes | None) -> RequestPage:
    """Make a page of what was found down to `last`, which is None if everything was examined."""
    if len(rows) == search.limit:
        return RequestPage(rows, rows[-1].id)
    return RequestPage(rows, last)


def _build(search: RequestSearch, conditions: tuple[Condition, ...], last: bytes | None, dialect: Dialect) -> Statement:
    # Ids begin with the time, so that they are all that has to be compared.
    first, end = first_id(search.since_ms), first_id(search.until_ms)
    parts = ["id >= {}", "id < {}"]
    all_values: list[object] = [
        first if last is None else max(first, last),
        end if search.after is None else min(end, search.after),
    ]
    for condition in conditions:
        for part, found in _render(condition, dialect):
            parts.append(part)
            all_values += found
    where = " AND ".join(parts)
    for place in range(1, len(all_values) + 1):
        where = where.replace("{}", dialect.place(place), 1)
    return Statement(where, tuple(all_values))


def _render(condition: Condition, dialect: Dialect) -> Iterator[tuple[str, list[object]]]:
    assert condition.field in FIELDS, condition.field
    column = EXPRESSIONS.get(condition.field, condition.field)
    value = condition.value
    if isinstance(value, tuple):
        places = ", ".join(["{}"] * len(value))
        part, values = f"({column}) IN ({places})" if value else "1 = 0", list[object](value)
    elif condition.comparison == "matches":
        part, values = f"({column}) {dialect.matches} {{}}", [dialect.make_pattern(str(value))]
    else:
        part, values = f"{column} {condition.comparison} {{}}", [value]
    # A value that is not known is not equal to any.
    yield (f"({part}) IS NOT TRUE" if condition.negated else part), values
