"""Events are shown to it; what a reply amounted to comes out at the end. It changes nothing."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from dragoman.hub.events import (
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
from dragoman.hub.failure import Failure
from dragoman.hub.usage import Usage

KINDS = {
    TextBlock: "text",
    RefusalBlock: "refusal",
    ThinkingBlock: "thinking",
    CallBlock: "call",
    HostedBlock: "hosted",
}
ACTIONS = (CallBlock, HostedBlock)
WORDLESS = (*ACTIONS, ThinkingBlock)  # which may have no text at all, and are an answer all the same


class Seen(Struct, frozen=True):
    id: str  # the upstream's
    model: str  # as the upstream named it
    usage: Usage | None
    counted: bool  # whether that was told after the reply; what is told before it knows of no output yet
    first_token: float | None  # by the clock that was handed in
    stop: Stop | None  # None with a failure, or where no end was seen
    failure: Failure | None
    deltas: int
    bytes: int  # of text in UTF-8
    blocks: tuple[str, ...]  # their kinds, in order of opening


class Watch:
    __slots__ = (
        "_blocks",
        "_bytes",
        "_clock",
        "_counted",
        "_deltas",
        "_end",
        "_first_token",
        "_started",
        "_usage",
        "substance",
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.substance = False  # whether there was anything that a client would see of the reply
        self._started: Started | None = None
        self._usage: Usage | None = None
        self._counted = False
        self._first_token: float | None = None
        self._end: Ended | Failed | None = None
        self._deltas = 0
        self._bytes = 0
        self._blocks: list[str] = []

    def see(self, event: Event) -> None:
        match event:
            case Delta(text=text):
                self.see_run((event,), text)
            case Opened(what=what):
                self._blocks.append(KINDS[type(what)])
                self.substance |= isinstance(what, WORDLESS)
                if self._first_token is None and isinstance(what, ACTIONS):
                    self._first_token = self._clock()
            case Started(usage=usage):
                self._started = event
                self._usage = usage
            case UsageReported(usage=usage):
                self._usage = usage
                self._counted = True
            case Ended() | Failed() if self._end is None:
                self._end = event
                self.substance |= isinstance(event, Ended)
            case _:
                pass

    def see_run(self, run: Sequence[Delta], text: str) -> None:
        """Note deltas that follow each other; `text` is what they add up to."""
        self._deltas += len(run)
        self._bytes += len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        if self._first_token is None and text:
            self._first_token = self._clock()
            self.substance = True

    def fail(self, failure: Failure) -> None:
        """Note that the client was told a failure, though the upstream may have ended well."""
        if not isinstance(self._end, Failed):
            self._end = Failed(failure)

    @property
    def blocks(self) -> int:
        """How many there were so far."""
        return len(self._blocks)

    @property
    def usage(self) -> Usage | None:
        return self._usage

    @property
    def counts(self) -> Usage | None:
        """What was told after the reply, or as much of it as there was to be."""
        return self._usage if self._counted else None

    @property
    def ended(self) -> bool:
        """Whether the reply is over, well or badly."""
        return self._end is not None

    @property
    def started(self) -> Started | None:
        return self._started

    @property
    def failure(self) -> Failure | None:
        return self._end.failure if isinstance(self._end, Failed) else None

    def seen(self) -> Seen:
        started = self._started or Started("", "")
        return Seen(
            id=started.id,
            model=started.model,
            usage=self._usage,
            counted=self._counted,
            first_token=self._first_token,
            stop=self._end.stop if isinstance(self._end, Ended) else None,
            failure=self.failure,
            deltas=self._deltas,
            bytes=self._bytes,
            blocks=tuple(self._blocks),
        )
