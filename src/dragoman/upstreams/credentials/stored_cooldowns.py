"""Gateways agree on cooldowns over their database alone: a table that each of them reads all the time."""

import asyncio
import logging
import time
from contextlib import suppress

from dragoman.net.tasks import spawn
from dragoman.store import Store, StoreError
from dragoman.upstreams.credentials.shared_cooldowns import CooldownBoard

log = logging.getLogger(__name__)

POLL_S = 0.8  # so that all agree within a second


class StoredCooldowns:
    """Writes the changes of a board into the store, and reads those of others."""

    def __init__(self, board: CooldownBoard, store: Store) -> None:
        self._board = board
        self._store = store
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = spawn(self._follow(), name="cooldowns of other gateways")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _follow(self) -> None:
        is_failing = False
        while True:
            try:
                await self._exchange()
                is_failing = False
            except StoreError as error:
                if not is_failing:
                    log.warning("cooldowns are those of this process, because the store cannot be reached: %s", error)
                is_failing = True
                await asyncio.sleep(POLL_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._board.has_unsent.wait()

    async def _exchange(self) -> None:
        changes, now_ms = list(self._board.unsent.values()), round(time.time() * 1000)
        if changes:
            await self._store.change_cooldowns(changes, now_ms)
        rows = await self._store.list_cooldowns(now_ms)
        self._board.adopt(rows)  # with our changes: those that others have overwritten come with the next rows
        for change in changes:
            self._board.record_sent(change)
