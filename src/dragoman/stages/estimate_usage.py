"""A reply comes in; usage that it does not tell, or tells in part, goes out before its end, tagged as what it is.

Some upstreams tell only how full the context is after the reply: then the output is counted and the rest is input.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from dragoman.hub.events import CallBlock, Delta, Ended, Event, Opened, Started, ThinkingBlock, UsageReported
from dragoman.hub.usage import Source, Usage

KEPT_CHARACTERS = 32 * 1024
MOST_PIECES = 256


class _Sample:
    """The beginning of a text, and how long all of it is: a reply of any length is counted in bounded memory."""

    __slots__ = ("_kept", "_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._kept = 0
        self._size = 0

    def add(self, text: str) -> None:
        size = len(text)
        self._size += size
        if self._kept < KEPT_CHARACTERS:
            self._pieces.append(text)
            self._kept += size
            if len(self._pieces) > MOST_PIECES:  # many short strings take far more room than one long one
                self._pieces = ["".join(self._pieces)]

    def clear(self) -> None:
        self._pieces.clear()
        self._kept = self._size = 0

    def count(self, count: Callable[[str], int]) -> int:
        """The tokens of the whole text, as its beginning lets one expect."""
        if not self._size:
            return 0
        tokens = count("".join(self._pieces))
        return tokens if self._kept == self._size else round(tokens * self._size / self._kept)


class EstimateUsage:
    """Keeps the reply's text until its usage is told, for nothing can be counted well word by word."""

    __slots__ = ("_count", "_input", "_known", "_partial", "_text", "_thinking", "_thoughts", "_told", "usage")

    def __init__(self, count: Callable[[str], int], input_tokens: int | Callable[[], int]) -> None:
        self._count = count
        self._input = input_tokens
        self._known: Usage | None = None
        self._partial: Usage | None = None  # how full the context is, or what the reply costs, without any counts
        self._told = False
        self.usage: Usage | None = None  # the last that went out
        self._thinking: set[int] = set()
        self._text = _Sample()
        self._thoughts = _Sample()

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Delta:
            if not self._told:
                (self._thoughts if event.block in self._thinking else self._text).add(event.text)
            return (event,)
        match event:
            case Opened(block=block, what=ThinkingBlock()):
                self._thinking.add(block)
            case Opened(what=CallBlock(name=name)):
                self._text.add(f"\n{name}\n")
            case Started(usage=usage):
                self._known = usage
            case UsageReported(usage=usage) if usage.context is not None or usage.source is Source.ESTIMATED:
                self._partial = usage
                return ()
            case UsageReported(usage=usage):
                self._told = True
                self.usage = usage
                self._text.clear()
                self._thoughts.clear()
            case Ended() if not self._told:
                self.usage = self._estimate()
                return (UsageReported(self.usage), event)
            case _:
                pass
        return (event,)

    def finish(self) -> Sequence[Event]:
        return ()

    def usage_so_far(self) -> Usage:
        """Of a reply that may have broken off before it told any."""
        return self.usage or self._estimate()

    def _estimate(self) -> Usage:
        reasoning = self._thoughts.count(self._count)
        output = reasoning + self._text.count(self._count)
        if self._known is not None and self._known.input:
            return replace(self._known, output=output, reasoning=reasoning, source=Source.ESTIMATED)
        partial = self._partial or Usage(source=Source.ESTIMATED)
        if partial.context is None:
            asked = self._input if isinstance(self._input, int) else self._input()
        else:
            asked = max(0, partial.context - output)
        return replace(partial, input=asked, output=output, reasoning=reasoning)
