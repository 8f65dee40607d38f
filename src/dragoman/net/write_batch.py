"""Connections with something to send come in; where there are many, they send it together, as the loop's turn ends.

A write wakes its receiver. One write after the other, with nothing between them, wakes a receiver of many of them
once; with the work for the next request between them, each time anew. That was a quarter of all CPU time. Where there
is but one now and then, to wait for the end of the turn would only be another turn.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Protocol

QUIET_S = 0.001  # without anything to send, after which the next is sent at once


class Sender(Protocol):
    def send_now(self) -> None:
        """Must not raise: others wait behind it."""


class WriteBatch:
    __slots__ = ("_clock", "_last", "_waiting")

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._last = 0.0
        self._waiting: list[Sender] = []

    def add(self, sender: Sender) -> None:
        """Has it sent, now or very soon."""
        if not self._waiting:
            now = self._clock()
            silence, self._last = now - self._last, now
            if silence > QUIET_S:
                sender.send_now()
                return
            asyncio.get_running_loop().call_soon(self._send_all)
        self._waiting.append(sender)

    def _send_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for sender in waiting:
            sender.send_now()
