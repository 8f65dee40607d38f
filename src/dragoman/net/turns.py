"""Share the turns of an event loop among those who have much to read.

All readers of one kind together read for at most `TURN_S` in a turn. What has arrived beyond that waits for a later
turn, so that floods and fast streams do not delay others.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol
from weakref import WeakKeyDictionary

TURN_S = 0.005  # for all readers, before the event loop turns to others


class Reader(Protocol):
    """What reads the bytes of one connection."""

    def read_until(self, ends: float) -> bool:
        """Read until the clock says `ends`; return whether that was too short for what has arrived."""

    def pause_reading(self) -> None: ...


class ReadTurns:
    """Lets the readers of an event loop read, for at most `TURN_S` in all in each of its turns, one after the other."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._ends: float | None = None  # when the time of this turn is over; None if nothing was read in it yet
        self._waiting: OrderedDict[Reader, None] = OrderedDict()

    def read(self, reader: Reader) -> None:
        """Let it read now, and in later turns what there is no time for."""
        ends = self._begin_turn() if self._ends is None else self._ends
        if self._waiting or reader.read_until(ends):
            self._waiting[reader] = None
            reader.pause_reading()

    def _begin_turn(self) -> float:
        asyncio.get_running_loop().call_soon(self._read_waiting)
        self._ends = self.clock() + TURN_S
        return self._ends

    def _read_waiting(self) -> None:
        self._ends = None
        if not self._waiting:
            return
        ends = self._begin_turn()
        for _ in range(len(self._waiting)):
            reader, _ = self._waiting.popitem(last=False)
            if reader.read_until(ends):
                self._waiting[reader] = None
            if self.clock() >= ends:
                return


class SharedTurns:
    """The turns that all readers of one kind share, by event loop."""

    def __init__(self) -> None:
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, ReadTurns] = WeakKeyDictionary()

    def of_this_loop(self) -> ReadTurns:
        loop = asyncio.get_running_loop()
        turns = self._turns.get(loop)
        if turns is None:
            turns = self._turns[loop] = ReadTurns()
        return turns
