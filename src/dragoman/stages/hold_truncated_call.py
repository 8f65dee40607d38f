"""Hold the end of a reply with a truncated tool call, until the gateway has tried to complete the call."""

from collections.abc import Sequence

from dragoman.hub.events import Delta, Ended, Event, Opened, TextBlock
from dragoman.hub.ports import RunStage


class HoldTruncatedCall(RunStage):
    """Passes all events but such an end, and keeps the text of the reply for the request that completes the call."""

    __slots__ = ("_pieces", "_texts", "held", "next_block")

    def __init__(self) -> None:
        self.held: Ended | None = None
        self.next_block = 0
        self._texts: set[int] = set()
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Delta:
            if event.block in self._texts:
                self._pieces.append(event.text)
            return (event,)
        match event:
            case Opened(block=block, what=what):
                self.next_block = max(self.next_block, block + 1)
                if isinstance(what, TextBlock):
                    self._texts.add(block)
            case Ended(cut=cut) if cut and self.held is None:
                self.held = event
                return ()
            case _:
                pass
        return (event,)

    def feed_run(self, run: Sequence[Delta], text: str) -> Sequence[Event]:
        if run[0].block in self._texts:
            self._pieces.append(text)
        return run

    def finish(self) -> Sequence[Event]:
        return ()
