"""A meter of each kind on a store of its own, for tests that all of them must pass."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, tzinfo
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dragoman.store import Store, open_store
from dragoman.store.meter import (
    Admit,
    Admitted,
    Hold,
    HoldKind,
    Level,
    Meter,
    Operation,
    Result,
    Unavailable,
    encode_charge,
)
from dragoman.store.usage_rows import UsageRow
from dragoman.store.valkey import Valkey, parse_address
from dragoman.tenancy.memory_meter import MemoryMeter
from dragoman.tenancy.opened_meter import count_by_share, make_meter, make_postgres_meter, pair_with_shared
from dragoman.tenancy.shared_meter import MeterPlace, SharedMeter
from dragoman.tenancy.windows import WindowKind, find_window
from store.rows import row_at

MONTH = find_window(WindowKind.MONTH, time.time(), UTC).name
USD, TOKENS, CREDITS = (f"key:key_1:{unit}:{MONTH}" for unit in ("usd", "tokens", "credits"))
ALL_USD = f"all:usd:{MONTH}"
PATIENT_S = 5.0  # for servers of tests, on a busy machine
SLOTS, REQUESTS = "key:key_1:concurrent", "key:key_1:requests_per_min"


class MeterRig(Struct):
    """A meter and its store."""

    meter: Meter
    store: Store

    async def ask(self, operation: Operation) -> Result:
        [result] = await self.meter.apply([operation])
        return result

    async def admit(self, lease: str, *holds: Hold, charge: bytes = b"") -> Result:
        """Admit a lease; a machine that is too slow for the deadline is asked again."""
        for _ in range(30):
            result = await self.admit_once(lease, *holds, charge=charge)
            if not isinstance(result, Unavailable):
                break
        return result

    async def admit_once(self, lease: str, *holds: Hold, charge: bytes = b"") -> Result:
        return await self.ask(Admit(lease, self.meter.process, holds, charge=charge))

    async def level(self, counter: str) -> Level:
        for _ in range(30):
            levels = await self.meter.read([counter])
            if levels:
                return levels[0]
        raise AssertionError("the meter never answered")


def get_utc() -> tzinfo:
    return UTC


@asynccontextmanager
async def run_memory_meter(url: str, zone: Callable[[], tzinfo] = get_utc) -> AsyncIterator[MeterRig]:
    async with await open_store(url) as store:
        meter = MemoryMeter(store, zone)
        meter.start()
        try:
            yield MeterRig(meter, store)
        finally:
            await meter.stop()


@asynccontextmanager
async def run_remote_meter(url: str, zone: Callable[[], tzinfo] = get_utc) -> AsyncIterator[MeterRig]:
    """Run a meter that asks that of another process, which is played by this one too."""
    async with run_shared_meter(url, zone) as rig:
        remote = SharedMeter(rig.store, find_lock(url), zone, MeterPlace(1, 2))
        try:
            yield MeterRig(remote, rig.store)
        finally:
            await remote.stop()


@asynccontextmanager
async def run_shared_meter(url: str, zone: Callable[[], tzinfo] = get_utc) -> AsyncIterator[MeterRig]:
    """Run the first of two workers."""
    async with await open_store(url) as store:
        meter = SharedMeter(store, find_lock(url), zone, MeterPlace(0, 2))
        meter.start()
        try:
            yield MeterRig(meter, store)
        finally:
            await meter.stop()


def find_lock(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///") + "-meter")


@asynccontextmanager
async def run_paired_meter(
    shared_url: str, url: str, zone: Callable[[], tzinfo] = get_utc, deadline_s: float = PATIENT_S
) -> AsyncIterator[MeterRig]:
    """Run a meter of windows beside one of rates and slots."""
    shared = Valkey(parse_address(shared_url), deadline_s)
    async with await open_store(url) as store:
        meter = pair_with_shared(shared, make_meter(store, zone))
        meter.start()
        try:
            yield MeterRig(meter, store)
        finally:
            await meter.stop()
            await shared.stop()


@asynccontextmanager
async def run_counted_meter(url: str, zone: Callable[[], tzinfo] = get_utc) -> AsyncIterator[MeterRig]:
    """Run the meter in the database as gateways do."""
    async with await open_store(url) as store:
        meter = count_by_share(make_postgres_meter(store, zone))
        meter.start()
        try:
            yield MeterRig(meter, store)
        finally:
            await meter.stop()


@asynccontextmanager
async def run_postgres_meter(url: str, zone: Callable[[], tzinfo] = get_utc) -> AsyncIterator[MeterRig]:
    async with await open_store(url) as store:
        meter = make_postgres_meter(store, zone)
        meter.start()
        try:
            yield MeterRig(meter, store)
        finally:
            await meter.stop()


async def wait_until_admitted(rig: MeterRig) -> None:
    """Wait until a rate of 600 a minute has room again: a request comes in each 100 ms."""
    for number in range(100):
        if isinstance(await rig.admit(f"again-{number}", rate(600)), Admitted):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("nothing came in for 10 s")


def usd(limit: int, amount: int, counter: str = USD, *, is_strict: bool = False) -> Hold:
    return Hold(counter, HoldKind.WINDOW, limit, amount, is_strict)


def tokens(limit: int, amount: int) -> Hold:
    return Hold(TOKENS, HoldKind.WINDOW, limit, amount)


def slot(limit: int, counter: str = SLOTS) -> Hold:
    return Hold(counter, HoldKind.SLOT, limit, 1)


def rate(limit: int, amount: int = 1) -> Hold:
    return Hold(REQUESTS, HoldKind.RATE, limit, amount)


def make_row(number: int, cost: int, lease: str = "", key: str = "key_1") -> UsageRow:
    """Return a row of now, with 100 tokens that count."""
    row = row_at(int(time.time() * 1000), number)
    return replace(row, cost_nano_usd=cost, lease=lease, key=key, input_tokens=90, output_tokens=20)


def make_charge(number: int, cost: int = 0) -> bytes:
    return encode_charge(make_row(number, cost))
