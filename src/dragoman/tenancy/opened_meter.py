"""Which meter a store has: of SQLite one that the processes of the machine share, of PostgreSQL one in the database."""

from collections.abc import Callable
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dragoman.store import Store
from dragoman.store.meter import Meter
from dragoman.store.spending import SpendingQuery
from dragoman.tenancy.shared_meter import ALONE, MeterPlace, SharedMeter
from dragoman.tenancy.windows import find_spending, is_past

if TYPE_CHECKING:
    from dragoman.store.valkey import Valkey

GetZone = Callable[[], tzinfo]


class RunningMeter(Meter, Protocol):
    """A meter with its background work. It may be started again and again; only the first time counts."""

    @property
    def drift(self) -> float | None:
        """By which part sums of rows differed at the last comparison; None: another process compares."""

    @property
    def processes(self) -> int:
        """How many processes with such a meter live, as far as it knows: at least this one."""

    @property
    def is_out(self) -> bool:
        """Whether it is in a database that does not answer, so that admissions are refused at once."""

    def start(self) -> None: ...
    async def stop(self) -> None: ...


def make_meter(store: Store, zone: GetZone, place: MeterPlace = ALONE) -> RunningMeter:
    """Return the meter of a store, not started."""
    from dragoman.store.sqlite import SqliteDatabase  # not loaded with PostgreSQL

    if isinstance(store.database, SqliteDatabase):
        path = store.database.path
        return SharedMeter(store, Path(f"{path}-meter"), zone, place)
    return make_postgres_meter(store, zone)


def pair_with_shared(shared: "Valkey", windows: RunningMeter) -> RunningMeter:
    """Return a meter that counts rates and slots on a shared server, and windows in another meter."""
    from dragoman.store.valkey_meter import ValkeyMeter  # slow to import, and most users have no such server
    from dragoman.tenancy.paired_meter import PairedMeter

    return PairedMeter(ValkeyMeter(shared), windows)


def count_by_share(counted: RunningMeter) -> RunningMeter:
    """Return a meter that counts rates and slots in this process while the one in the database does not answer."""
    from dragoman.tenancy.fallback_meter import FallbackMeter

    return FallbackMeter(counted)


def make_postgres_meter(store: Store, zone: GetZone) -> RunningMeter:
    """Return the meter in the database of a store."""
    from dragoman.store.postgres import PostgresDatabase  # slow to import, and most users have no PostgreSQL
    from dragoman.store.postgres_meter import MeteredWindows, PostgresMeter

    assert isinstance(store.database, PostgresDatabase)

    def find(counter: str) -> SpendingQuery:
        return find_spending(counter, zone(), get_now_ms())

    def get_now_ms() -> int:
        return int(store.clock.now() * 1000)

    windows = MeteredWindows(find, lambda counter: is_past(counter, zone(), get_now_ms()), zone, get_now_ms)
    return PostgresMeter(store, store.database, windows)
