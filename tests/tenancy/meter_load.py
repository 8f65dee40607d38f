"""Requests under a limit, as one process of a gateway makes them; run by itself too, to be killed."""

import asyncio
import itertools
import os
import random
import secrets
import signal
import sys
import time

import uvloop
from msgspec.structs import replace

from dragoman.store import Store, StoreError, open_store
from dragoman.store.meter import Admit, Admitted, Meter, RowsWritten, Settle, encode_charge
from dragoman.store.usage_rows import UsageRow, make_id
from dragoman.store.valkey import Valkey, parse_address
from dragoman.tenancy.opened_meter import make_meter, pair_with_shared
from dragoman.tenancy.shared_meter import MeterPlace
from store.rows import row_at
from tenancy.meters import ALL_USD, PATIENT_S, USD, get_utc, slot, usd

LIMIT = 10**15
RESERVED = 1_000
HELD = 3
SHARED = "SHARED"  # the variable with the server of rates and slots, if there is one
OWNER = "owner"  # has the meter and makes no requests


class MeterLoad:
    """Requests one after the other in some tasks, each with its row."""

    def __init__(self, meter: Meter, store: Store) -> None:
        self.meter = meter
        self.store = store
        self.done = 0
        self.refused = 0
        self.is_over = False
        self._numbers = itertools.count(secrets.randbits(60))

    async def run(self, tasks: int) -> None:
        await asyncio.gather(*(self._make_requests() for _ in range(tasks)))

    async def hold(self, count: int) -> None:
        """Begin requests that never end."""
        for _ in range(count):
            lease = secrets.token_hex(8)
            charge = encode_charge(make_load_row(next(self._numbers), lease))
            holds = (slot(1000), usd(LIMIT, RESERVED), usd(LIMIT, RESERVED, ALL_USD))
            admit = Admit(lease, self.meter.process, holds, charge=charge)
            await self.meter.apply([admit])

    async def _make_requests(self) -> None:
        while not self.is_over:
            await self._make_request()

    async def _make_request(self) -> None:
        lease = secrets.token_hex(8)
        row = make_load_row(next(self._numbers), lease)
        holds = (slot(1000), usd(LIMIT, RESERVED), usd(LIMIT, RESERVED, ALL_USD))
        [result] = await self.meter.apply([Admit(lease, self.meter.process, holds, charge=encode_charge(row))])
        if not isinstance(result, Admitted):
            self.refused += 1
            self.meter.post(Settle(lease, {}))
            await asyncio.sleep(0.01)
            return
        await asyncio.sleep(random.uniform(0, 0.02))
        cost = random.randrange(500)
        row = replace(row, cost_nano_usd=cost)
        self.meter.post(Settle(lease, {USD: cost, ALL_USD: cost}, encode_charge(row)))
        await asyncio.sleep(random.uniform(0, 0.02))
        await self._write(row)
        self.meter.post(RowsWritten((lease,)))
        self.done += 1

    async def _write(self, row: UsageRow) -> None:
        while True:
            try:
                await self.store.append_usage([row])
                return
            except StoreError:
                await asyncio.sleep(0.05)


def make_load_row(number: int, lease: str) -> UsageRow:
    row = row_at(int(time.time() * 1000), 1)
    return replace(row, id=make_id(row.time_ms, number), lease=lease, cost_nano_usd=0)


async def main(url: str, worker: int, workers: int, role: str) -> None:
    async with await open_store(url) as store:
        meter = make_meter(store, get_utc, MeterPlace(worker, workers))
        if SHARED in os.environ:
            meter = pair_with_shared(Valkey(parse_address(os.environ[SHARED]), PATIENT_S), meter)
        meter.start()
        load = MeterLoad(meter, store)

        def end() -> None:
            load.is_over = True

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
        await meter.read([USD])
        if role != OWNER:
            await load.hold(HELD)
        print("ready", flush=True)
        if role == OWNER:
            await asyncio.Event().wait()
        await load.run(4)
        await meter.stop()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as `dragoman serve` does
        runner.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
