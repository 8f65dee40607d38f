"""Put an upstream's events through its stages and the client's, and encode them: the machine in a translated reply."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import is_
from typing import TypeVar

from dragoman.proxy.client_encoding import ClientEncoding
from dragoman.proxy.redaction import EventRedactor
from dragoman.proxy.reply_monitor import ReplyMonitor
from dragoman.translate.framing.known_secrets import Secrets
from dragoman.translate.hub.events import Delta, Event, Failed
from dragoman.translate.hub.failure import Failure
from dragoman.translate.hub.ports import Item, RunStage, Stage, feed_each, flatten_runs, join_run, split_runs

S = TypeVar("S")
E = TypeVar("E", Event, Item)
Feed = Callable[[Event], Sequence[Event]]
FeedRun = Callable[[Sequence[Delta], str], Sequence[Event]]

MANY_EVENTS = 16  # from here on, gathering runs costs less than feeding event by event


class Translation:
    """Puts events through the stages of the upstream and then of the client, and encodes them.

    A failure that the upstream's stages give is kept in `failure` and does not reach the client's stages: whoever runs
    the turn decides whether another upstream continues or the client gets the failure.
    """

    __slots__ = (
        *("_block", "_block_feeds", "_encode", "_encode_all", "_feeds", "_own", "_redactor", "_run_feeds", "_stages"),
        *("failure", "watch"),
    )

    def __init__(
        self,
        stages: Sequence[Stage[Event, Event]],
        client: ClientEncoding,  # what belongs to the client, and outlives the turn
        watch: ReplyMonitor,
        secrets: Secrets = (),
    ) -> None:
        self._redactor = EventRedactor(secrets) if secrets else None
        self._own = tuple(stages)
        self._stages = (*self._own, *client.stages)
        self._feeds = [stage.feed for stage in self._stages]
        self._run_feeds: list[FeedRun] = []  # made when they are first used: a short reply has no runs
        self._block: int | None = None  # whose deltas `_block_feeds` take, until another event comes
        self._block_feeds: list[tuple[int, FeedRun]] = []  # with the numbers of the stages that follow
        self._encode, self._encode_all = client.encoder.feed, client.encode
        self.failure: Failure | None = None
        self.watch = watch

    def find_stage(self, kind: type[S]) -> S | None:
        """Return the upstream's stage of this kind, if there is one."""
        for stage in self._own:
            if isinstance(stage, kind):
                return stage
        return None

    def push_document(self, events: Sequence[Event], *, are_clean: bool) -> bytes:
        """Feed all events of a document, stage by stage; `are_clean`: no secret stands in what they were read from."""
        if self._redactor is not None and not are_clean:
            events = [clean for event in events for clean in self._redactor.feed(event)]
        for event in events:
            self.watch.observe(event)
        return self._encode_from(events, 0)

    def finish_stages(self) -> bytes:
        """End the upstream's stages, each after it was fed the last events of those before it."""
        events: list[Event] = []
        for stage in self._own:
            if events:
                events = feed_each(stage.feed, events)
            events += stage.finish()
        return self._encode_from(events, len(self._own))

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
        return self._encode(run[0]) if len(run) == 1 else (self._encode_all(run),)

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
        if not events:
            return b""
        own = len(self._own)
        if len(events) >= MANY_EVENTS:
            events = flatten_runs(self._feed_items(split_runs(events), first, own))
        else:
            for feed in self._feeds[first:own]:
                events = feed_each(feed, events)
            if first <= own:
                events = self._without_failure(events)
            for feed in self._feeds[max(first, own) :]:
                events = feed_each(feed, events)
        return self._encode_all(events)

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
