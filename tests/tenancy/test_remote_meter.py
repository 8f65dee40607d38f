"""The connection to the meter of another process."""

import asyncio
from datetime import UTC
from pathlib import Path

from dragoman.tenancy.memory_meter import MemoryMeter
from dragoman.tenancy.meter_server import MeterServer
from dragoman.tenancy.remote_meter import RemoteMeter
from waiting import wait_until_async


async def test_it_ends_also_when_the_other_side_goes_at_the_same_time(tmp_path: Path) -> None:
    server = MeterServer(MemoryMeter(None, lambda: UTC), 0, str(tmp_path))
    await server.start()
    remote = RemoteMeter(lambda: server.address)
    remote.start()
    await wait_until_async(lambda: not remote.disconnected.is_set())
    remote.disconnected.set()
    async with asyncio.timeout(30):
        await remote.disconnect()
    await server.stop()


async def test_a_directory_of_its_own_is_gone_when_the_server_stops() -> None:
    server = MeterServer(MemoryMeter(None, lambda: UTC), 0)
    await server.start()
    directory = Path(server.address).parent
    assert [entry.name for entry in directory.iterdir()] == ["meter"]
    await server.stop()
    assert not directory.exists()
