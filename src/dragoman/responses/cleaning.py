"""Remove stored responses that have expired or exceed the bounds, a few at a time."""

import asyncio
import logging
import time
from collections.abc import Callable

from dragoman.config.settings import ResponsesSettings
from dragoman.store import Store, StoreError
from dragoman.store.response_rows import Bounds, ResponseStore
from dragoman.store.run_rows import RunStore

log = logging.getLogger(__name__)

EVERY_S = 300.0
BATCH = 100  # responses in one transaction, which other users of the store wait for
PAUSE_S = 0.05
EVENTS_KEPT_S = 600  # after the end of a response
MB = 1024 * 1024


async def remove_old_responses_forever(
    store: Store, settings: Callable[[], ResponsesSettings], every_s: float = EVERY_S
) -> None:
    while True:
        try:
            await remove_old_responses(store.responses, settings())
            await remove_old_events(store.runs)
        except StoreError as error:
            log.warning("old responses cannot be removed now: %s", error)
        await asyncio.sleep(every_s)


async def remove_old_events(runs: RunStore) -> int:
    """Remove the events of background responses that ended some time ago; return of how many. The responses stay."""
    removed = 0
    while now := await runs.remove_events(int(time.time()) - EVENTS_KEPT_S, BATCH):
        removed += now
        await asyncio.sleep(PAUSE_S)
    return removed


async def remove_old_responses(store: ResponseStore, settings: ResponsesSettings) -> int:
    """Remove all that is too old or too much; return how many responses."""
    bounds = Bounds(settings.max_per_key, int(settings.max_mb_per_key * MB), int(settings.max_mb * MB))
    removed = 0
    while now := await store.remove_responses(int(time.time()), bounds, BATCH):
        removed += now
        await asyncio.sleep(PAUSE_S)
    if removed:
        log.info("removed %d stored responses that had expired or exceeded the bounds", removed)
    return removed
