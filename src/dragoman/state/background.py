"""Background responses: queued in the store, run by one process each, and ended exactly once."""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.settings import ResponsesSettings
from dragoman.net.errors import BufferBudgetExceeded, describe_fault
from dragoman.net.tasks import spawn
from dragoman.state.run_output import RunOutput, RunSink
from dragoman.state.service import ResponseService, now
from dragoman.state.stored_call import StoredCall
from dragoman.store import StoreError
from dragoman.store.response_rows import (
    BACKGROUND,
    BACKGROUND_STREAM,
    UNFINISHED,
    Ending,
    EventChunk,
    FinishedRun,
    QueuedRun,
    ResponseRow,
    RunEvents,
    RunRow,
    StoredEvents,
)
from dragoman.store.runs import Runs
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.ports import StoredReply
from dragoman.translate.hub.request import Json
from dragoman.translate.protocols.responses.encode_response import (
    QUEUED_EVENTS,
    ResponseProgress,
    encode_queued_stream,
    encode_stream_end,
    end_head,
)

log = logging.getLogger(__name__)

POLL_S = 1.0  # how soon a response is run that another process queued and cannot run
CHECK_S = 0.4  # how soon a response that another process cancelled is stopped
STORE_EVENTS_S = 0.03  # between two transactions with events
FINISH_RETRY_S = 1.0
RETRY_AFTER_S = 5.0
DRAIN_CHECK_S = 0.05
BATCH = 100
CLAIMED_AT_ONCE = 20
MEMORY_CHECK_S = 1.0  # while requests hold as many bytes as they may
ROOM_CHECK_S = 0.1  # while requests of clients have taken the room that a response was claimed for
INTERRUPTED = Failure(
    Kind.SHUTDOWN,
    "The response was interrupted: the process that ran it ended, or lost the database. It is not run again; send the "
    "request again.",
)
STATUSES = ("queued", "in_progress", "completed", "incomplete", "failed", "cancelled")


class RunRequest(Struct, frozen=True):
    """What a process needs to run a response, besides its row."""

    key: str  # the id of the client key
    request_id: str
    path: str
    query: str
    headers: tuple[tuple[bytes, bytes], ...]  # without the client's credentials
    fields: bytes  # JSON: the request without its input


class ActiveRun:
    """A response that this process runs."""

    def __init__(self, run: RunRow, output: RunOutput) -> None:
        self.row = run.row
        self.token = run.token
        self.request = msgspec.msgpack.decode(run.request, type=RunRequest)
        self.state: StoredCall | None = None  # None until it is read from the store
        self.output = output
        self.sink: RunSink | None = None  # of the attempt to run it that is under way
        self.task: asyncio.Task[None] | None = None
        self.is_waiting = True  # until it is executed, and counts as a request
        self.is_queued = False  # it waits for a limit
        self.is_stored_queued = False  # as the store has it
        self.storing: asyncio.Task[None] | None = None
        self.is_finishing = False
        self.is_ended_elsewhere = False  # cancelled, deleted or counted as interrupted
        self.changed = asyncio.Event()  # set when there are new events or it has ended, then replaced

    def wake_followers(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def abandon(self) -> None:
        """Stop a response that has been ended elsewhere: its upstream request is closed."""
        if self.is_finishing:
            return
        self.is_ended_elsewhere = True
        if self.sink is not None:
            self.sink.reader_gone = True
        if self.task is not None:
            self.task.cancel()


Execute = Callable[[ActiveRun, StoredCall], Awaitable[None]]


class BackgroundRuns:
    """Queues, runs, follows and cancels background responses."""

    def __init__(self, service: ResponseService, runs: Runs, settings: Callable[[], ResponsesSettings]) -> None:
        self.service = service
        self._runs = runs
        self._settings = settings
        self._execute: Execute | None = None
        self._find_room: Callable[[], int] = lambda: CLAIMED_AT_ONCE
        self._active: dict[tuple[str, str], ActiveRun] = {}
        self._is_taking = False
        self._is_failing = False
        self._extended_at = time.monotonic()
        self._searched_at = float("-inf")  # for responses whose process is gone
        self._taking = asyncio.Lock()
        self._wake = asyncio.Event()
        self._has_events = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self.counts = dict.fromkeys(STATUSES, 0)  # how many responses this process brought to a status

    @property
    def running(self) -> int:
        return len(self._active)

    # Requests of clients

    async def queue(self, state: StoredCall, request: RunRequest, *, stream: bool) -> ResponseRow:
        """Queue a response; raises RequestError if its owner has too many, or the store cannot be reached."""
        snapshot, most = state.snapshot, self._settings().max_unfinished_per_key
        reply = StoredReply("queued", snapshot.stored_head(ResponseProgress("queued")), snapshot.settings, ())
        row, items, _ = state.describe(reply)
        row = replace(row, mode=BACKGROUND_STREAM if stream else BACKGROUND)
        run = QueuedRun(msgspec.msgpack.encode(request), items=items)
        if stream:
            run = replace(run, events=encode_queued_stream(snapshot), last_event=QUEUED_EVENTS - 1)
        if not await self.service.ask(self._runs.queue_run(row, run, most)):
            message = f"This key has {most} background responses that have not ended (see max_unfinished_per_key)."
            raise RequestError(Failure(Kind.RATE_LIMITED, message, retry_after=RETRY_AFTER_S))
        self.counts["queued"] += 1
        self._wake.set()
        return row

    async def cancel(self, row: ResponseRow) -> ResponseRow:
        """End a response, if it has not ended; return its row as it is then."""
        if row.status in UNFINISHED:
            if await self.service.ask(self._end(row, "cancelled")):
                self.counts["cancelled"] += 1
            self.stop_running(row)
            return await self.service.find(row.owner, row.id)
        return row

    def stop_running(self, row: ResponseRow) -> None:
        """Stop a response that has been cancelled or deleted, if this process runs it; others notice it themselves."""
        active = self._active.get((row.owner, row.id))
        if active is not None:
            active.abandon()

    def change_of(self, row: ResponseRow) -> asyncio.Event | None:
        """Return what is set when a response has new events or ends; None if this process does not run it."""
        active = self._active.get((row.owner, row.id))
        return None if active is None else active.changed

    async def load_events(self, row: ResponseRow, after: int, limit: int = BATCH) -> StoredEvents:
        """Return the next chunks of events after the one with this number."""
        return await self.service.ask(self._runs.load_events(row.owned_id, after, limit))

    async def _end(
        self, row: ResponseRow, status: str, failure: Failure | None = None, *, expired_at: int | None = None
    ) -> bool:
        """End a response without a reply; return False if it has already ended."""
        head = end_head(row.head, status, failure)
        ending = Ending(status, head, expired_at=expired_at)
        if row.mode == BACKGROUND_STREAM:
            response = await self.service.render(replace(row, status=status, head=head))
            ending = replace(ending, make_event=lambda number: encode_stream_end(response, number))
        return await self._runs.end_run(row.owned_id, ending, now())

    # Running

    def start(self, execute: Execute, find_room: Callable[[], int]) -> None:
        """Take queued responses from now on, while there is room for requests: `find_room` returns for how many.

        `execute` answers one, and raises RequestError if that fails.
        """
        self._execute, self._find_room, self._is_taking = execute, find_room, True
        loops = (self._take_queued, self._watch_claims, self._store_events)
        self._loops = [spawn(_repeat(loop), name="background responses") for loop in loops]

    def stop_taking(self) -> None:
        """Leave what is queued to other processes, or to the next start."""
        self._is_taking = False

    async def drain(self, grace_s: float, is_over: Callable[[], bool]) -> None:
        """Let running responses end for up to `grace_s`; those that have not are stored as failed."""
        self.stop_taking()
        until = time.monotonic() + grace_s
        async with self._taking:  # one that is being claimed is run
            pass
        while (tasks := self._tasks) and time.monotonic() < until and not is_over():
            await asyncio.wait(tasks, timeout=DRAIN_CHECK_S)
        for active in self._active.values():
            if active.task is not None and not active.is_finishing:
                active.task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._settings().background_lease_s)
        for loop in self._loops:
            loop.cancel()

    @property
    def _tasks(self) -> list[asyncio.Task[None]]:
        return [active.task for active in self._active.values() if active.task is not None]

    async def _take_queued(self) -> None:
        """Take what is queued, then wait until more is queued, there is room for more, or POLL_S have passed."""
        self._wake.clear()
        try:
            async with self._taking:
                await self._take_all()
            self._record_store(None)
        except StoreError as error:
            self._record_store(error)
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._wake.wait()

    async def _take_all(self) -> None:
        """Claim what there is room for, and leave the rest to other processes or to later."""
        settings = self._settings()
        while self._is_taking:
            waiting = sum(active.is_waiting for active in self._active.values())
            free = min(settings.max_background - len(self._active), self._find_room() - waiting)
            if free < 1:
                return
            tokens = [secrets.token_hex(16) for _ in range(min(CLAIMED_AT_ONCE, free))]
            until = int(now() + settings.background_lease_s)
            runs = await self._runs.claim_runs(tokens, until, settings.max_background_per_key)
            for run in runs:
                self._begin(run)
            if not runs:
                return

    def _begin(self, run: RunRow) -> None:
        self.counts["in_progress"] += 1
        output = RunOutput(streams=run.row.mode == BACKGROUND_STREAM, on_events=self._has_events.set)
        active = self._active[run.row.owner, run.row.id] = ActiveRun(run, output)
        active.task = spawn(self._run(active), name="background response")

    def _record_store(self, error: StoreError | None) -> None:
        if error is not None and not self._is_failing:
            log.warning("background responses wait, because the store cannot be reached: %s", error)
        self._is_failing = error is not None

    async def _run(self, active: ActiveRun) -> None:
        failure = INTERRUPTED
        try:
            fields = msgspec.json.decode(active.request.fields, type=dict[str, Json])
            while not await self._execute_in_memory(active, fields):  # noqa: ASYNC110 (as below)
                await asyncio.sleep(MEMORY_CHECK_S)
        except asyncio.CancelledError:
            pass  # the gateway stops, or the response has been ended elsewhere
        except RequestError as refused:
            failure = refused.failure
        except Exception as bug:
            log.error("background response %s failed: %s", active.row.id, describe_fault(bug))
            message = f"The gateway failed on this response. See the gateway's log for {active.request.request_id}."
            failure = Failure(Kind.BUG, message)
        try:
            if not active.is_ended_elsewhere:
                await self._finish(active, failure)
        finally:
            del self._active[active.row.owner, active.row.id]
            active.wake_followers()
            self._wake.set()

    async def _execute_in_memory(self, active: ActiveRun, fields: dict[str, Json]) -> bool:
        """Read the context of a response and run it; return False, and forget it, if there is no memory for it now."""
        assert self._execute is not None
        active.state = state = await self.service.ask(self.service.restore_call(active.row, fields))
        state.on_wait = partial(self._note_wait, active)
        while self._find_room() < 1:  # noqa: ASYNC110 (requests of clients end without an event)
            await asyncio.sleep(ROOM_CHECK_S)
        active.is_waiting = False
        try:
            await self._execute(active, state)
        except BufferBudgetExceeded:
            active.state, active.sink, active.is_waiting = None, None, True
            return False
        finally:
            state.on_wait = None  # which refers to it
        return True

    def _note_wait(self, active: ActiveRun, is_queued: bool) -> None:
        """A response that waits for a limit is queued still, and in progress only when it is admitted."""
        active.is_queued = is_queued
        if active.is_stored_queued != is_queued and (active.storing is None or active.storing.done()):
            active.storing = spawn(self._store_wait(active), name="background response")

    async def _store_wait(self, active: ActiveRun) -> None:
        while active.is_stored_queued != active.is_queued:
            is_queued = active.is_queued
            try:
                await self._runs.mark_run(active.row.owned_id, active.token, "queued" if is_queued else "in_progress")
            except StoreError as error:
                log.debug("the status of a background response cannot be stored now: %s", error)
                return
            active.is_stored_queued = is_queued

    async def _finish(self, active: ActiveRun, failure: Failure) -> None:
        """Store how a response has ended, with its last events; `failure` if it has no reply."""
        active.is_finishing = True
        chunks = active.output.take_rest()
        until = time.monotonic() + self._settings().background_lease_s
        while True:
            try:
                status = await self._store_end(active, chunks, failure)
                if status:
                    self.counts[status] += 1
                return
            except (StoreError, RequestError) as error:
                if time.monotonic() > until:
                    log.error("a background response could not be stored, and counts as interrupted: %s", error)
                    return
            await asyncio.sleep(FINISH_RETRY_S)

    async def _store_end(self, active: ActiveRun, chunks: Sequence[EventChunk], failure: Failure) -> str:
        """Return the status that was stored; empty if the response was ended elsewhere."""
        state, reply = active.state, None if active.state is None else active.state.taken
        if state is None or reply is None:
            await self._runs.add_events([RunEvents(active.token, chunk) for chunk in chunks], now())
            return "failed" if await self._end(active.row, "failed", failure) else ""
        row, items, appended = state.describe(reply)
        is_stored = await self._runs.finish_run(FinishedRun(active.token, row, items, appended, chunks), now())
        return reply.status if is_stored else ""

    async def _store_events(self) -> None:
        """Wait until there are events, and store those of all responses that run here."""
        await self._has_events.wait()
        self._has_events.clear()
        batch = [(active, chunk) for active in self._active.values() if (chunk := active.output.begin_storing())]
        try:
            await self._runs.add_events([RunEvents(active.token, chunk) for active, chunk in batch], now())
        except StoreError:
            self._has_events.set()  # the same events once more
            await asyncio.sleep(FINISH_RETRY_S)
            return
        for active, _ in batch:
            active.output.record_stored()
            active.wake_followers()
        await asyncio.sleep(STORE_EVENTS_S)

    async def _watch_claims(self) -> None:
        """Extend the leases of what runs here, stop what others have ended, and end what others have left behind."""
        lease_s = self._settings().background_lease_s
        try:
            await self._check_claims(lease_s)
            if time.monotonic() - self._searched_at > lease_s / 4:
                self._searched_at = time.monotonic()
                expired_at = now()
                for run in await self._runs.list_lost_runs(expired_at, BATCH):
                    if await self._end(run.row, "failed", INTERRUPTED, expired_at=expired_at):
                        self.counts["failed"] += 1
                        log.warning("background response %s was interrupted: its process is gone", run.row.id)
        except (StoreError, RequestError):
            if time.monotonic() - self._extended_at > lease_s:  # by now others have ended them
                for active in list(self._active.values()):
                    active.abandon()
        await asyncio.sleep(CHECK_S)

    async def _check_claims(self, lease_s: float) -> None:
        actives = list(self._active.values())
        tokens = [active.token for active in actives]
        if not tokens:
            self._extended_at = time.monotonic()
            return
        if time.monotonic() - self._extended_at > lease_s / 4:
            valid = await self._runs.extend_claims(tokens, int(now() + lease_s))
            self._extended_at = time.monotonic()
        else:
            valid = await self._runs.find_claims(tokens)
        for active in actives:
            if active.token not in valid:
                active.abandon()


async def _repeat(work: Callable[[], Awaitable[None]]) -> None:
    """Do this again and again; a bug in it is logged, and does not end it."""
    while True:
        try:
            await work()
        except Exception as bug:
            log.error("background responses: %s", describe_fault(bug))
            await asyncio.sleep(POLL_S)
