"""Observe the events of a reply and summarize them."""

from collections.abc import Callable, Sequence

from msgspec import Struct

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


class ReplySummary(Struct, frozen=True):
    """What a reply consisted of."""

    id: str  # given by the upstream
    model: str  # as the upstream names it
    usage: Usage | None
    usage_is_final: bool  # whether it was reported after the reply: usage reported before has no output yet
    first_token: float | None  # time by the given clock
    stop: Stop | None  # None after a failure or without an end
    failure: Failure | None
    deltas: int
    bytes: int  # of text in UTF-8
    blocks: tuple[str, ...]  # their kinds, in order of opening
    read_bytes: int = 0  # of the upstream's stream, as they came
    read_chunks: int = 0  # reads that they came in


class ReplyMonitor:
    """Observes the events of one reply without changing them."""

    __slots__ = (
        "_blocks",
        "_bytes",
        "_clock",
        "_deltas",
        "_end",
        "_first_token",
        "_read_bytes",
        "_read_chunks",
        "_usage",
        "_usage_is_final",
        "ended",
        "failure",
        "has_content",
        "started",
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.has_content = False  # whether the client would see anything of the reply
        self.started: Started | None = None
        self._usage: Usage | None = None
        self._usage_is_final = False
        self._first_token: float | None = None
        self._end: Ended | Failed | None = None
        self.ended = False  # with or without a failure
        self.failure: Failure | None = None  # that ended it
        self._deltas = 0
        self._bytes = 0
        self._blocks: list[str] = []
        self._read_bytes = 0
        self._read_chunks = 0

    def count_read(self, size: int) -> None:
        """Count one read of the upstream's stream."""
        self._read_bytes += size
        self._read_chunks += 1

    def observe(self, event: Event) -> None:
        # Types are compared, not matched: a struct's class pattern that does not fit is slow, and this is a hot path.
        if type(event) is Delta:
            self.observe_run((event,), event.text)
        elif type(event) is Opened:
            self._blocks.append(BLOCK_KINDS[type(event.what)])
            self.has_content |= type(event.what) in CONTENT_WITHOUT_TEXT
            if self._first_token is None and type(event.what) in ACTIONS:
                self._first_token = self._clock()
        elif type(event) is Started:
            self.started = event
            self._usage = event.usage
        elif type(event) is UsageReported:
            self._usage = event.usage
            self._usage_is_final = True
        elif not self.ended and (type(event) is Ended or type(event) is Failed):
            self._end = event
            self.ended = True
            if type(event) is Failed:
                self.failure = event.failure
            else:
                self.has_content = True

    def observe_run(self, run: Sequence[Delta], text: str) -> None:
        """Observe consecutive deltas; `text` is their joined text."""
        self._deltas += len(run)
        self._bytes += len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        if self._first_token is None and text:
            self._first_token = self._clock()
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
    def text_bytes(self) -> int:
        """The size of the text so far, in UTF-8."""
        return self._bytes

    @property
    def last_block(self) -> str:
        """The kind of the block that was opened last; empty if there is none."""
        return self._blocks[-1] if self._blocks else ""

    @property
    def usage(self) -> Usage | None:
        return self._usage

    @property
    def final_usage(self) -> Usage | None:
        """The usage that was reported after the reply; None if there was none."""
        return self._usage if self._usage_is_final else None

    def summarize(self) -> ReplySummary:
        started = self.started or Started("", "")
        end = self._end
        return ReplySummary(  # positional, since every request pays for it
            started.id,
            started.model,
            self._usage,
            self._usage_is_final,
            self._first_token,
            end.stop if type(end) is Ended else None,
            self.failure,
            self._deltas,
            self._bytes,
            tuple(self._blocks),
            self._read_bytes,
            self._read_chunks,
        )
