"""Copies of runs in a real Valkey: what is missing there is added, whatever was lost on the way."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from dragoman.state.parked_run import OF_REPLICA_ONLY, ParkedRun, RunOrigin
from dragoman.state.run_copies import PART_BYTES, RunCopies
from dragoman.state.run_index import RunIndex
from dragoman.store.shared_runs import Absence, JoinedId, Opening, RunBounds, SharedRun
from dragoman.store.valkey import Valkey, parse_address
from dragoman.store.valkey_runs import ValkeyRuns
from valkey_server import ValkeyServer

BOUNDS = RunBounds(10_000_000, 20_000_000, 20_000_000)
STREAM = [(b"content-type", b"text/event-stream")]


class Copying:
    """Copies of the runs of one process."""

    def __init__(self, shared: ValkeyRuns) -> None:
        self.shared = shared
        self.index = RunIndex()
        self.copies = RunCopies(shared, self.index)

    async def open(self, key: bytes | None = None) -> ParkedRun:
        run = ParkedRun(0, RunOrigin("alice", "/p", b"digest", key, "park"))
        assert await self.copies.open(run, is_retry=False) is Opening.OPENED
        self.index.add(run)
        return run

    def add(self, run: ParkedRun, *data: bytes) -> None:
        for piece in data:
            run.add(piece)
        self.copies.record(run)

    def end(self, run: ParkedRun) -> None:
        run.end(whole=True)
        run.set_timer(60, lambda: None)
        self.copies.record(run)

    async def read(self, run: ParkedRun) -> SharedRun | None:
        """Return the whole run as it is there; None if it is not."""
        found = await self.shared.read(run.id, 0)
        if not isinstance(found, SharedRun):
            return None
        while not found.is_read:
            more = await self.shared.read(run.id, len(found.pieces))
            assert isinstance(more, SharedRun)
            more.pieces = [*found.pieces, *more.pieces]
            found = more
        return found

    async def wait_for(self, run: ParkedRun, body: Sequence[bytes]) -> SharedRun:
        """Wait until the run is there with this body and has ended."""
        while True:
            found = await self.read(run)
            if found is not None and found.end is not None:
                assert b"".join(found.pieces) == b"".join(body)
                return found
            await asyncio.sleep(0.005)


@asynccontextmanager
async def copying(valkey: ValkeyServer) -> AsyncIterator[Copying]:
    shared = Valkey(parse_address(valkey.url))
    shared.start()
    rig = Copying(ValkeyRuns(shared, BOUNDS))
    rig.copies.start()
    try:
        yield rig
    finally:
        await rig.copies.stop()
        await shared.stop()


async def test_a_reply_is_copied_with_all_but_its_signs_of_life(valkey: ValkeyServer) -> None:
    async with copying(valkey) as rig:
        run = await rig.open()
        run.begin(200, STREAM)
        events = [b"data: %d\n\n" % number for number in range(100)]
        for event in events:
            rig.add(run, event, b": alive\n\n")
        large = b"data: " + b"x" * (5 * PART_BYTES) + b"\n\n"
        rig.add(run, large, b"data: cut")
        rig.end(run)
        found = await rig.wait_for(run, [*events, large, b"data: cut"])
        assert found.head is not None
        assert found.head.headers == [("content-type", "text/event-stream")]
        assert found.sign == b": alive\n\n"
        assert found.end is not None
        assert 59 < found.end.keep_s <= 60


async def test_a_copy_that_valkey_has_lost_is_made_again_even_after_the_end(valkey: ValkeyServer) -> None:
    async with copying(valkey) as rig:
        rig.copies.renew_soon()
        run, ended = await rig.open(b"key"), await rig.open()
        for one in (run, ended):
            one.begin(200, STREAM)
            rig.add(one, b"data: 1\n\n")
        rig.end(ended)
        await rig.wait_for(ended, [b"data: 1\n\n"])
        valkey.flush()
        rig.add(run, b"data: 2\n\n")
        rig.end(run)
        await rig.wait_for(run, [b"data: 1\n\ndata: 2\n\n"])
        await rig.wait_for(ended, [b"data: 1\n\n"])
        other = ParkedRun(0, run.origin)
        assert await rig.copies.open(other, is_retry=False) == JoinedId(run.id)


async def test_a_run_that_began_while_valkey_was_out_is_opened_later(valkey: ValkeyServer) -> None:
    async with copying(valkey) as rig:
        valkey.kill()
        run = ParkedRun(0, RunOrigin("alice", "/p", b"digest", b"key", "park"))
        assert await rig.copies.open(run, is_retry=False) is None
        assert OF_REPLICA_ONLY in run.own_headers
        rig.index.add(run)
        run.begin(200, STREAM)
        rig.add(run, b"data: 1\n\n")
        rig.end(run)
        valkey.start()
        await rig.wait_for(run, [b"data: 1\n\n"])
        assert OF_REPLICA_ONLY not in run.own_headers


async def test_a_run_that_is_not_kept_here_is_not_kept_there(valkey: ValkeyServer) -> None:
    async with copying(valkey) as rig:
        run = await rig.open(b"key")
        run.begin(200, STREAM)
        run.forget()
        rig.copies.record(run)
        while await rig.shared.read(run.id, 0) is not Absence.FULL:  # noqa: ASYNC110 - another process does it
            await asyncio.sleep(0.005)


async def test_a_run_that_grows_too_large_while_a_part_of_it_is_on_its_way_is_given_up(valkey: ValkeyServer) -> None:
    async with copying(valkey) as rig:
        run, other = await rig.open(b"large"), await rig.open(b"small")
        for one in (run, other):
            one.begin(200, STREAM)
            rig.add(one, b"data: 1\n\n")
        valkey.freeze()
        rig.add(run, b"data: 2\n\n")
        await asyncio.sleep(0.05)  # it was sent
        run.forget()
        valkey.thaw()
        rig.end(other)
        await rig.wait_for(other, [b"data: 1\n\n"])
        while await rig.read(run) is not None:  # noqa: ASYNC110 - another process does it
            await asyncio.sleep(0.005)


async def test_what_is_missing_is_copied_before_the_process_ends(valkey: ValkeyServer) -> None:
    async with copying(valkey) as rig:
        run = await rig.open()
        run.begin(200, STREAM)
        rig.end(run)
        await rig.copies.stop()
        found = await rig.read(run)
        assert found is not None
        assert found.end is not None
