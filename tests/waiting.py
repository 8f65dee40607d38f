"""Wait for an event that another thread, task or process brings about."""

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 60.0  # keeps a test from hanging, and is no statement about speed
_PAUSE_S = 0.005


def wait_until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Return as soon as the condition is true; fail the test if it is not within `patience_s`."""
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, f"did not become true within {patience_s} s"
        time.sleep(_PAUSE_S)


async def wait_until_async(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Return as soon as the condition is true, and let other tasks run meanwhile."""
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, f"did not become true within {patience_s} s"
        await asyncio.sleep(_PAUSE_S)
