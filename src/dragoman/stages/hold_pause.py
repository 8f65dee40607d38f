"""Hold the end of a reply that its vendor has paused, so that the gateway can request the rest."""

from collections.abc import Sequence

from dragoman.hub.events import Ended, Event, Stop


class HoldPause:
    """Passes a reply on, without its end if that is a pause, and keeps the events for the request that goes on."""

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
