"""Hold the end of a reply that its vendor has paused, so that the gateway can request the rest."""

from collections.abc import Sequence

from dragoman.hub.events import Delta, Ended, Event, Stop
from dragoman.hub.ports import RunStage


class HoldPause:
    """Passes a reply on, without its end if that is a pause, and keeps the events for the request that continues it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.end: Ended | None = None

    def feed(self, event: Event) -> Sequence[Event]:
        self.events.append(event)
        if isinstance(event, Ended) and event.stop is Stop.PAUSE:
            self.end = event
            return ()
        return (event,)

    def finish(self) -> Sequence[Event]:
        return ()


class HoldContinuation(RunStage):
    """Passes a reply on, without its end if a token continues the same request."""

    __slots__ = ("end",)

    def __init__(self) -> None:
        self.end: Ended | None = None

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Ended and event.continuation is not None:
            self.end = event
            return ()
        return (event,)

    def feed_run(self, run: Sequence[Delta], text: str) -> Sequence[Event]:
        return run

    def finish(self) -> Sequence[Event]:
        return ()
