"""Restore what a call refers to in the server's state, and end its use of it however the call ends."""

import asyncio
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from dragoman.net.body_threads import run_off_loop
from dragoman.net.errors import ClientDisconnected
from dragoman.net.sink import ReplySink, SinkPhase
from dragoman.net.tasks import spawn
from dragoman.proxy.call import Call, Compacts
from dragoman.proxy.capture.format import NO_PROVIDER
from dragoman.state.service import ResponseService, check_trigger
from dragoman.state.stored_call import StoredCall, restore_call
from dragoman.translate.framing.fields import read_body
from dragoman.translate.hub.failure import RequestError
from dragoman.translate.protocols.responses.wire import NAME

if TYPE_CHECKING:  # few requests are captured
    from dragoman.proxy.capture.lookups import Lookups


class StateSource(Protocol):
    """Where the state of calls comes from."""

    def concerns(self, call: Call) -> bool:
        """Return whether a call may refer to this state."""

    async def open(self, call: Call) -> StoredCall | None:
        """Return the state of a call, whose bytes count from now on; None if it has none. Raises RequestError."""

    def close(self, call: Call, state: StoredCall, *, is_answered: bool) -> None:
        """Note that a call has ended, perhaps with a reply."""


def restore_state(
    source: StateSource | None, call: Call, sink: ReplySink
) -> AbstractAsyncContextManager[StoredCall | None]:
    """Return a context with the state of a call; None where it has none, or where nothing is kept at all."""
    return _NO_STATE if source is None or not source.concerns(call) else RestoredState(source, call, sink)


class _NoState:
    async def __aenter__(self) -> None:
        return

    async def __aexit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        return


_NO_STATE = _NoState()


class RestoredState:
    """Where a call with state is answered: however it ends, its conversation is released.

    A reply that is cancelled, or whose client leaves, is stored as cancelled if its client may know its id.
    """

    __slots__ = ("_call", "_sink", "_source", "_state")

    def __init__(self, source: StateSource, call: Call, sink: ReplySink) -> None:
        self._source = source
        self._call = call
        self._sink = sink
        self._state: StoredCall | None = None

    async def __aenter__(self) -> StoredCall | None:
        call = self._call
        self._state = state = await self._source.open(call)
        if state is not None:
            if call.compacts is None and check_trigger(state.raw):
                call.compacts = Compacts.BY_TRIGGER
            if call.compacts is None:
                call.state = state
        return state

    async def __aexit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        state = self._state
        if state is None:
            return
        if isinstance(fault, asyncio.CancelledError | ClientDisconnected):  # nothing can be awaited here
            spawn(state.cancel(has_begun=self._sink.phase >= SinkPhase.SENT), name="cancelled response")
        else:
            await state.release()
        self._source.close(self._call, state, is_answered=fault is None)


class StoredState:
    """The state that the store has: stored responses and conversations."""

    def __init__(self, service: ResponseService, *, keeps: bool = True) -> None:
        self._service = service
        self._keeps = keeps  # replies, if their requests say so

    def concerns(self, call: Call) -> bool:
        return call.protocol.name == NAME and (call.compacts is not None or self._service.uses_state(call.body))

    async def open(self, call: Call) -> StoredCall:
        raw = await run_off_loop(len(call.body), partial(read_body, call.body))
        if call.compacts is not None or not self._keeps:
            raw["store"] = False
        try:
            state = await self._service.open_call(call.tenant, raw, len(call.body))
        except RequestError as refused:
            _record_refusal(call, refused)
            raise
        try:
            call.hold_context(state.context.stored_bytes)
        except RequestError:
            await state.release()
            raise
        return state

    def close(self, call: Call, state: StoredCall, *, is_answered: bool) -> None:
        if is_answered:
            self._service.record_end(state)
        if is_answered and call.record.recording is not None and state.committed is False:
            from dragoman.proxy.capture.lookups import NOT_STORED, RecordingLookups

            RecordingLookups(call.record.recording).note(NO_PROVIDER, NOT_STORED, True)


class ReplayedState:
    """The state that was recorded with a captured request."""

    def __init__(self, lookups: "Lookups") -> None:
        self._lookups = lookups

    def concerns(self, call: Call) -> bool:
        return call.protocol.name == NAME

    async def open(self, call: Call) -> StoredCall | None:
        from dragoman.proxy.capture.lookups import NOT_STORED, STATE

        recorded = self._lookups.wrap(NO_PROVIDER, STATE, lambda: None)()
        if recorded is None:
            return None
        state = restore_call(recorded, call.body)
        if self._lookups.wrap(NO_PROVIDER, NOT_STORED, lambda: False)():
            state.committed = False
        return state

    def close(self, call: Call, state: StoredCall, *, is_answered: bool) -> None:
        return


def record_state(call: Call, state: StoredCall) -> None:
    """Note in the capture of a call what it refers to, where the gateway does not see it."""
    if call.record.recording is not None:
        from dragoman.proxy.capture.lookups import RecordingLookups

        RecordingLookups(call.record.recording).record_state(state)


def _record_refusal(call: Call, refused: RequestError) -> None:
    if call.record.recording is not None:
        from dragoman.proxy.capture.lookups import STATE, RecordingLookups

        RecordingLookups(call.record.recording).record_refusal(NO_PROVIDER, STATE, refused.failure)
