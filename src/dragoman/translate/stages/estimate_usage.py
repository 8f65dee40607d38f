"""Estimate usage that the upstream does not report, or reports in part, and add it before the end of the reply.

Some upstreams report only the size of the context after the reply: then the output is counted and the rest is input.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dragoman.translate.hub.events import CallBlock, Delta, Ended, Event, Opened, Started, ThinkingBlock, UsageReported
from dragoman.translate.hub.ports import RunStage
from dragoman.translate.hub.usage import Usage, UsageSource

KEPT_CHARACTERS = 32 * 1024
MOST_PIECES = 256
LONG_PIECE = 128  # characters
_ESTIMATED = UsageSource.ESTIMATED  # looked up once: on Python 3.11, each look-up of a member is slow


class _Sample(Struct, eq=False):
    """The beginning of a text and its total length, to count the tokens of any text in bounded memory."""

    pieces: list[str] = []  # at the end of the text; whoever adds many or long ones calls `compact`
    _kept: str = ""
    _size: int = 0

    def add(self, text: str) -> None:
        self.pieces.append(text)
        if len(self.pieces) > MOST_PIECES or len(text) > LONG_PIECE:
            self.compact()

    def compact(self) -> None:
        """Keep the beginning as one string: many short ones need far more memory."""
        text = "".join(self.pieces)
        self.pieces.clear()
        self._size += len(text)
        if len(self._kept) < KEPT_CHARACTERS:
            self._kept += text

    def clear(self) -> None:
        self.pieces.clear()
        self._kept, self._size = "", 0

    def count(self, count: Callable[[str], int]) -> int:
        """Return the number of tokens of the whole text, extrapolated from its beginning."""
        self.compact()
        if not self._size:
            return 0
        tokens = count(self._kept)
        return tokens if len(self._kept) == self._size else round(tokens * self._size / len(self._kept))


class EstimateUsage(RunStage):
    """Keeps the text of the reply until usage is reported, because counting word by word is inaccurate."""

    __slots__ = (
        "_count",
        "_input",
        "_known",
        "_partial",
        "_reported",
        "_settled",
        "_text",
        "_thinking",
        "_thoughts",
        "usage",
    )

    def __init__(self, count: Callable[[str], int], input_tokens: int | Callable[[], int]) -> None:
        self._count = count
        self._input = input_tokens
        self._known: Usage | None = None
        self._partial: Usage | None = None  # the size of the context, or the price, without any token counts
        self._reported = False
        self._settled: Usage | None = None  # reported at the end instead of anything else
        self.usage: Usage | None = None  # the last one that was passed on
        self._thinking: set[int] = set()
        self._text = _Sample()
        self._thoughts = _Sample()

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Delta:
            if not self._reported:
                (self._thoughts if event.block in self._thinking else self._text).add(event.text)
            return (event,)
        # Types are compared: a struct's class pattern that does not fit is slow.
        if type(event) is Opened:
            if type(event.what) is ThinkingBlock:
                self._thinking.add(event.block)
            elif type(event.what) is CallBlock:
                self._text.add(f"\n{event.what.name}\n")
        elif type(event) is Started:
            self._known = event.usage
        elif type(event) is UsageReported:
            usage = event.usage
            if usage.context is not None or usage.source is _ESTIMATED:
                self._partial = usage
                return ()
            self._reported = True
            self.usage = usage
            self._text.clear()
            self._thoughts.clear()
        elif type(event) is Ended and (self._settled is not None or not self._reported):
            self.usage = self._settled or self._estimate()
            return (UsageReported(self.usage), event)
        return (event,)

    def feed_run(self, run: Sequence[Delta], text: str) -> Sequence[Event]:
        if not self._reported:
            sample = self._thoughts if run[0].block in self._thinking else self._text
            sample.pieces.append(text)  # as `add` does, without a call for each read of a stream
            if len(sample.pieces) > MOST_PIECES or len(text) > LONG_PIECE:
                sample.compact()
        return run

    @property
    def reported(self) -> Usage | None:
        """What the upstream has reported so far: at the start of many replies, its input."""
        return self.usage if self._reported else self._known

    def usage_so_far(self) -> Usage:
        """Return the usage of a reply that may have ended early, before it was reported."""
        return self.usage or self._estimate()

    def settle(self, withheld: str) -> None:
        """Settle the usage of a reply that is complete but for its end; `withheld` is text that was not passed on."""
        if self._settled is not None:
            return
        if not self._reported:
            self._text.add(withheld)
        self.usage = self._settled = self.usage_so_far()

    def add(self, used: Usage) -> None:
        """Add the usage of another request for the same reply."""
        assert self._settled is not None
        self.usage = self._settled = self._settled + used

    def _estimate(self) -> Usage:
        reasoning = self._thoughts.count(self._count)
        output = reasoning + self._text.count(self._count)
        if self._known is not None and self._known.input:
            return replace(self._known, output=output, reasoning=reasoning, source=_ESTIMATED)
        partial = self._partial or Usage(source=_ESTIMATED)
        if partial.context is None:
            input_tokens = self._input if isinstance(self._input, int) else self._input()
        else:
            input_tokens = max(0, partial.context - output)
        return replace(partial, input=input_tokens, output=output, reasoning=reasoning)
