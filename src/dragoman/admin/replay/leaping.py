"""A coroutine that only waits for time comes in; its result goes out at once: the loop's clock leaps."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class LeapingSelector(selectors.DefaultSelector):
    """Instead of waiting for the next timer it makes that time come."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            ready = super().select(0)
            if not ready:
                self.now += timeout
            return ready
        return super().select(timeout)


class LeapingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leaping = LeapingSelector()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now


def run(coroutine: Coroutine[object, object, T]) -> T:
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        return runner.run(coroutine)
