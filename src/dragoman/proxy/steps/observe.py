"""Observe a call from its head to its end: its record, its capture, the console's live view, and its outcome."""

import asyncio
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from dragoman.net.errors import ClientDisconnected
from dragoman.net.http_request import HttpRequest
from dragoman.net.sink import ReplySink
from dragoman.proxy.accounts import settle
from dragoman.proxy.call import Call
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.request_record import ObserverQueue, RequestRecord
from dragoman.proxy.running_requests import find_cause
from dragoman.translate.hub.failure import RequestError


class LiveView(Protocol):
    """Where the console lists the requests under way."""

    def begin(self, record: RequestRecord, request: HttpRequest, sink: ReplySink) -> None: ...
    def end(self, record: RequestRecord) -> None: ...


def observe(gateway: Gateway, call: Call, sink: ReplySink, live: LiveView | None) -> "Observation":
    """Return a context in which a call is recorded; its end makes the outcome, which observers get."""
    return Observation(gateway, call, sink, gateway.observers, live)


def observe_without_row(gateway: Gateway, call: Call, sink: ReplySink) -> "Observation":
    """Return a context in which a call is captured like any other, and not reported: it uses no tokens."""
    return Observation(gateway, call, sink, None, None)


class Observation(Struct, eq=False):
    """A context manager and not a coroutine around another: every await passes through all coroutines around it."""

    _gateway: Gateway
    _call: Call
    _sink: ReplySink
    _observers: ObserverQueue | None  # None: its outcome is not observed
    _live: LiveView | None

    def __enter__(self) -> None:
        gateway, call, record, sink = self._gateway, self._call, self._call.record, self._sink
        if call.policy.capture != "off":
            debug = gateway.runtime.config.debug
            if call.policy.capture == "errors" and debug.capture == "all":  # no more than its key allows
                debug = replace(debug, capture="errors")
            record.recording = gateway.captures.begin(call.http, sink, record.started_at, debug)
        if self._observers is not None:
            gateway.running[record] = call.caller.key, sink.task  # of a sink without one it is that of this moment
        if self._live is not None:
            self._live.begin(record, call.http, sink)

    def __exit__(self, _: object, fault: BaseException | None, trace: object) -> bool:
        record = self._call.record
        cause = None if fault is None else find_cause(fault, self._sink)
        recording = record.recording
        self._gateway.running.pop(record, None)
        if self._live is not None:
            self._live.end(record)
        if cause is not None:
            cause = self._record_fault(cause)
        if recording is not None and isinstance(cause, asyncio.CancelledError | ClientDisconnected):
            recording.record_interruption(self._sink.reader_gone)
        if self._observers is None:
            record.end()
        else:
            if record.lease is not None:
                settle(self._gateway.runtime.prices, self._gateway.charges, record, record.lease)
            self._observers.add(record)
        if recording is not None:
            recording.record_outcome(record.outcome(), record.ledger)
        if cause is not None and cause is not fault:
            try:
                raise cause from None
            finally:
                del cause, fault  # its traceback refers to this frame: a cycle would keep the request's body
        return cause is None

    def _record_fault(self, fault: BaseException) -> BaseException:
        """Return what to raise instead: a failure that the observers have is not logged again."""
        record = self._call.record
        if isinstance(fault, asyncio.CancelledError) and not self._sink.reader_gone:
            record.record_shutdown()
            return fault
        record.record_fault(fault)
        return fault.as_observed() if self._observers is not None and isinstance(fault, RequestError) else fault
