"""The port to a database: operations are written once, against `Session`; the driver of a database runs them.

Statements are written for PostgreSQL. The drivers rewrite the few words that differ (`REWRITES` in store/sqlite.py;
`@row`, the order in which rows were inserted, in both).
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import lru_cache, wraps
from itertools import chain
from typing import Concatenate, ParamSpec, Protocol, TypeVar

MAX_QUERIES = 2  # at the same time, each on a connection that no other operation waits for
QUERY_TIMEOUT_S = 2.0
HOLD_WAIT_S = 10.0  # how long others wait for what one process holds
# Rows or values in one statement; fewer than the last of these are one, too. That makes few texts, so that prepared
# statements are found again.
BATCH_SIZES = (64, 32, 16)

P = ParamSpec("P")
T = TypeVar("T")
Value = str | int | float | bytes | None
MakeRow = Callable[..., T]  # of the values of a row


class StoreError(Exception):
    """The store cannot be opened, read or written; the message names it and the cause, never a password."""


class DriverMissing(StoreError):
    """The store needs a package that is not installed."""


class NotUnique(StoreError):
    """A row with the same unique values exists."""


class HeldElsewhere(StoreError):
    """Another process held a name for too long."""


class Session(Protocol):
    """A connection while one operation uses it."""

    @property
    def is_sqlite(self) -> bool:
        """For the few statements that no rewriting makes equal."""

    async def fetch(self, make: MakeRow[T], statement: str, *values: Value) -> list[T]:
        """Return what `make` makes of each row that a statement returns."""

    async def execute(self, statement: str, *values: Value) -> int:
        """Run a statement and return how many rows it changed."""

    async def execute_many(self, statement: str, rows: Sequence[Sequence[Value]]) -> None:
        """Run a statement once for each of the rows of values."""

    async def lock(self, name: str) -> None:
        """Let others that lock the same name wait until the transaction ends."""


class HoldingSession(Session, Protocol):
    """A session that its user keeps as long as necessary. Its changes are visible once they are committed."""

    async def commit(self) -> None:
        """Commit the changes, and let others hold the name."""


Operation = Callable[[Session], Awaitable[T]]


class Database(Protocol):
    """Runs operations. Each may raise StoreError, and works again without a restart once the database does."""

    @property
    def name(self) -> str:
        """The location as shown to users, without a password."""

    async def open(self) -> None:
        """Connect and migrate the schema; every operation does so too if it has not been possible yet."""

    async def close(self) -> None:
        """Finish the operations that have begun, then close; no operation may be run afterwards."""

    async def read(self, operation: Operation[T]) -> T:
        """Run an operation that only reads, and waits for no write."""

    async def write(self, operation: Operation[T]) -> T:
        """Run an operation in one transaction."""

    async def query(self, operation: Operation[T]) -> T:
        """Run an operation that reads much, on one of MAX_QUERIES connections; StoreError after QUERY_TIMEOUT_S."""

    def hold(self, name: str) -> AbstractAsyncContextManager[HoldingSession]:
        """Yield a session while no other process that holds this name works; none holds up other operations.

        `name` can be part of a file's name. Where the database locks rows, the first statement selects
        what is held `FOR UPDATE`. Others wait HOLD_WAIT_S at most, and then get HeldElsewhere.
        """

    async def tidy(self) -> None:
        """Give the space of removed rows back to the file system, and leave nothing of them in its files."""


class StorePart:
    """A part of the store: a few tables, and the operations on them."""

    def __init__(self, database: Database) -> None:
        self.database = database


S = TypeVar("S", bound=StorePart)
Method = Callable[Concatenate[S, Session, P], Awaitable[T]]
Bound = Callable[Concatenate[S, P], Coroutine[None, None, T]]


class _Run(Protocol):
    async def __call__(self, operation: Operation[T]) -> T: ...


class _Decorator(Protocol):
    def __call__(self, method: Method[S, P, T]) -> Bound[S, P, T]: ...


def _run_with(choose: Callable[[Database], _Run]) -> _Decorator:
    """Return a decorator of a part's methods, which gives them their session."""

    def decorate(method: Method[S, P, T]) -> Bound[S, P, T]:
        @wraps(method)
        async def run(part: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await choose(part.database)(lambda session: method(part, session, *args, **kwargs))

        return run

    return decorate


reads = _run_with(lambda database: database.read)
writes = _run_with(lambda database: database.write)
queries = _run_with(lambda database: database.query)


async def find(session: Session, make: MakeRow[T], statement: str, *values: Value) -> T | None:
    """Return the first row that a statement returns."""
    return next(iter(await session.fetch(make, statement, *values)), None)


async def insert(session: Session, into: str, rows: Sequence[Sequence[Value]], end: str = "") -> None:
    """Insert rows. `into` is the table with its columns; `end` follows the values (ON CONFLICT ...)."""
    if session.is_sqlite and rows:
        # Many rows in one statement save no round trip here: each row of usage took half as long again, and each new
        # number of rows a long text to rewrite and prepare.
        await session.execute_many(build_insert(into, 1, len(rows[0]), end), rows)
        return
    for batch in batched(rows):
        await session.execute(build_insert(into, len(batch), len(batch[0]), end), *chain.from_iterable(batch))


@lru_cache(maxsize=256)
def build_insert(into: str, rows: int, width: int, end: str) -> str:
    """Return the statement that inserts this number of rows, each of `width` values."""
    places = ", ".join(f"({list_places(width, 1 + at * width)})" for at in range(rows))
    return f"INSERT INTO {into} VALUES {places} {end}"  # noqa: S608 - names of our own tables and columns


async def fetch_among(
    session: Session, make: MakeRow[T], statement: str, among: Sequence[Value], *values: Value
) -> list[T]:
    """Return the rows of a statement whose `IN ({among})` stands for these values, in no order.

    The others are $1, $2 and so on.
    """
    found: list[T] = []
    for batch in batched(list(dict.fromkeys(among))):
        found += await session.fetch(make, _list_among(statement, len(batch), 1 + len(values)), *values, *batch)
    return found


@lru_cache(maxsize=256)
def _list_among(statement: str, count: int, first: int) -> str:
    return statement.format(among=list_places(count, first))


def list_places(count: int, first: int = 1) -> str:
    """Return the places of values in a statement: $1, $2, $3."""
    return ", ".join(f"${place}" for place in range(first, first + count))


def batched(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    start = 0
    for size in BATCH_SIZES:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size
    if start < len(rows):
        yield rows[start:]
