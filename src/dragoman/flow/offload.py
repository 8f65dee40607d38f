"""Work on large bodies runs in a thread, so that the event loop goes on serving everybody else.

The interpreter switches between threads every few milliseconds of Python code. One thread for large bodies and one
for huge ones: more would only take turns from the event loop, and a huge body must not hold up the common large ones.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")

LARGE_BYTES = 64 * 1024
HUGE_BYTES = 2 * 1024 * 1024

_large = ThreadPoolExecutor(1, "large-body")
_huge = ThreadPoolExecutor(1, "huge-body")


async def run_off_loop(size: int, work: Callable[[], T]) -> T:
    """Return the result of `work` on so many bytes; at once where they are few."""
    if size <= LARGE_BYTES:
        return work()
    executor = _large if size <= HUGE_BYTES else _huge
    return await asyncio.get_running_loop().run_in_executor(executor, copy_context().run, work)
