"""Put interleaved blocks one after the other, for clients whose protocol does not allow interleaving.

The first open block is passed on immediately. Events of other blocks wait until it closes; then the block opened next
is passed on. Nothing is lost or reordered within a block, and blocks keep the order in which they were opened. The
events that wait can grow to the size of the reply's other blocks, which is unavoidable.
"""

from collections import deque
from collections.abc import Sequence

from dragoman.hub.events import CallBlock, CitationAdded, Closed, Delta, Ended, Event, Failed, OpaqueAdded, Opened
from dragoman.hub.ports import RunStage


class SerialiseBlocks(RunStage):
    __slots__ = ("_live", "_live_is_call", "_order", "_waiting")

    def __init__(self) -> None:
        self._live: int | None = None
        self._live_is_call = False
        self._waiting: dict[int, list[Event]] = {}  # in the order of opening
        self._order: deque[int] = deque()  # the same blocks: the front of a dict cannot be removed in constant time

    def feed(self, event: Event) -> Sequence[Event]:
        if type(event) is Delta and event.block == self._live:
            return (event,)
        match event:
            case Delta(block=block) | OpaqueAdded(block=block) | CitationAdded(block=block):
                return (event,) if block == self._live else self._wait(block, event)
            case Opened(block=block):
                return self._open(event) if self._live is None else self._wait(block, event)
            case Closed(block=block):
                return (event, *self._advance()) if block == self._live else self._wait(block, event)
            case Failed():
                return (*self._end_early(), event)
            case Ended():
                return (*self._drain(), event)
            case _:
                return (event,)

    def feed_run(self, run: Sequence[Delta], text: str) -> Sequence[Event]:
        if run[0].block == self._live:
            return run
        return [out for event in run for out in self.feed(event)]

    def finish(self) -> Sequence[Event]:
        return self._end_early()

    def _open(self, event: Opened) -> Sequence[Event]:
        self._live = event.block
        self._live_is_call = isinstance(event.what, CallBlock)
        return (event,)

    def _wait(self, block: int, event: Event) -> Sequence[Event]:
        held = self._waiting.get(block)
        if held is not None:
            held.append(event)
            return ()
        if isinstance(event, Opened):
            self._waiting[block] = [event]
            self._order.append(block)
            return ()
        return (event,)  # of a block that is not open: the guard reports it

    def _advance(self) -> list[Event]:
        """Pass on all complete blocks and the available part of the next one, after the live block has closed."""
        self._live = None
        passed: list[Event] = []
        while self._order and self._live is None:
            held = self._waiting.pop(self._order.popleft())
            passed += held
            opening = held[0]
            if not isinstance(held[-1], Closed) and isinstance(opening, Opened):
                self._open(opening)
        return passed

    def _end_early(self) -> list[Event]:
        """Return all events that can still be passed on after an early end.

        An incomplete block of text is closed, so that other blocks can follow. An incomplete call is never closed: it
        would look complete, and a client might run it. So complete blocks come first, and one incomplete block may
        follow them and stays open.
        """
        if not self._waiting or (self._live is not None and self._live_is_call):
            return []
        passed: list[Event] = [] if self._live is None else [Closed(self._live)]
        whole = [held for held in self._waiting.values() if isinstance(held[-1], Closed)]
        cut = [held for held in self._waiting.values() if not isinstance(held[-1], Closed)]
        self._waiting.clear()
        self._order.clear()
        for held in (*whole, *cut[:1]):
            passed += held
        return passed

    def _drain(self) -> list[Event]:
        """Pass on all waiting events of a malformed reply, and leave its last block open. A legal reply has none."""
        passed: list[Event] = []
        while self._live is not None and self._waiting:
            passed.append(Closed(self._live))
            passed += self._advance()
        return passed
