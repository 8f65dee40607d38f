"""Read the bytes of an upstream as events."""

from dragoman.translate.hub.events import Event
from dragoman.translate.hub.ports import Decoder, Stage


class EventSource:
    """Bytes to events: a framer and the decoder that reads its frames."""

    __slots__ = ("decoder", "framer", "frames")

    def __init__(self, framer: Stage[bytes, object], decoder: Decoder) -> None:
        self.framer = framer
        self.decoder = decoder
        self.frames = 0

    def feed(self, chunk: bytes) -> list[Event]:
        events: list[Event] = []
        decode = self.decoder.feed
        frames = self.framer.feed(chunk)
        self.frames += len(frames)
        for frame in frames:
            events += decode(frame)
        return events

    def finish(self) -> list[Event]:
        events = [event for frame in self.framer.finish() for event in self.decoder.feed(frame)]
        events += self.decoder.finish()
        return events
