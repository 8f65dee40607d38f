"""Copies of the runs of this process in the shared state, so that other replicas find them.

A reply never waits for its copy: what is missing there is what the run has beyond what was confirmed. So nothing is
queued, and a copy that was lost is made again from the run itself.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress

from msgspec import Struct

from dragoman.net.tasks import spawn
from dragoman.state.parked_run import ParkedRun
from dragoman.state.run_index import RunIndex
from dragoman.store.shared_runs import Absence, JoinedId, Opening, RunCard, RunEnd, RunHead, RunPart, SharedRuns

RENEW_S = 3.0  # how often the shared state hears that this process lives
RENEWED_AT_ONCE = 500
PIECE_BYTES = 8 * 1024
PART_BYTES = 32 * 1024  # of one run, sent at once
BATCH_BYTES = 512 * 1024  # of all runs
BATCH = 200
PAUSE_S = 0.005  # between two batches, so that what comes meanwhile goes together
RETRY_S = 0.5  # while the shared state does not answer
FAILED_S = 10.0  # for which others that wait for a reply can read why there is none
STOP_S = 1.0  # for the last batch


class _Copy(Struct, eq=False):
    """How much of a run is in the shared state."""

    run: ParkedRun
    is_open: bool
    place: int = 0  # the first block that is not whole there
    offset: int = 0  # what is there of that
    size: int = 0  # the bytes that are there
    signs: int = 0
    has_head: bool = False
    has_end: bool = False

    @property
    def lacks_more(self) -> bool:
        """Whether the shared state lacks some of it, other than signs of life."""
        run = self.run
        lacks_head = bool(run.status) and not self.has_head
        return lacks_head or self.place < len(run.blocks) or (run.is_done and not self.has_end)

    def move_to(self, size: int) -> None:
        """Continue behind the bytes that are in the shared state."""
        if size < self.size:
            self.place = self.offset = self.size = 0
            self.has_head = False
        while self.size < size:
            left = len(_block(self.run, self.place)) - self.offset
            step = min(left, size - self.size)
            self.size += step
            self.offset += step
            if step == left:
                self.place, self.offset = self.place + 1, 0


class RunCopies:
    """The runs of this process that are copied. They are kept here as long as in the index."""

    def __init__(self, shared: SharedRuns, index: RunIndex) -> None:
        self._shared = shared
        self._index = index
        self._copies: dict[str, _Copy] = {}
        self._changed: dict[str, None] = {}
        self._woken = asyncio.Event()
        self._epoch = b""
        self._is_answered = True
        self._must_renew = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            spawn(self._copy_forever(), name="copies of runs"),
            spawn(self._renew_forever(), name="renewal of runs"),
        ]

    async def stop(self) -> None:
        """Copy what is missing, so that others can go on reading replies that have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for copy in self._copies.values():  # what was under way, too
            if copy.lacks_more:
                self.record(copy.run)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                self._is_answered = True
                while self._changed and self._is_answered:
                    await self._copy_batch()

    def renew_soon(self) -> None:
        """Look at once whether the shared state has lost runs."""
        self._must_renew.set()

    async def open(self, run: ParkedRun, *, is_retry: bool) -> JoinedId | Opening | None:
        """Add a run that is about to be made, unless the shared state has one of the same request."""
        try:
            opened = await self._shared.open(_describe(run), is_retry=is_retry)
        except BaseException:
            self.forget(run)  # it may be there
            raise
        if opened is None or opened is Opening.OPENED:
            self._copies[run.id] = _Copy(run, is_open=opened is not None)
        run.is_of_replica_only = opened is not Opening.OPENED
        return opened

    def record(self, run: ParkedRun) -> None:
        """Copy what was added to a run, or what else has changed."""
        if run.id in self._copies:
            self._changed[run.id] = None
            self._woken.set()

    def forget(self, run: ParkedRun) -> None:
        """Remove a run that is not made, or not kept."""
        self._copies.pop(run.id, None)
        self._changed.pop(run.id, None)
        spawn(self._shared.remove(run.id, is_outgrown=not run.is_resumable), name="remove a run")

    async def take(self, run: ParkedRun) -> bool:
        """Return whether no other replica has given this run to a retry."""
        return run.id not in self._copies or await self._shared.take(run.id) is not False

    async def release(self, run: ParkedRun) -> bool:
        """Return whether no other replica sends this run to a client; then none does from now on."""
        return run.id not in self._copies or await self._shared.release(run.id) is not False

    async def _copy_forever(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            self._is_answered = True
            await self._copy_batch()
            if self._changed:
                self._woken.set()
            await asyncio.sleep(PAUSE_S if self._is_answered else RETRY_S)

    async def _copy_batch(self) -> None:
        await asyncio.gather(*(self._add(copy, part) for copy, part in self._take_batch()))

    def _take_batch(self) -> list[tuple[_Copy, RunPart]]:
        """Return what is sent together of runs that have changed."""
        batch: list[tuple[_Copy, RunPart]] = []
        size = 0
        while self._changed and len(batch) < BATCH and size < BATCH_BYTES:
            copy = self._copies.get(_take_first(self._changed))
            if copy is None or (copy.has_end and self._index.find(copy.run.id) is not copy.run):
                continue
            if not copy.run.is_resumable:
                self.forget(copy.run)
                continue
            part = _next_part(copy)
            size += sum(map(len, part.pieces))
            batch.append((copy, part))
        return batch

    async def _add(self, copy: _Copy, part: RunPart) -> None:
        run = copy.run
        if not copy.is_open and not await self._open_again(copy):
            return
        have = await self._shared.add(run.id, part)
        if not run.is_resumable:  # meanwhile it grew too large, and nothing is kept of it
            self.forget(run)
            return
        if have is None:
            self._is_answered = False
        elif have is Absence.UNKNOWN:
            self._lose(copy)
            self.renew_soon()  # perhaps all are lost
        elif isinstance(have, Absence) or have > run.body_size:
            self._give_up(copy)
            return
        else:
            if have == part.start + sum(map(len, part.pieces)):
                copy.has_head = copy.has_head or part.head is not None
                copy.has_end = copy.has_end or part.end is not None
                copy.signs = part.signs
            copy.move_to(have)
        if copy.lacks_more:
            self.record(run)

    async def _open_again(self, copy: _Copy) -> bool:
        """Add a run that was not added, or that the shared state has lost."""
        opened = await self._shared.open(_describe(copy.run), is_retry=False)
        if opened is None:
            self._is_answered = False
            self.record(copy.run)
            return False
        if opened is not Opening.OPENED:  # meanwhile another replica got the key
            self._give_up(copy)
            return False
        copy.is_open, copy.run.is_of_replica_only = True, False
        return True

    def _lose(self, copy: _Copy) -> None:
        copy.is_open = copy.has_head = copy.has_end = False
        copy.move_to(0)
        self.record(copy.run)

    def _give_up(self, copy: _Copy) -> None:
        copy.run.is_of_replica_only = True
        self._copies.pop(copy.run.id, None)

    async def _renew_forever(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await self._must_renew.wait()
            self._must_renew.clear()
            await self._renew()

    async def _renew(self) -> None:
        for copy in list(self._copies.values()):
            if copy.has_end and self._index.find(copy.run.id) is not copy.run:
                del self._copies[copy.run.id]
        ids = [id for id, copy in self._copies.items() if copy.is_open and not copy.has_end]
        for start in range(0, max(1, len(ids)), RENEWED_AT_ONCE):
            renewed = await self._shared.renew(ids[start : start + RENEWED_AT_ONCE])
            if renewed is None:
                return
            lost: Sequence[str] = list(renewed.missing)
            if renewed.epoch != self._epoch:  # all, those that have ended too
                lost = list(self._copies) if self._epoch else lost
                self._epoch = renewed.epoch
            for id in lost:
                found = self._copies.get(id)
                if found is not None and found.is_open:
                    self._lose(found)


def _take_first(ids: dict[str, None]) -> str:
    id = next(iter(ids))
    del ids[id]
    return id


def _describe(run: ParkedRun) -> RunCard:
    origin = run.origin
    return RunCard(
        id=run.id,
        owner=origin.owner,
        path=origin.path,
        digest=origin.digest,
        key=origin.key,
        model=run.model,
        wants_array=run.wants_array,
    )


def _block(run: ParkedRun, place: int) -> bytes:
    return run.blocks[place][1] if place < len(run.blocks) else run.rest


def _next_part(copy: _Copy) -> RunPart:
    """Return what follows what the shared state has of a run, up to a bound."""
    run = copy.run
    data = b"".join(_read_blocks(copy))
    pieces = [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]
    end = None
    if run.is_done and not copy.has_end and copy.size + len(data) == run.body_size:
        keep_s = FAILED_S if run.timer is None else run.seconds_left
        end = RunEnd(run.is_whole, run.failure, keep_s)
    head = None
    if run.status and not copy.has_head:
        head = RunHead(run.status, [(name.decode("latin-1"), value.decode("latin-1")) for name, value in run.headers])
    return RunPart(
        start=copy.size,
        pieces=pieces,
        head=head,
        end=end,
        signs=run.signs,
        sign=run.sign,
        is_lost=run.is_lost and run.origin.key is None,
    )


def _read_blocks(copy: _Copy) -> Iterator[bytes]:
    run, place, offset, left = copy.run, copy.place, copy.offset, PART_BYTES
    while left > 0 and place <= len(run.blocks):
        piece = _block(run, place)[offset : offset + left]
        yield piece
        left -= len(piece)
        place, offset = place + 1, 0
