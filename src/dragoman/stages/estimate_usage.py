"""A reply comes in; usage that it does not tell, or tells in part, goes out before its end, tagged as what it is.

Some upstreams tell only how full the context is after the reply: then the output is counted and the rest is input.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from dragoman.hub.events import CallBlock, Delta, Ended, Event, Opened, Started, ThinkingBlock, Used
from dragoman.hub.usage import Source, Usage


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
        self._text: list[str] = []
        self._thoughts: list[str] = []

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Delta:
            if not self._told:
                (self._thoughts if event.block in self._thinking else self._text).append(event.text)
            return (event,)
        match event:
            case Opened(block=block, what=ThinkingBlock()):
                self._thinking.add(block)
            case Opened(what=CallBlock(name=name)):
                self._text.append(f"\n{name}\n")
            case Started(usage=usage):
                self._known = usage
            case Used(usage=usage) if usage.context is not None or usage.source is Source.ESTIMATED:
                self._partial = usage
                return ()
            case Used(usage=usage):
                self._told = True
                self.usage = usage
                self._text.clear()
                self._thoughts.clear()
            case Ended() if not self._told:
                self.usage = self._estimate()
                return (Used(self.usage), event)
            case _:
                pass
        return (event,)

    def finish(self) -> Sequence[Event]:
        return ()

    def so_far(self) -> Usage:
        """Of a reply that may have broken off before it told any."""
        return self.usage or self._estimate()

    def _estimate(self) -> Usage:
        reasoning = self._count("".join(self._thoughts)) if self._thoughts else 0
        output = reasoning + (self._count("".join(self._text)) if self._text else 0)
        if self._known is not None and self._known.input:
            return replace(self._known, output=output, reasoning=reasoning, source=Source.ESTIMATED)
        partial = self._partial or Usage(source=Source.ESTIMATED)
        if partial.context is None:
            asked = self._input if isinstance(self._input, int) else self._input()
        else:
            asked = max(0, partial.context - output)
        return replace(partial, input=asked, output=output, reasoning=reasoning)
