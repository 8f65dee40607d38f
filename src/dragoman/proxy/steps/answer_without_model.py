"""Answer a request with `generate: false`: its response has no output, and can be continued."""

from typing import Protocol

from dragoman.net.sink import ReplySink
from dragoman.proxy.call import Call
from dragoman.proxy.reply_bounds import charge_bytes, no_room_failure
from dragoman.proxy.steps.restore_state import StateSource
from dragoman.state.stored_call import StoredCall
from dragoman.translate.hub.failure import RequestError
from dragoman.translate.hub.usage import Usage


class LaneSource(StateSource, Protocol):
    """The store, and what a connection remembers of its lanes."""

    def remembers(self, state: StoredCall) -> bool:
        """Return whether the next request of the connection can continue this response."""


async def answer_without_model(source: LaneSource, call: Call, state: StoredCall, sink: ReplySink) -> None:
    """Store a response without output, and send its events. Raises RequestError if there is no room for it."""
    events = state.make_events((), Usage(), done=False)
    if not state.keeps and not source.remembers(state):
        raise RequestError(no_room_failure())  # it could not be continued, and has no other use
    if not await state.commit():
        events = state.mark_unstored(events)
    charge_bytes(call.buffered, len(events))  # until the client has read them
    sink.begin(200, ())
    sink.end(events)
