"""Convert an upstream's bytes to the client's: translated, or unchanged and only observed."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from operator import is_
from typing import Protocol, TypeVar

from msgspec import Struct

from dragoman.flow.redaction import EventRedactor, redact_failure
from dragoman.framing.known_secrets import Secrets, StreamRedactor
from dragoman.hub.events import MAX_BLOCKS, CallBlock, Delta, Event, Failed, Opened
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.ports import (
    EVENT_STREAM,
    Client,
    Decoder,
    Item,
    Progress,
    RunStage,
    Stage,
    flatten_runs,
    join_run,
    split_runs,
)
from dragoman.hub.usage import Source as UsageSource
from dragoman.hub.usage import Usage
from dragoman.net.tasks import describe_fault
from dragoman.observers.reply_monitor import ReplyMonitor
from dragoman.stages.check_calls import CutCallMonitor
from dragoman.stages.estimate_usage import EstimateUsage

log = logging.getLogger(__name__)

S = TypeVar("S")
E = TypeVar("E", Event, Item)
Feed = Callable[[Event], Sequence[Event]]
FeedRun = Callable[[Sequence[Delta], str], Sequence[Event]]

MANY_EVENTS = 16  # from here on, gathering runs costs less than feeding event by event
TAIL = 32  # bytes of what has passed: more than an ending is long
EVENT_ENDS = (b"\n\n", b"\r\r", b"\r\n\r\n")
TRUNCATED = Failure(Kind.TRUNCATED, "the upstream's stream ended without its terminal event")


class Source:
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


class Pipe(Protocol):
    """Turns one upstream turn's bytes into the client's; each call returns the bytes to write."""

    watch: ReplyMonitor
    last_write: bytes  # what follows everything else, in a write of its own

    @property
    def decoder(self) -> Decoder: ...
    @property
    def has_begun(self) -> bool: ...  # whether the client would see anything of the reply
    @property
    def usage(self) -> Usage | None: ...
    def feed(self, chunk: bytes) -> bytes: ...
    def drain(self) -> bytes: ...  # once, when the upstream's body has ended
    def break_off(self, failure: Failure) -> bytes: ...  # instead of `drain`, when it will not end
    def finish(self) -> bytes: ...  # once, last
    def tap(self, wrap: Callable[[Source], Source]) -> Secrets: ...


class UnchangedDocument(Struct, frozen=True):
    """What is known of a document that passes as it came."""

    watch: ReplyMonitor
    usage: Usage | None


class ClientStages(Protocol):
    """The part of a translation that belongs to the client and outlives the turn."""

    @property
    def stages(self) -> Sequence[Stage[Event, Event]]: ...
    @property
    def encode(self) -> Callable[[Event], Sequence[bytes]]: ...


class TranslationPipe:
    """Decodes, puts events through the stages of the upstream and then of the client, and encodes them.

    A failure that the upstream's stages give is kept in `failure` and does not reach the client's stages: whoever runs
    the turn decides whether another upstream continues or the client gets the failure.
    """

    __slots__ = (
        *("_block", "_block_feeds", "_encode", "_estimate", "_feeds", "_own", "_redactor", "_run_feeds"),
        *("_source", "_stages", "failure", "last_write", "used_before", "watch"),
    )

    def __init__(
        self,
        source: Source | None,  # None: the events of a document are pushed
        stages: Sequence[Stage[Event, Event]],
        client: ClientStages,
        watch: ReplyMonitor,
        secrets: Secrets = (),
    ) -> None:
        self._source = source
        self._redactor = EventRedactor(secrets) if secrets else None
        self._own = tuple(stages)
        self.used_before: Usage | None = None  # by earlier turns of the same reply, from its first token on
        self._stages = (*self._own, *client.stages)
        self._feeds = [stage.feed for stage in self._stages]
        self._run_feeds: list[FeedRun] = []  # made when they are first used: a short reply has no runs
        self._block: int | None = None  # whose deltas `_block_feeds` take, until another event comes
        self._block_feeds: list[tuple[int, FeedRun]] = []  # with the numbers of the stages that follow
        self._encode = client.encode
        self._estimate = self.find_stage(EstimateUsage)
        self.failure: Failure | None = None
        self.last_write = b""  # the encoder's, which outlives this
        self.watch = watch

    @property
    def decoder(self) -> Decoder:
        assert self._source is not None
        return self._source.decoder

    @property
    def has_begun(self) -> bool:
        return self.watch.has_content

    def find_stage(self, kind: type[S]) -> S | None:
        """Return the upstream's stage of this kind, if there is one."""
        for stage in self._own:
            if isinstance(stage, kind):
                return stage
        return None

    @property
    def has_stopped(self) -> bool:
        """Whether the model has said that its reply is complete, though the upstream's body may not be."""
        return self._source is not None and self._source.decoder.progress.has_stopped

    @property
    def usage(self) -> Usage | None:
        """Return the usage that the client gets: with that of earlier turns of the same reply."""
        known, before = None if self._estimate is None else self._estimate.usage, self.used_before
        return known if before is None else before + (known or self.used_so_far())

    def used_so_far(self) -> Usage:
        """Return what this turn alone has used, as far as it has come."""
        return Usage(source=UsageSource.ESTIMATED) if self._estimate is None else self._estimate.usage_so_far()

    def settle_usage(self, withheld: str) -> None:
        """Settle what this turn has used, with text that was withheld from the client."""
        assert self._estimate is not None
        self._estimate.settle(withheld)

    def add_usage(self, used: Usage) -> None:
        """Add what another request for the same reply has used, once that of this turn is settled."""
        assert self._estimate is not None
        self._estimate.add(used)

    def tap(self, wrap: Callable[[Source], Source]) -> Secrets:
        """Read through another source from now on; return the secrets that may stand in what it reads."""
        self._source = None if self._source is None else wrap(self._source)
        return () if self._redactor is None else self._redactor.secrets

    def feed(self, chunk: bytes) -> bytes:
        assert self._source is not None
        self.watch.count_read(len(chunk))
        events = self._source.feed(chunk)
        if len(events) == 1 and type(delta := events[0]) is Delta and self.failure is None:  # as from most reads
            run, text, redactor = [delta], delta.text, self._redactor
            clean = run if redactor is None else redactor.feed_run(run, text)
            return b"".join(self._process_run(run, text) if clean is run else self._process_each(clean))
        return self.push(events)

    def push_document(self, events: Sequence[Event], *, are_clean: bool) -> bytes:
        """Feed all events of a document, stage by stage; `are_clean`: no secret stands in what they were read from."""
        if self._redactor is not None and not are_clean:
            events = [clean for event in events for clean in self._redactor.feed(event)]
        for event in events:
            self.watch.observe(event)
        return self._encode_from(events, 0)

    def drain(self) -> bytes:
        assert self._source is not None
        return self.push(self._source.finish())

    def break_off(self, failure: Failure) -> bytes:
        return self.push([Failed(failure)])

    def finish(self) -> bytes:
        """End the upstream's stages, each after it was fed the last events of those before it."""
        events: list[Event] = []
        for stage in self._own:
            if events:
                events = list(chain.from_iterable(map(stage.feed, events)))
            events += stage.finish()
        return self._encode_from(events, len(self._own)) if events else b""

    def push(self, events: Sequence[Event]) -> bytes:
        """Put events through redaction, the watch and all stages; nearly all of them are runs of deltas."""
        redactor = self._redactor
        pieces: list[bytes] = []
        for item in split_runs(events):
            if self.failure is not None:
                break
            if isinstance(item, list):
                text = join_run(item)
                clean = item if redactor is None else redactor.feed_run(item, text)
                if clean is item:
                    pieces += self._process_run(item, text)
                    continue
            else:
                clean = (item,) if redactor is None else redactor.feed(item)
            pieces += self._process_each(clean)
        return b"".join(pieces)

    def _process_each(self, events: Sequence[Event]) -> Sequence[bytes]:
        pieces: list[bytes] = []
        for event in events:
            self.watch.observe(event)
            pieces.append(self._process_event(event))
        return pieces

    def _process_run(self, run: Sequence[Delta], text: str) -> Sequence[bytes]:
        """Put a run of deltas through the stages, which seldom change it."""
        self.watch.observe_run(run, text)
        if run[0].block != self._block:
            self._choose_stages(run[0].block)
        for following, feed_run in self._block_feeds:
            given = feed_run(run, text)
            if given is not run:
                return (self._encode_from(given, following),)
        return self._encode(run[0]) if len(run) == 1 else list(chain.from_iterable(map(self._encode, run)))

    def _choose_stages(self, block: int) -> None:
        """Note the stages that must see the deltas of this block."""
        self._block = block
        self._block_feeds = [
            (number + 1, feed_run)
            for number, feed_run in enumerate(self._run_feeds or self._make_run_feeds())
            if not (isinstance(stage := self._stages[number], RunStage) and stage.passes(block))
        ]

    def _process_event(self, event: Event) -> bytes:
        """Put one event through the stages, most of which return just one."""
        self._block = None
        for number, feed in enumerate(self._feeds):
            if type(event) is Failed and number == len(self._own):
                return self._encode_from((event,), number)
            given = feed(event)
            if len(given) != 1:
                return self._encode_from(given, number + 1)
            event = given[0]
        return b"".join(self._encode(event))

    def _encode_from(self, events: Sequence[Event], first: int) -> bytes:
        """Put events through the stages from the one with this number on."""
        self._block = None
        own = len(self._own)
        if len(events) >= MANY_EVENTS:
            events = flatten_runs(self._feed_items(split_runs(events), first, own))
        else:
            for feed in self._feeds[first:own]:
                events = list(chain.from_iterable(map(feed, events)))
            if first <= own and Failed in map(type, events):
                events = self._without_failure(events)
            for feed in self._feeds[max(first, own) :]:
                events = list(chain.from_iterable(map(feed, events)))
        return b"".join(chain.from_iterable(map(self._encode, events)))

    def _feed_items(self, items: Sequence[Item], first: int, own: int) -> Sequence[Item]:
        """Put events and runs through the stages from the one with this number on."""
        run_feeds = self._run_feeds or self._make_run_feeds()
        for number in range(first, len(self._feeds)):
            if number == own:
                items = self._without_failure(items)
            items = _feed_stage(items, self._feeds[number], run_feeds[number])
        return items

    def _make_run_feeds(self) -> list[FeedRun]:
        self._run_feeds = [
            stage.feed_run if isinstance(stage, RunStage) else partial(_feed_each, stage.feed) for stage in self._stages
        ]
        return self._run_feeds

    def _without_failure(self, items: Sequence[E]) -> Sequence[E]:
        """Return what precedes a failure, and keep that."""
        for place, item in enumerate(items):
            if type(item) is Failed:
                self.failure = item.failure
                return items[:place]
        return items


def _feed_stage(items: Sequence[Item], feed: Feed, feed_run: FeedRun) -> list[Item]:
    given: list[Item] = []
    for item in items:
        if isinstance(item, list):
            events = feed_run(item, join_run(item))
            if events is item:
                given.append(item)
            else:
                given += split_runs(events)
        else:
            given += feed(item)
    return given


def _feed_each(feed: Feed, run: Sequence[Delta], text: str) -> Sequence[Event]:
    """Feed a run to a stage that takes single events only."""
    given = [out for event in run for out in feed(event)]
    return run if len(given) == len(run) and all(map(is_, given, run)) else given


class PassthroughPipe:
    """The same protocol's bytes, unaltered; if they end without their terminal event, its error event is appended."""

    __slots__ = (
        *("_calls", "_client", "_ended_unseen", "_redactor", "_secrets", "_source", "_stream_type", "_tail"),
        *("_unwatched", "last_write", "watch"),
    )

    def __init__(
        self,
        source: Source,
        client: Client,
        watch: ReplyMonitor,
        secrets: Secrets = (),
        stream_type: bytes = EVENT_STREAM,
    ) -> None:
        self._source = source
        self._client = client
        self._calls: CutCallMonitor | None = None  # from the first call on
        self._stream_type = stream_type
        self._secrets = secrets
        self._redactor = StreamRedactor(secrets)
        self._tail = b""
        self._unwatched = False
        self._ended_unseen = False
        self.last_write = b""
        self.watch = watch

    @property
    def decoder(self) -> Decoder:
        return self._source.decoder

    @property
    def has_begun(self) -> bool:
        """Whether the client would see anything of the reply, perhaps something that only the client can read."""
        return self.watch.has_content or self._unwatched or self._source.decoder.progress is Progress.ACTING

    @property
    def usage(self) -> Usage | None:
        return self.watch.final_usage

    def tap(self, wrap: Callable[[Source], Source]) -> Secrets:
        """Read through another source from now on; return the secrets that may stand in what it reads."""
        self._source = wrap(self._source)
        return self._secrets

    def feed(self, chunk: bytes) -> bytes:
        self.watch.count_read(len(chunk))
        self._observe(chunk)
        if self._unwatched and not self._ended_unseen:
            recent = self._tail[-TAIL:] + chunk
            self._ended_unseen = any(marker in recent for marker in self._client.end_markers)
        self._tail = chunk if len(chunk) >= TAIL else (self._tail + chunk)[-TAIL:]
        return self._redactor.feed(chunk)

    def drain(self) -> bytes:
        was_reported = self.watch.failure is not None  # the upstream's own error event has already passed
        self._observe(None)
        failure = TRUNCATED if self._unwatched else self.watch.failure
        return b"" if was_reported or failure is None else self.break_off(failure)

    def break_off(self, failure: Failure) -> bytes:
        """Return the protocol's error frames, set apart from an event that was cut in the middle."""
        if self._ended_unseen:
            return self.finish()
        self.watch.observe(Failed(failure))
        apart = b"" if not self._tail or self._tail.endswith(EVENT_ENDS) else b"\n\n"
        started, frames = self.watch.started, self._source.frames
        self.last_write = self._client.repeat_stream_error(failure, self._stream_type)
        return self.finish() + apart + self._client.render_stream_error(failure, started, frames, self._stream_type)

    def finish(self) -> bytes:
        return self._redactor.finish()

    def _observe(self, chunk: bytes | None) -> None:
        """Observe a chunk. A bug here is logged, and the stream passes unobserved."""
        if self._unwatched:
            return
        try:
            for item in split_runs(self._source.finish() if chunk is None else self._source.feed(chunk)):
                if isinstance(item, list):
                    text = join_run(item)
                    self.watch.observe_run(item, text)
                    if self._calls is not None:
                        self._calls.observe_run(item, text)
                    continue
                if isinstance(item, Failed):
                    if chunk is not None and self.watch.has_content and item.failure.kind is Kind.CORRUPT:
                        self._unwatched = True  # the client may be able to read what the decoder cannot
                        return
                    item = Failed(redact_failure(item.failure, self._secrets))
                self.watch.observe(item)
                if self._calls is not None or type(item) is Opened:
                    self._check_calls(item)
            if self.watch.blocks > MAX_BLOCKS:
                self._unwatched = True  # an endless reply must not fill the memory of its monitor
        except Exception as bug:
            log.error("the stream passes unobserved: %s", describe_fault(bug))
            self._unwatched = True

    def _check_calls(self, event: Event) -> None:
        """Note the failure of a reply that breaks off within a call; the client gets it as it came."""
        if self._calls is None:
            if type(event) is not Opened or type(event.what) is not CallBlock:
                return
            self._calls = CutCallMonitor()
        failure = self._calls.observe(event)
        if failure is not None:
            self.watch.fail(failure)
