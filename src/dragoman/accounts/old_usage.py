"""How long rows of usage are wanted comes in; what is older goes out of the store, a little at a time."""

import asyncio
import logging
import time
from collections.abc import Callable

from dragoman.store import Store, StoreError

log = logging.getLogger(__name__)

DAY_MS = 86_400_000
EVERY_S = 3600.0
BATCH = 1000  # rows in one transaction: whoever else needs the store waits no longer than for these
BREATH_S = 0.05


async def watch_old_usage(store: Store, days: Callable[[], float | None], every_s: float = EVERY_S) -> None:
    """Looks for it again and again; where all is to be kept (None), nothing is asked of the store."""
    while True:
        kept = days()
        if kept is not None:
            try:
                await remove_old_usage(store, kept)
            except StoreError as error:
                log.warning("usage of more than %g days ago cannot be removed now: %s", kept, error)
        await asyncio.sleep(every_s)


async def remove_old_usage(store: Store, days: float) -> None:
    before_ms = int(time.time() * 1000 - days * DAY_MS)
    removed = 0
    while now := await store.remove_usage(before_ms, BATCH):
        removed += now
        await asyncio.sleep(BREATH_S)
    if removed:
        log.info("%d rows of usage of more than %g days ago are removed", removed, days)
