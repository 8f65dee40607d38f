"""Observe a stream that passes: its usage, its end, and whether it broke off within a call. Nothing is changed."""

import logging
from collections.abc import Sequence

from dragoman.net.errors import describe_fault
from dragoman.proxy.redaction import redact_failure
from dragoman.proxy.replies.reply import ReplyOrigin
from dragoman.proxy.source import EventSource
from dragoman.translate.hub.events import MAX_BLOCKS, CallBlock, Delta, Event, Failed, Opened
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.ports import Progress, join_run, split_runs
from dragoman.translate.stages.check_calls import CutCallMonitor

log = logging.getLogger(__name__)

TAIL = 32  # bytes of what has passed: more than an ending is long
EVENT_ENDS = (b"\n\n", b"\r\r", b"\r\n\r\n")
TRUNCATED = Failure(Kind.TRUNCATED, "the upstream's stream ended without its terminal event")


class StreamObserver:
    """Decodes what passes. What it cannot read passes too, and is not observed further."""

    __slots__ = ("_calls", "_client", "_is_unwatched", "_secrets", "_tail", "_watch", "ended_unseen", "source")

    def __init__(self, origin: ReplyOrigin, source: EventSource) -> None:
        self.source = source
        self._watch = origin.watch
        self._client = origin.call.client
        self._secrets = origin.prepared.secrets
        self._calls: CutCallMonitor | None = None  # from the first call on
        self._tail = b""
        self._is_unwatched = False  # the client may be able to read what our decoder cannot
        self.ended_unseen = False  # its end has passed since then

    @property
    def has_begun(self) -> bool:
        """Whether there is something that only the client can read, or an action that has no content yet."""
        return self._is_unwatched or self.source.decoder.progress is Progress.ACTING

    @property
    def is_cut(self) -> bool:
        """Whether the last event that has passed is not complete."""
        return bool(self._tail) and not self._tail.endswith(EVENT_ENDS)

    def feed(self, chunk: bytes) -> None:
        self._watch.count_read(len(chunk))
        if not self._is_unwatched:
            try:
                events = self.source.feed(chunk)
                if len(events) == 1 and type(delta := events[0]) is Delta and self._calls is None:  # as of most reads
                    self._watch.observe_run((delta,), delta.text)
                elif events:
                    self._observe_events(events, is_end=False)
            except Exception as bug:
                self._stop_watching(bug)
        if self._is_unwatched and not self.ended_unseen:
            recent = self._tail[-TAIL:] + chunk
            self.ended_unseen = any(marker in recent for marker in self._client.end_markers)
        self._tail = chunk if len(chunk) >= TAIL else (self._tail + chunk)[-TAIL:]

    def end(self) -> Failure | None:
        """Return the failure at the end of the body that the client has not been sent."""
        was_reported = self._watch.failure is not None  # the upstream's own error event has already passed
        if not self._is_unwatched:
            try:
                self._observe_events(self.source.finish(), is_end=True)
            except Exception as bug:
                self._stop_watching(bug)
        failure = TRUNCATED if self._is_unwatched else self._watch.failure
        return None if was_reported else failure

    def _stop_watching(self, bug: Exception) -> None:
        """Log a bug of ours; the stream passes unobserved."""
        log.error("the stream passes unobserved: %s", describe_fault(bug))
        self._is_unwatched = True

    def _observe_events(self, events: Sequence[Event], *, is_end: bool) -> None:
        watch = self._watch
        for item in split_runs(events):
            if isinstance(item, list):
                text = join_run(item)
                watch.observe_run(item, text)
                if self._calls is not None:
                    self._calls.observe_run(item, text)
                continue
            if type(item) is Failed:
                if not is_end and watch.has_content and item.failure.kind is Kind.CORRUPT:
                    self._is_unwatched = True
                    return
                item = Failed(redact_failure(item.failure, self._secrets))
            watch.observe(item)
            if self._calls is not None or type(item) is Opened:
                self._check_calls(item)
        if watch.blocks > MAX_BLOCKS:
            self._is_unwatched = True  # an endless reply must not fill the memory of its monitor

    def _check_calls(self, event: Event) -> None:
        """Note the failure of a reply that breaks off within a call; the client gets it as it came."""
        if self._calls is None:
            if type(event) is not Opened or type(event.what) is not CallBlock:
                return
            self._calls = CutCallMonitor()
        failure = self._calls.observe(event)
        if failure is not None:
            self._watch.fail(failure)
