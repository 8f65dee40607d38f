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
from dragoman.proxy.answer import SHUTTING_DOWN
from dragoman.proxy.call import Call
from dragoman.proxy.ports import OtherWorkers
from dragoman.state.parked_run import ParkedRun, RunOrigin
from dragoman.state.parked_sink import ParkedSink
from dragoman.state.run_index import RunIndex, RunMemory
from dragoman.translate.hub.failure import RequestError
from dragoman.translate.hub.ports import EVENT_STREAM

HAS_LOST_RUN = "has-lost-run"  # a question to other workers
BY_KEY, BY_RETRY, BY_CURSOR = "key", "retry", "cursor"  # how a request gets the reply of an earlier one


class ParkedRuns:
    """The runs of this process that a client may come back to."""

    def __init__(self, settings: Callable[[], ResponsesSettings], index: RunMemory | None = None) -> None:
        self.worker = 0  # the number of this process among the workers of the gateway
        self.settings = settings
        self.index: RunMemory = index or RunIndex()
        self.joined = Counter({BY_KEY: 0, BY_RETRY: 0, BY_CURSOR: 0})

    @property
    def count(self) -> int:
        return len(self.index)

    @property
    def size(self) -> int:
        """The bytes that all runs occupy."""
        return self.index.size

    def join_group(self, group: OtherWorkers) -> None:
        """Give new runs the number of this worker, and answer other workers that look for a run."""
        self.worker = group.number
        group.answer(HAS_LOST_RUN, self._answer_has_lost_run)

    async def _answer_has_lost_run(self, question: dict[str, str]) -> bytes:
        run = self.index.find_lost(question["tenant"], bytes.fromhex(question["digest"]))
        return b"" if run is None else b"yes"

    def record_growth(self, run: ParkedRun, size: int) -> None:
        self.index.record_growth(run, size)
        if not run.is_resumable and not run.clients and run.origin.policy != "drain":
            run.stop()

    def leave(self, run: ParkedRun) -> None:
        """Note that a client has left; stop the run, at once or later, if it was the last one."""
        run.clients -= 1
        self.index.record_left(run)
        if run.clients or run.is_done or run.origin.policy == "drain":
            return
        if run.origin.policy == "cancel" or not run.is_resumable:
            run.stop()
        else:
            run.set_timer(self.settings().park_s, run.stop)


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
        origin = self._call.parking
        return self._client if origin is None else self._begin(origin)

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if self._run is not None and self._tee is not None:
            self._end(self._run, self._tee, fault)

    def _begin(self, origin: RunOrigin) -> ParkedSink:
        """Register the run of the call, so that others find it, and return the tee that its reply goes to."""
        parked, call, client = self._parked, self._call, self._client
        self._run = run = ParkedRun(parked.worker, origin)
        run.model, run.wants_array = call.model, call.stream and call.stream_type != EVENT_STREAM
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
