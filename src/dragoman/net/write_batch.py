"""Send what many connections have to send together, at the end of the event loop's turn.

A write wakes its receiver. Several writes directly after each other wake a receiver of many of them once; with other
work between them, each write wakes it again, which took a quarter of all CPU time. A single write after a pause is sent
at once, because waiting would only delay it.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Protocol

QUIET_S = 0.001  # without a write, after which the next one is sent at once


class BatchedSender(Protocol):
    def send_now(self) -> None:
        """Send what is buffered; must not raise."""


class WriteBatch:
    __slots__ = ("_clock", "_last", "_loop", "_waiting")

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._last = 0.0
        self._loop = asyncio.get_running_loop()
        self._waiting: list[BatchedSender] = []

    def add(self, sender: BatchedSender) -> None:
        """Have a connection send, now or at the end of this turn."""
        if not self._waiting:
            now = self._clock()
            silence, self._last = now - self._last, now
            if silence > QUIET_S:
                sender.send_now()
                return
            self._loop.call_soon(self._send_all)
        self._waiting.append(sender)

    def _send_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for sender in waiting:
            sender.send_now()
