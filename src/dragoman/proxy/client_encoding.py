"""The stages and the encoder of one client's reply, kept over all its upstream turns."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from dragoman.proxy.continue_elsewhere import Continuation
from dragoman.proxy.reply_monitor import ReplyMonitor
from dragoman.translate.hub.events import Event, Failed
from dragoman.translate.hub.failure import Failure
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Stage, feed_each
from dragoman.translate.hub.usage import Usage
from dragoman.translate.stages.check_calls import CheckCalls
from dragoman.translate.stages.cite_links import CiteLinks, Sources
from dragoman.translate.stages.guard import Guard, SerialiseBlocks
from dragoman.translate.stages.join_replies import JoinReplies, JoinRounds


class LastWrites(Struct, frozen=True):
    """The end of a stream."""

    joined: bytes = b""  # to what was written before
    apart: bytes = b""  # in a write of its own, after a pause: some clients look at each read by itself


NOTHING = LastWrites()
MakeEncoder = Callable[[Ledger], Stage[Event, bytes]]


class ReplyShape(Struct, frozen=True):
    """What the events of a client's reply must be like."""

    serial: bool = False  # its blocks may not interleave
    joins: bool = False  # the replies of several turns may become one
    cites_apart: bool = False  # a cited link is a block of its own
    any_arguments: bool = False  # the arguments of calls need not be valid JSON


class ClientEncoding:
    """Turns events into the client's bytes."""

    def __init__(self, make_encoder: MakeEncoder, on_guard_trip: Callable[[str], None], shape: ReplyShape) -> None:
        self._make_encoder = make_encoder
        self._on_guard_trip = on_guard_trip
        self._shape = shape
        self._joint = JoinReplies() if shape.joins else None
        self._rounds: JoinRounds | None = None  # where the gateway runs tools
        self.sources = Sources()  # what those tools have shown the model
        self._watch = _CurrentWatch()  # of the turn that is read now
        self.stages: Sequence[Stage[Event, Event]] = ()
        self._encoder: Stage[Event, bytes] | None = None

    @property
    def encoder(self) -> Stage[Event, bytes]:
        """Return the encoder of a reply that has begun."""
        assert self._encoder is not None
        return self._encoder

    @property
    def used_before(self) -> Usage | None:
        """Return what earlier turns have used whose reply is continued."""
        joining = self._rounds or self._joint
        return None if joining is None else joining.used_before

    @property
    def text_to_continue(self) -> str | None:
        """Return the text so far of a reply that another upstream could continue; None if none could."""
        return None if self._joint is None or not self._joint.can_be_continued else self._joint.text

    def begin_turn(
        self, ledger: Ledger, continuation: Continuation | None, watch: ReplyMonitor, *, has_rounds: bool = False
    ) -> None:
        """Prepare for the events of a turn; what one that failed before its first token has given is forgotten.

        `has_rounds`: the same reply may go on in another turn, after tools have run.
        """
        self._watch.watch = watch
        if continuation is None:
            self._encoder = self._make_encoder(ledger)
            self.stages = self._make_round_stages() if has_rounds else self._make_stages()
        else:
            assert self._joint is not None
            self._joint.begin_continuation(continuation.marker)

    def interrupt(self, used: Usage) -> None:
        """Note what a turn has used that broke off."""
        if self._joint is not None:
            self._joint.interrupt(used)

    def accept_continuation(self, ledger: Ledger) -> None:
        """Note that another upstream does continue; what is left out of its reply is noted in its ledger."""
        if self._joint is not None:
            self._joint.accept_continuation(ledger)

    def fail(self, failure: Failure) -> LastWrites:
        """Return the end of the reply as the client's error event."""
        begun, end = self.feed([Failed(failure)]), self.finish()
        return LastWrites(begun + end.joined, end.apart)

    def fail_alone(self, failure: Failure) -> LastWrites:
        """Return a stream of the error event alone; raises RequestError if the request cannot be parsed."""
        encoder = self._make_encoder(Ledger())
        return LastWrites(b"".join(encoder.feed(Failed(failure))), b"".join(encoder.finish()))

    def finish(self) -> LastWrites:
        """Return what the stages and the encoder still hold."""
        assert self._encoder is not None
        events: list[Event] = []
        for stage in self.stages:
            if events:
                events = feed_each(stage.feed, events)
            events += stage.finish()
        return LastWrites(self.encode(events) if events else b"", b"".join(self._encoder.finish()))

    def feed(self, events: list[Event]) -> bytes:
        """Return the bytes of events that are the gateway's own."""
        for stage in self.stages:
            events = feed_each(stage.feed, events)
        return self.encode(events)

    def encode(self, events: Sequence[Event]) -> bytes:
        """Return the bytes of events that have passed the stages; those of a whole body are only collected."""
        encoder = self.encoder
        if type(encoder) is EventCollector:
            encoder.events += events
            return b""
        return b"".join(feed_each(encoder.feed, events))

    def begin_round(self, watch: ReplyMonitor) -> None:
        """Prepare for another turn that continues the same reply, after tools have run."""
        self._watch.watch = watch
        assert self._rounds is not None
        self._rounds.begin_round()

    def expect_rounds(self, blocks: int, used: Usage) -> None:
        """Prepare for another turn of a reply that was not expected to have one and has `blocks` blocks."""
        if self._rounds is None:
            self._joint, self._rounds = None, JoinRounds.after(blocks, used)
            self.stages = (self._rounds, *self.stages)

    def _make_round_stages(self) -> Sequence[Stage[Event, Event]]:
        self._joint, self._rounds = None, JoinRounds()  # a reply with rounds is not continued elsewhere
        return (self._rounds, CiteLinks(self.sources, apart=self._shape.cites_apart), *self._make_stages())

    def _make_stages(self) -> Sequence[Stage[Event, Event]]:
        serialise = (SerialiseBlocks(),) if self._shape.serial else ()
        checks = (
            CheckCalls(any_arguments=self._shape.any_arguments),
            *serialise,
            Guard(self._on_guard_trip, self._watch.fail),
        )
        if self._joint is None:
            return checks
        self._joint = JoinReplies()
        return (self._joint, *checks)


class _CurrentWatch:
    """The monitor that failures are reported to. The stages refer to this, not to the encoding, to avoid a cycle."""

    __slots__ = ("watch",)

    def __init__(self) -> None:
        self.watch: ReplyMonitor | None = None

    def fail(self, failure: Failure) -> None:
        if self.watch is not None:
            self.watch.fail(failure)


class EventCollector:
    """Keeps the events of a reply that is sent as one body."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def feed(self, event: Event) -> Sequence[bytes]:
        self.events.append(event)
        return ()

    def finish(self) -> Sequence[bytes]:
        return ()
