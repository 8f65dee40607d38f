"""Observe the events of a reply: what it consists of, and how it ended."""

from collections.abc import Callable, Sequence

from dragoman.translate.hub.events import (
    CallBlock,
    Delta,
    Ended,
    Event,
    Failed,
    HostedBlock,
    Opened,
    RefusalBlock,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    UsageReported,
)
from dragoman.translate.hub.failure import Failure
from dragoman.translate.hub.usage import Usage

BLOCK_KINDS = {
    TextBlock: "text",
    RefusalBlock: "refusal",
    ThinkingBlock: "thinking",
    CallBlock: "call",
    HostedBlock: "hosted",
}
ACTIONS = (CallBlock, HostedBlock)
CONTENT_WITHOUT_TEXT = (*ACTIONS, ThinkingBlock)  # blocks that are content even without text


class ReplyMonitor:
    """Observes the events of one reply without changing them."""

    __slots__ = (
        *("deltas", "ended", "failure", "first_token", "has_content", "read_bytes", "read_chunks", "started"),
        *("text_bytes", "usage", "usage_is_final", "_blocks", "_clock", "_end"),
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.has_content = False  # whether the client would see anything of the reply
        self.started: Started | None = None
        self.usage: Usage | None = None
        self.usage_is_final = False  # it was reported after the reply: usage reported before has no output yet
        self.first_token: float | None = None  # time by the given clock
        self._end: Ended | Failed | None = None
        self.ended = False  # with or without a failure
        self.failure: Failure | None = None  # that ended it
        self.deltas = 0
        self.text_bytes = 0  # in UTF-8
        self._blocks: list[str] = []  # their kinds, in order of opening
        self.read_bytes = 0  # of the upstream's stream, as they came
        self.read_chunks = 0  # reads that they came in

    def count_read(self, size: int) -> None:
        """Count one read of the upstream's stream."""
        self.read_bytes += size
        self.read_chunks += 1

    def observe(self, event: Event) -> None:
        # Types are compared, not matched: a struct's class pattern that does not fit is slow, and this is a hot path.
        if type(event) is Delta:
            self.observe_run((event,), event.text)
        elif type(event) is Opened:
            self._blocks.append(BLOCK_KINDS[type(event.what)])
            self.has_content |= type(event.what) in CONTENT_WITHOUT_TEXT
            if self.first_token is None and type(event.what) in ACTIONS:
                self.first_token = self._clock()
        elif type(event) is Started:
            self.started = event
            self.usage = event.usage
        elif type(event) is UsageReported:
            self.usage = event.usage
            self.usage_is_final = True
        elif not self.ended and (type(event) is Ended or type(event) is Failed):
            self._end = event
            self.ended = True
            if type(event) is Failed:
                self.failure = event.failure
            else:
                self.has_content = True

    def observe_run(self, run: Sequence[Delta], text: str) -> None:
        """Observe consecutive deltas; `text` is their joined text."""
        self.deltas += len(run)
        self.text_bytes += len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        if self.first_token is None and text:
            self.first_token = self._clock()
            self.has_content = True

    def fail(self, failure: Failure) -> None:
        """Note a failure that the client was sent, even if the upstream's reply ended well."""
        if self.failure is None:
            self._end, self.failure = Failed(failure), failure
            self.ended = True

    @property
    def blocks(self) -> int:
        """The number of blocks so far."""
        return len(self._blocks)

    @property
    def last_block(self) -> str:
        """The kind of the block that was opened last; empty if there is none."""
        return self._blocks[-1] if self._blocks else ""

    @property
    def final_usage(self) -> Usage | None:
        """The usage that was reported after the reply; None if there was none."""
        return self.usage if self.usage_is_final else None

    @property
    def stop(self) -> Stop | None:
        """Why the reply ended; None after a failure or without an end."""
        return self._end.stop if type(self._end) is Ended else None
