"""The way from an upstream's bytes to the client's: translated, or passed through and only watched."""

import logging
from collections.abc import Sequence
from typing import Protocol

from dragoman.flow.discretion import EventRedactor, hushed
from dragoman.flow.sink import Sink
from dragoman.framing.known_secrets import Secrets, Veil
from dragoman.hub.events import Delta, Event, Failed
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.limits import MAX_BLOCKS
from dragoman.hub.ports import Client
from dragoman.hub.stage import Stage
from dragoman.hub.usage import Source as UsageSource
from dragoman.hub.usage import Usage
from dragoman.net.tasks import place_of
from dragoman.observers.watch import Watch
from dragoman.stages.estimate_usage import EstimateUsage
from dragoman.stages.hold_cut import HoldCut

log = logging.getLogger(__name__)

TAIL = 32  # of what has passed: more than an ending is long
APART = (b"\n\n", b"\r\r", b"\r\n\r\n")
UNSEEN = Failure(Kind.TRUNCATED, "the upstream's stream ended without its terminal event")


class Line(Protocol):
    """`drain` when the upstream has ended, then `close`; or `fail`, which closes too."""

    watch: Watch

    @property
    def usage(self) -> Usage | None: ...
    @property
    def sink(self) -> Sink | None: ...
    @property
    def at_work(self) -> bool: ...  # of an upstream that has nothing to show yet
    @property
    def has_stopped(self) -> bool: ...  # the model, whether or not its stream has ended
    @property
    def is_whole(self) -> bool: ...  # the reply, even if its stream does not end any more
    def feed(self, chunk: bytes) -> bytes: ...
    def drain(self) -> bytes: ...
    def close(self) -> bytes: ...
    def fail(self, failure: Failure) -> bytes: ...


class Source:
    """Bytes to events: a framer and the decoder that reads its frames."""

    __slots__ = ("_decoder", "_framer", "frames")

    def __init__(self, framer: Stage[bytes, object], decoder: Stage[object, Event]) -> None:
        self._framer = framer
        self._decoder = decoder
        self.frames = 0

    @property
    def at_work(self) -> bool:
        return bool(getattr(self._decoder, "at_work", False))  # few protocols tell

    @property
    def has_stopped(self) -> bool:
        return bool(getattr(self._decoder, "has_stopped", False))  # few protocols tell before the end

    @property
    def is_whole(self) -> bool:
        return bool(getattr(self._decoder, "is_whole", False))  # most want their terminal event

    def feed(self, chunk: bytes) -> list[Event]:
        events: list[Event] = []
        decode = self._decoder.feed
        frames = self._framer.feed(chunk)
        self.frames += len(frames)
        for frame in frames:
            events += decode(frame)
        return events

    def finish(self) -> list[Event]:
        events = [event for frame in self._framer.finish() for event in self._decoder.feed(frame)]
        events += self._decoder.finish()
        return events


class Translation:
    """Another protocol's bytes: decoded, put through the stages, and encoded anew."""

    __slots__ = ("_encoder", "_estimate", "_feeds", "_redactor", "_source", "_stages", "hold", "watch")

    def __init__(
        self,
        source: Source,
        hold: HoldCut | None,  # where an upstream may withhold calls that were cut
        stages: Sequence[Stage[Event, Event]],
        encoder: Stage[Event, bytes],
        watch: Watch,
        secrets: Secrets = (),
    ) -> None:
        self._redactor = EventRedactor(secrets) if secrets else None
        self._source = source
        self.hold = hold
        self._stages: tuple[Stage[Event, Event], ...] = tuple(stages) if hold is None else (hold, *stages)
        self._feeds = tuple(stage.feed for stage in self._stages)
        self._estimate = next((stage for stage in stages if isinstance(stage, EstimateUsage)), None)
        self._encoder = encoder
        self.watch = watch

    @property
    def sink(self) -> Sink | None:
        """Where another upstream's reply may go on."""
        return self._encoder if isinstance(self._encoder, Sink) else None

    @property
    def at_work(self) -> bool:
        return self._source.at_work

    @property
    def has_stopped(self) -> bool:
        return self._source.has_stopped

    @property
    def is_whole(self) -> bool:
        return self._source.is_whole

    @property
    def usage(self) -> Usage | None:
        """With what those upstreams have used that broke off before this one."""
        told, sink = None if self._estimate is None else self._estimate.usage, self.sink
        if sink is None or sink.spent is None:
            return told
        return sink.spent + (told or self.used_so_far())

    def used_so_far(self) -> Usage:
        """By this upstream alone, as far as it has come."""
        return Usage(source=UsageSource.ESTIMATED) if self._estimate is None else self._estimate.so_far()

    def feed(self, chunk: bytes) -> bytes:
        events: Sequence[Event] = self._source.feed(chunk)
        if self._redactor is not None:
            events = self._redactor.feed(events)
        if len(events) == 1 and type(events[0]) is Delta:
            return self._say(events[0])
        return self._watched(events)

    def push(self, events: Sequence[Event]) -> bytes:
        return self._watched(events if self._redactor is None else self._redactor.feed(events))

    def _watched(self, events: Sequence[Event]) -> bytes:
        see = self.watch.see
        for event in events:
            see(event)
        return self._encoded(events, 0)

    def _say(self, event: Event) -> bytes:
        """What nearly every read of a paced stream brings: one delta, of which each stage makes one."""
        self.watch.see(event)
        for number, feed in enumerate(self._feeds):
            told = feed(event)
            if len(told) != 1:
                return self._encoded(told, number + 1)
            event = told[0]
        return b"".join(self._encoder.feed(event))

    def _encoded(self, events: Sequence[Event], first: int) -> bytes:
        for feed in self._feeds[first:]:
            events = [out for event in events for out in feed(event)]
        encode = self._encoder.feed
        return b"".join([piece for event in events for piece in encode(event)])

    def drain(self) -> bytes:
        return self.push(self._source.finish())

    def fail(self, failure: Failure) -> bytes:
        return self.push([Failed(failure)]) + self.close()

    def close(self) -> bytes:
        """Ends every stage in order, each seeing what those before it still had to say."""
        events: list[Event] = []
        for stage in self._stages:
            events = [out for event in events for out in stage.feed(event)]
            events += stage.finish()
        pieces = [piece for event in events for piece in self._encoder.feed(event)]
        return b"".join([*pieces, *self._encoder.finish()])


class Tap:
    """The same protocol's bytes, unaltered; if they end without their terminal event, its error event is appended."""

    __slots__ = ("_client", "_ended_unseen", "_secrets", "_source", "_tail", "_unwatched", "_veil", "watch")

    def __init__(self, source: Source, client: Client, watch: Watch, secrets: Secrets = ()) -> None:
        self._secrets = secrets
        self._veil = Veil(secrets)
        self._source = source
        self._client = client
        self._tail = b""
        self._unwatched = False
        self._ended_unseen = False
        self.watch = watch

    @property
    def usage(self) -> Usage | None:
        return self.watch.counts

    @property
    def sink(self) -> Sink | None:
        return None

    @property
    def at_work(self) -> bool:
        return self._source.at_work

    @property
    def has_stopped(self) -> bool:
        return self._source.has_stopped

    @property
    def is_whole(self) -> bool:
        return self._source.is_whole

    def feed(self, chunk: bytes) -> bytes:
        self._see(chunk)
        if self._unwatched and not self._ended_unseen:
            self._ended_unseen = any(ending in self._tail[-TAIL:] + chunk for ending in self._client.endings)
        self._tail = chunk if len(chunk) >= TAIL else (self._tail + chunk)[-TAIL:]
        return self._veil.feed(chunk)

    def drain(self) -> bytes:
        told = self.watch.failure is not None  # the upstream's own error event has already passed
        self._see(None)
        failure = UNSEEN if self._unwatched else self.watch.failure
        return b"" if told or failure is None else self.fail(failure)

    def close(self) -> bytes:
        return self._veil.finish()

    def fail(self, failure: Failure) -> bytes:
        """The error frames, set apart from an event that was cut in the middle."""
        if self._ended_unseen:
            return self.close()
        self.watch.see(Failed(failure))
        apart = b"" if not self._tail or self._tail.endswith(APART) else b"\n\n"
        return self.close() + apart + self._client.repair(failure, self.watch.started, self._source.frames)

    def _see(self, chunk: bytes | None) -> None:
        """A watcher's bug costs no byte: it is logged, and the stream goes on unwatched."""
        if self._unwatched:
            return
        try:
            for event in self._source.finish() if chunk is None else self._source.feed(chunk):
                if isinstance(event, Failed):
                    if chunk is not None and self.watch.substance and event.failure.kind is Kind.CORRUPT:
                        self._unwatched = True  # what we cannot read, the client perhaps can
                        return
                    event = Failed(hushed(event.failure, self._secrets))
                self.watch.see(event)
            if self.watch.blocks > MAX_BLOCKS:
                self._unwatched = True  # a reply without bounds must not fill the memory of its watcher
        except Exception as bug:
            log.error("the stream goes on unwatched: %s", place_of(bug))
            self._unwatched = True
