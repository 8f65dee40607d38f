"""Replies that outlive the connection of their client, for clients that come back for the rest.

A request may name a run, or repeat the request of one: then it follows that run. Any other whose reply is to outlive
its client opens a run of its own.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from dragoman.config.settings import ResponsesSettings
from dragoman.net.sink import ReplySink, SinkPhase
from dragoman.net.tasks import spawn
from dragoman.proxy.answer import SHUTTING_DOWN
from dragoman.proxy.call import Call
from dragoman.proxy.ports import OtherWorkers
from dragoman.state.parked_run import ParkedRun
from dragoman.state.parked_sink import ParkedSink
from dragoman.state.remote_runs import RemoteRuns
from dragoman.state.run_copies import RunCopies
from dragoman.state.run_index import RunIndex
from dragoman.store.shared_runs import SharedRuns
from dragoman.translate.hub.failure import RequestError

LOOK_AGAIN_S = 1.0  # at the earliest, whether clients of other replicas still get a run
HAS_LOST_RUN = "has-lost-run"  # a question to other workers
BY_KEY, BY_RETRY, BY_CURSOR = "key", "retry", "cursor"  # how a request gets the reply of an earlier one


class Replicas(Struct, frozen=True):
    """What replicas that share state have of each other's runs."""

    copies: RunCopies  # of the runs of this process
    remote: RemoteRuns
    shared: SharedRuns


class ParkedRuns:
    """The runs of this process that a client may come back to."""

    def __init__(self, settings: Callable[[], ResponsesSettings], index: RunIndex | None = None) -> None:
        self.worker = 0  # the number of this process among the workers of the gateway
        self.replicas: Replicas | None = None  # None: runs are found by this gateway only
        self.has_unknown_replicas = False  # which may have a run, and are not asked: a database is all that they share
        self.settings = settings
        self.index = index or RunIndex()
        self.joined = Counter({BY_KEY: 0, BY_RETRY: 0, BY_CURSOR: 0})

    def join_group(self, group: OtherWorkers) -> None:
        """Give new runs the number of this worker, and answer other workers that look for a run."""
        self.worker = group.number
        group.answer(HAS_LOST_RUN, self._answer_has_lost_run)

    async def _answer_has_lost_run(self, question: dict[str, str]) -> bytes:
        run = self.index.find_lost(question["tenant"], bytes.fromhex(question["digest"]))
        return b"" if run is None else b"yes"

    def share(self, shared: SharedRuns) -> None:
        """Let other replicas find the runs of this process, and find theirs; called before the first request."""
        self.replicas = Replicas(RunCopies(shared, self.index), RemoteRuns(shared, self.index), shared)

    def start(self) -> None:
        if self.replicas is not None:
            self.replicas.copies.start()
            self.replicas.remote.start(self.replicas.copies.renew_soon)

    async def stop(self) -> None:
        if self.replicas is not None:
            await self.replicas.copies.stop()
            await self.replicas.shared.stop()

    def record_change(self, run: ParkedRun) -> None:
        """Let other replicas know of a run what has changed."""
        if self.replicas is not None:
            self.replicas.copies.record(run)

    def record_growth(self, run: ParkedRun, size: int) -> None:
        self.index.record_growth(run, size)
        self.record_change(run)
        if not run.is_resumable and not run.clients and run.origin.policy != "drain":
            run.stop()

    def join(self, run: ParkedRun) -> None:
        """Note that a client gets a run."""
        run.clients += 1
        if not run.is_done:
            run.clear_timer()
        self.record_change(run)

    def leave(self, run: ParkedRun) -> None:
        """Note that a client has left; stop the run, at once or later, if it was the last one."""
        run.clients -= 1
        self.index.record_left(run)
        self.record_change(run)
        if run.is_remote and self.replicas is not None:
            self.replicas.remote.record_left(run)
            return
        if run.clients or run.is_done or run.origin.policy == "drain":
            return
        if run.origin.policy == "cancel" or not run.is_resumable:
            self._stop(run)
        else:
            run.set_timer(self.settings().park_s, partial(self._stop, run))

    def _stop(self, run: ParkedRun) -> None:
        """Stop a run, unless clients of other replicas get it."""
        if self.replicas is None or run.is_of_replica_only or not run.is_resumable:
            run.stop()
        else:
            spawn(self._stop_unfollowed(run, self.replicas.copies), name="stop a run")

    async def _stop_unfollowed(self, run: ParkedRun, copies: RunCopies) -> None:
        is_released = await copies.release(run)
        if run.clients or run.is_done:
            return
        if not is_released:
            wait_s = self.settings().park_s if run.origin.policy == "park" else LOOK_AGAIN_S
            run.set_timer(max(wait_s, LOOK_AGAIN_S), partial(self._stop, run))
        else:
            run.stop()


def open_run(parked: ParkedRuns, call: Call, sink: ReplySink) -> "OpenRun":
    """Return a context with the sink of a call: for one that may be parked, a tee of its run and its client."""
    return OpenRun(parked, call, sink)


class OpenRun(Struct, eq=False):
    """Where a call is answered that may outlive its client; without a run, nothing but its sink."""

    _parked: ParkedRuns
    _call: Call
    _client: ReplySink
    _run: ParkedRun | None = None
    _tee: ParkedSink | None = None

    def __enter__(self) -> ReplySink:
        run = self._call.parking
        return self._client if run is None else self._begin(run)

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if self._run is not None and self._tee is not None:
            self._end(self._run, self._tee, fault)

    def _begin(self, run: ParkedRun) -> ParkedSink:
        """Register the run of the call, so that others find it, and return the tee that its reply goes to."""
        parked, call, client = self._parked, self._call, self._client
        self._run = run
        task = asyncio.current_task()
        assert task is not None
        self._tee = tee = ParkedSink(run, client, parked.record_growth)
        run.stop = partial(tee.lose_reader, task.cancel)  # no client reads it, so that it ends without an error event
        call.record.run = run.id
        parked.index.add(run)
        client.on_reader_gone(partial(parked.leave, run))
        return tee

    def _end(self, run: ParkedRun, tee: ParkedSink, fault: BaseException | None) -> None:
        """End a run whose call has ended; one that failed is forgotten, so that a retry runs again."""
        index, client = self._parked.index, self._client
        if fault is not None:
            run.failure = fault.failure if isinstance(fault, RequestError) else SHUTTING_DOWN
            index.remove(run)
        client.on_reader_gone(None)
        run.clients -= not client.reader_gone
        run.is_delivered = run.is_delivered or not client.reader_gone
        run.end(whole=tee.phase is SinkPhase.ENDED)  # perhaps with an error event
        run.release()
        index.record_left(run)
        run.clear_timer()
        if run.is_resumable and run.failure is None:
            index.record_end(run)
            run.set_timer(self._parked.settings().park_s, partial(index.remove, run))
        self._parked.record_change(run)
