"""Connections with something to send come in; they send it together, at the end of the event loop's turn.

A write wakes its receiver. One write after the other, with nothing between them, wakes a receiver of many of them
once; with the work for the next request between them, each time anew. That was a quarter of all CPU time.
"""

import asyncio
from typing import Protocol


class Sender(Protocol):
    def send_now(self) -> None:
        """Must not raise: others wait behind it."""


class Outbox:
    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Sender] = []

    def add(self, sender: Sender) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._send_all)
        self._waiting.append(sender)

    def _send_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for sender in waiting:
            sender.send_now()
