"""Slow down a client that requests a model again and again although it does not exist.

Some clients repeat a request that got 404 at once and without end. The first answers come at once, so that a person who
mistypes a name notices nothing; further ones come a second later.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable

from dragoman.net.http_request import HttpRequest
from dragoman.server.routes import RoutedRequest
from dragoman.tenancy.keys import KeyId
from dragoman.translate.hub.failure import UNKNOWN_MODEL, Kind, RequestError

FREE = 20  # answers to one key about one model that come at once
WINDOW_S = 10.0  # the time in which they are counted
DELAY_S = 1.0  # of each further one
MAX_WAITING = 50  # at a time; what is beyond them is answered at once
MAX_COUNTED = 1000  # pairs of a key and a model, those of the latest requests
OF_CONSOLE = KeyId("console")  # stands for the key of requests that a browser sends with its session

FindKey = Callable[[HttpRequest], KeyId | None]
HoldBack = Callable[[RequestError, RoutedRequest], Awaitable[None]]  # waits before a refusal, if it is one of many


class RepeatCounter:
    """The times of the latest refusals for each key and model."""

    def __init__(self) -> None:
        self._times: OrderedDict[int, deque[float]] = OrderedDict()  # by hash: clients invent names of any length

    def __len__(self) -> int:
        return len(self._times)

    def add(self, key: str, model: str, now: float) -> bool:
        """Count a refusal, and return whether FREE others came within WINDOW_S before it."""
        pair = hash((key, model))
        times = self._times.pop(pair, None) or deque(maxlen=FREE)
        is_repeated = len(times) == FREE and now - times[0] < WINDOW_S
        times.append(now)
        self._times[pair] = times
        if len(self._times) > MAX_COUNTED:
            self._times.popitem(last=False)
        return is_repeated


class UnknownModelDelay:
    """Delays the answers of this process. `clock` is monotonic; `clock` and `sleep` are in seconds."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._counter = RepeatCounter()
        self.waiting = 0

    async def hold_back(self, refused: RequestError, request: HttpRequest, find_key: FindKey) -> None:
        """Wait before a refusal is sent, if it is one of many; meanwhile the request's body takes no memory."""
        failure = refused.failure
        if failure.kind is not Kind.NOT_FOUND or failure.code != UNKNOWN_MODEL:
            return
        key = find_key(request) or OF_CONSOLE
        # The message stands for the model, which it names.
        if not self._counter.add(key, failure.message, self._clock()) or self.waiting >= MAX_WAITING:
            return
        # Both refer to the frames that have parsed the request.
        refused.__traceback__ = refused.__context__ = None
        if not request.body_open:
            request.set_body(b"")
            request.buffered.release_to(0)
        self.waiting += 1
        try:
            await self._sleep(DELAY_S)
        finally:
            self.waiting -= 1
