"""The context in which a request is answered: what becomes of it is recorded and passed to observers."""

import asyncio
from typing import TYPE_CHECKING

from dragoman.flow.request_record import ObserverQueue, RequestRecord
from dragoman.hub.failure import RequestError
from dragoman.net.errors import ClientDisconnected
from dragoman.net.http_request import HttpRequest
from dragoman.net.sink import ReplySink

if TYPE_CHECKING:
    from dragoman.http.console.live_requests import LiveRequests


class ObservedRequest:
    """A context manager and not a coroutine around another: every await passes through all coroutines around it."""

    __slots__ = ("_live", "_observers", "_record", "_request", "_sink")

    def __init__(
        self,
        record: RequestRecord,
        request: HttpRequest,
        sink: ReplySink,
        observers: ObserverQueue | None = None,
        live: "LiveRequests | None" = None,
    ) -> None:
        self._record = record
        self._request = request
        self._sink = sink
        self._observers = observers  # None: its outcome is not observed
        self._live = live  # where the console lists the request and may end it

    def __enter__(self) -> RequestRecord:
        if self._observers is not None:
            self._observers.under_way += 1
        if self._live is not None:
            self._live.begin(self._record, self._request, self._sink)
        return self._record

    def __exit__(self, _: object, fault: BaseException | None, trace: object) -> bool:
        record, recording, cause = self._record, self._record.recording, fault
        if self._live is not None:
            self._live.end(record)
            if fault is not None:
                cause = self._live.find_cause(fault, self._sink)
        if cause is not None:
            cause = self._note_fault(cause)
        if recording is not None and isinstance(cause, asyncio.CancelledError | ClientDisconnected):
            recording.note_interruption(self._sink.reader_gone)
        if self._observers is None:
            record.end()
        else:
            self._observers.under_way -= 1
            self._observers.add(record)
        if recording is not None:
            recording.note_outcome(record.outcome(), record.ledger)
        if cause is not None and cause is not fault:
            try:
                raise cause from None
            finally:
                del cause, fault  # its traceback refers to this frame: a cycle would keep the request's body
        return cause is None

    def _note_fault(self, fault: BaseException) -> BaseException:
        """Return what to raise instead: a failure that the observers have is not logged again."""
        if isinstance(fault, asyncio.CancelledError) and not self._sink.reader_gone:
            self._record.note_shutdown()
            return fault
        self._record.note_fault(fault)
        return fault.as_observed() if self._observers is not None and isinstance(fault, RequestError) else fault
