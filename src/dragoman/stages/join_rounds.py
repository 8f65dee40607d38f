"""Join the rounds of a reply between which the gateway runs tools into one reply."""

from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.hub.events import (
    CitationAdded,
    Closed,
    Delta,
    Ended,
    Event,
    OpaqueAdded,
    Opened,
    Started,
    ToolReturned,
    UsageReported,
)
from dragoman.hub.server_tools import Page, SearchFound
from dragoman.hub.usage import Usage


class JoinRounds:
    """Numbers the blocks of all rounds in one sequence, keeps the first start, and sums usage and tool runs."""

    def __init__(self) -> None:
        self._first = 0  # the number of this round's block 0
        self._next = 0
        self._has_started = False
        self._round = Usage()  # what this round has used so far
        self._searches = self._fetches = 0  # since this round began
        self.used_before: Usage | None = None  # by earlier rounds

    @classmethod
    def after(cls, blocks: int, used: Usage) -> "JoinRounds":
        """Return the state after a first round that was not joined to others."""
        joined = cls()
        joined._next, joined._has_started, joined._round = blocks, True, used
        return joined

    def begin_round(self) -> None:
        """Expect the events of another round."""
        self._first = self._next
        self.used_before = self._total()
        self._round = Usage()
        self._searches = self._fetches = 0

    def feed(self, event: Event) -> Sequence[Event]:
        match event:
            case Started():
                if self._has_started:
                    return ()
                self._has_started = True
                return (event,)
            case Opened(block=block):
                self._next = max(self._next, self._first + block + 1)
                return (replace(event, block=self._first + block),)
            case ToolReturned(block=block, outcome=outcome):
                self._searches += isinstance(outcome, SearchFound)
                self._fetches += isinstance(outcome, Page)  # a run that failed is not counted
                return (replace(event, block=self._first + block),)
            case Delta() | OpaqueAdded() | CitationAdded() | Closed():
                return (replace(event, block=self._first + event.block),) if self._first else (event,)
            case UsageReported(usage=usage):
                self._round = usage
                return (UsageReported(self._total()),)
            case Ended() if self._searches or self._fetches:  # tools have run after the usage was reported
                return UsageReported(self._total()), event
            case _:
                return (event,)

    def finish(self) -> Sequence[Event]:
        return ()

    def _total(self) -> Usage:
        searches, fetches = self._round.web_searches + self._searches, self._round.web_fetches + self._fetches
        total = replace(self._round, web_searches=searches, web_fetches=fetches)
        if self.used_before is None:
            return total
        return self.used_before + replace(total, later_input=total.input)
