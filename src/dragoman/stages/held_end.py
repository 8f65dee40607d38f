"""The end of a tool call that is not whole, held until it is known whether a limit or a filter cut it."""

from collections.abc import Sequence

from dragoman.hub.events import Closed, Ended, Event, Failed, Stop, UsageReported
from dragoman.hub.failure import Failure, Kind

CUTS = (Stop.LENGTH, Stop.CONTEXT_FULL, Stop.FILTERED)


class PendingCallEnd:
    """Takes the events that follow a broken call: other ends may, and a cut excuses it; anything else does not."""

    __slots__ = ("_held", "_tool", "_what", "released")

    def __init__(self, tool: str, closed: Closed, what: str) -> None:
        """`what` says what is wrong with the call, after the words "the model called TOOL with"."""
        self._tool = tool
        self._what = what
        self._held: list[Event] = [closed]
        self.released = False  # the reply was cut: all that was held has gone out

    def feed(self, event: Event) -> Sequence[Event]:
        match event:
            case Closed() | UsageReported():
                self._held.append(event)
                return ()
            case Ended(stop=stop) if stop in CUTS:
                self.released = True
                return (*self._held, event)
            case Failed():
                return (event,)
            case _:
                return (Failed(Failure(Kind.CORRUPT, f"the model called {self._tool!r} with {self._what}")),)
