"""Interleaved blocks come in, one block after the other goes out, for clients whose protocol knows no interleaving.

The first open block passes live. What other blocks say waits until it closes; then the block opened next passes.
Nothing is lost or reordered within a block, and blocks keep the order in which they were opened. What waits can
grow to the size of the reply's other blocks: that much no straightening can avoid.
"""

from collections import deque
from collections.abc import Sequence

from dragoman.hub.events import CallBlock, CitationAdded, Closed, Delta, Ended, Event, Failed, OpaqueAdded, Opened


class SerialiseBlocks:
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
                return (*self._cut(), event)
            case Ended():
                return (*self._drain(), event)
            case _:
                return (event,)

    def finish(self) -> Sequence[Event]:
        return self._cut()

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
        return (event,)  # of no block that was opened: the guard refuses it by name

    def _advance(self) -> list[Event]:
        """The live block has closed: lets through every block that is whole, and what there is of the next one."""
        self._live = None
        passed: list[Event] = []
        while self._order and self._live is None:
            held = self._waiting.pop(self._order.popleft())
            passed += held
            opening = held[0]
            if not isinstance(held[-1], Closed) and isinstance(opening, Opened):
                self._open(opening)
        return passed

    def _cut(self) -> list[Event]:
        """Everything that may still be told when no more will come.

        A cut block of text is closed to let the others pass. A cut call never is: closed, it would look whole,
        and a client might run it. So whole blocks come first, and one cut block may follow them and stays open.
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
        """A legal reply has nothing waiting at its end. Of any other, all is told, and the last block is left open."""
        passed: list[Event] = []
        while self._live is not None and self._waiting:
            passed.append(Closed(self._live))
            passed += self._advance()
        return passed
