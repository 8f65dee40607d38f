"""Warn when most of a limit is spent: once for each limit, window and threshold, whichever process sees it first."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from dragoman.config.limits import format_amount
from dragoman.net.tasks import spawn_apart
from dragoman.store import Store, StoreError
from dragoman.store.meter import HoldKind, Meter
from dragoman.tenancy.limit_parts import LimitPart

THRESHOLDS = (75, 95)  # per cent
GATHER_S = 1.0  # between two looks at what was spent
MAX_GATHERED = 1000  # counters that are looked at together
MAX_WARNED = 10_000  # that this process remembers; the store knows all

log = logging.getLogger(__name__)


class LimitWarning(Struct, frozen=True, kw_only=True):
    """A part of a limit that is spent; amounts are in the limit's own unit."""

    scope: str
    title: str  # of the scope, for people
    limit: str
    percent: int  # of the threshold
    value: int | float
    spent: int | float
    resets_at: int | None  # Unix seconds; None: never


Notify = Callable[[LimitWarning], Awaitable[None]]


class LimitWatch:
    """Looks at the limits of requests that have ended."""

    def __init__(self, meter: Meter, store: Store | None) -> None:
        self.counts = dict.fromkeys(THRESHOLDS, 0)  # warnings of this process
        self.notify: Notify | None = None  # called with each warning
        self._meter = meter
        self._store = store
        self._gathered: dict[str, LimitPart] = {}
        self._warned: set[tuple[str, int]] = set()
        self._task: asyncio.Task[None] | None = None

    def __call__(self, parts: Sequence[LimitPart]) -> None:
        """Look at these limits soon."""
        if len(self._gathered) < MAX_GATHERED:
            for part in parts:
                if part.window is not None and part.limit > 0 and (part.counter, THRESHOLDS[-1]) not in self._warned:
                    self._gathered[part.counter] = part
        if self._gathered and (self._task is None or self._task.done()):
            self._task = spawn_apart(self._look(), name="limit warnings")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look(self) -> None:
        while self._gathered:
            await asyncio.sleep(GATHER_S)
            parts, self._gathered = self._gathered, {}
            for level in await self._meter.read(list(parts)):
                part = parts[level.counter]
                assert part.kind in (HoldKind.WINDOW, HoldKind.CHECK)
                for percent in THRESHOLDS:
                    if level.spent * 100 >= part.limit * percent:
                        await self._warn(part, percent, level.spent)

    async def _warn(self, part: LimitPart, percent: int, spent: int) -> None:
        if (part.counter, percent) in self._warned or not await self._claim(part, percent):
            return
        self.counts[percent] += 1
        warning = LimitWarning(
            scope=part.scope.name,
            title=part.scope.title,
            limit=part.name.value,
            percent=percent,
            value=format_amount(part.name, part.limit),
            spent=format_amount(part.name, spent),
            resets_at=None if part.end_ms is None else part.end_ms // 1000,
        )
        share = spent * 100 // part.limit
        log.warning(
            "%d %% of the limit %s = %s of %s is spent", share, part.name.value, warning.value, part.scope.title
        )
        if self.notify is not None:
            await self.notify(warning)

    async def _claim(self, part: LimitPart, percent: int) -> bool:
        """Return True for the first such warning; while the store fails, other processes may also warn."""
        if len(self._warned) >= MAX_WARNED:
            self._warned.clear()
        self._warned.add((part.counter, percent))
        if self._store is None:
            return True
        try:
            return await self._store.claim_warning(part.counter, percent, part.end_ms or 0, int(time.time() * 1000))
        except StoreError:
            return True
