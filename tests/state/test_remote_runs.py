"""A run of another replica is read as a run of this process, whatever happens to it in Valkey."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dragoman.state import remote_runs
from dragoman.state.parked_run import ParkedRun
from dragoman.state.remote_runs import GONE, SILENT, RemoteRuns
from dragoman.state.run_index import RunIndex
from dragoman.store.shared_runs import Opening, RunBounds, RunCard, RunEnd, RunHead, RunPart
from dragoman.store.valkey import Valkey, parse_address
from dragoman.store.valkey_runs import ValkeyRuns
from dragoman.translate.hub.failure import RequestError
from valkey_server import ValkeyServer
from waiting import wait_until_async

CARD = RunCard(id="run_1", owner="alice", path="/p", digest=b"d", key=None, model="m", wants_array=False)
HEAD = RunHead(200, [("content-type", "text/event-stream")])
END = RunEnd(is_whole=True, failure=None, keep_s=60.0)


class Reading:
    """The runs of other replicas, as one process reads them, and what those replicas write."""

    def __init__(self, shared: ValkeyRuns) -> None:
        self.shared = shared
        self.index = RunIndex()
        self.remote = RemoteRuns(shared, self.index)
        self.remote.start(lambda: None)

    async def write(self, start: int, *pieces: bytes, end: RunEnd | None = None) -> None:
        part = RunPart(start=start, pieces=pieces, head=HEAD, end=end)
        assert await self.shared.add(CARD.id, part) == start + sum(map(len, pieces))

    async def find(self) -> ParkedRun:
        found = await self.remote.find(CARD.id, CARD.owner, CARD.path)
        assert found is not None
        found.clients += 1
        return found


@asynccontextmanager
async def reading(valkey: ValkeyServer) -> AsyncIterator[Reading]:
    shared = Valkey(parse_address(valkey.url))
    shared.start()
    rig = Reading(ValkeyRuns(shared, RunBounds(100_000, 100_000, 100_000)))
    try:
        assert await rig.shared.open(CARD, is_retry=False) is Opening.OPENED
        yield rig
    finally:
        await shared.stop()


async def test_a_run_is_read_as_it_is_written_and_once_for_all_clients(valkey: ValkeyServer) -> None:
    async with reading(valkey) as rig:
        await rig.write(0, b"data: 1\n\nda")
        run, same = await rig.find(), await rig.find()
        assert run is same
        assert (run.status, run.model, run.blocks) == (200, "m", [(0, b"data: 1\n\n")])
        await rig.write(11, b"ta: 2\n", b"\ndata: cut", end=END)
        await wait_until_async(lambda: run.is_done and rig.index.find(CARD.id) is None)
        assert (run.blocks, run.rest, run.is_whole) == (
            [(0, b"data: 1\n\n"), (1, b"data: 2\n\n")],
            b"data: cut",
            True,
        )
        assert rig.index.size > 0  # its clients still get it
        run.clients = 0
        rig.index.record_left(run)
        assert rig.index.size == 0


async def test_only_its_owner_finds_a_run_and_only_on_its_path(valkey: ValkeyServer) -> None:
    async with reading(valkey) as rig:
        assert await rig.remote.find(CARD.id, "bob", CARD.path) is None
        assert await rig.remote.find(CARD.id, CARD.owner, "/other") is None
        assert await rig.remote.find("run_2", CARD.owner, CARD.path) is None


async def test_a_run_that_was_added_again_in_other_pieces_is_not_read_twice(valkey: ValkeyServer) -> None:
    async with reading(valkey) as rig:
        await rig.write(0, b"data: 1\n\n", b"data: 2\n\nda")
        run = await rig.find()
        valkey.flush()
        assert await rig.shared.open(CARD, is_retry=False) is Opening.OPENED
        await rig.write(0, b"data", b": 1\n\ndata: 2\n\nd", b"ata: 3\n\n", end=END)
        await wait_until_async(lambda: run.is_done)
        assert [block for _, block in run.blocks] == [b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"]


@pytest.mark.parametrize(("fault", "failure"), [("removed", GONE), ("out", SILENT)])
async def test_a_run_ends_with_a_failure_that_says_whether_a_retry_is_safe(
    valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch, fault: str, failure: object
) -> None:
    monkeypatch.setattr(remote_runs, "GONE_S", 0.3)
    monkeypatch.setattr(remote_runs, "OUT_S", 0.3)
    async with reading(valkey) as rig:
        await rig.write(0, b"data: 1\n\n")
        run = await rig.find()
        if fault == "removed":
            await rig.shared.remove(CARD.id)
        else:
            valkey.kill()
        await wait_until_async(lambda: run.is_done and rig.index.find(CARD.id) is None)
        assert (run.failure, run.is_whole, run.event_count) == (failure, False, 1)


async def test_a_run_without_clients_is_read_no_more(valkey: ValkeyServer) -> None:
    async with reading(valkey) as rig:
        await rig.write(0, b"data: 1\n\n")
        run = await rig.find()
        run.clients, run.is_delivered = 0, True
        rig.remote.record_left(run)
        assert rig.index.find(CARD.id) is None
        assert rig.index.size == 0
        await asyncio.sleep(0)
        await wait_until_async(lambda: run.is_done)
        assert await rig.shared.take(CARD.id) is False


async def test_it_is_not_known_whether_a_run_exists_while_valkey_is_out(valkey: ValkeyServer) -> None:
    async with reading(valkey) as rig:
        valkey.kill()
        with pytest.raises(RequestError) as raised:
            await rig.find()
        assert raised.value.failure.retry_after == 1.0
