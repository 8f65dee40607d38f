"""A reply comes in; if it ends with a cut tool call, its end is held until somebody has tried to mend the call."""

from collections.abc import Sequence

from dragoman.hub.events import Delta, Ended, Event, Opened, TextBlock


class HoldTruncatedCall:
    """Remembers what was said, for whoever asks the upstream to go on from there."""

    __slots__ = ("_said", "_texts", "held", "next_block")

    def __init__(self) -> None:
        self.held: Ended | None = None
        self.next_block = 0
        self._texts: set[int] = set()
        self._said: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._said)

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Delta:
            if event.block in self._texts:
                self._said.append(event.text)
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

    def finish(self) -> Sequence[Event]:
        return ()
