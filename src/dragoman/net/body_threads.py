"""Work on large bodies in a thread.

The interpreter switches between threads every few milliseconds of Python code, but not within one call into C, such
as decoding a body. The event loop needs the interpreter again for each socket that it reads: beside a thread that makes
one such call after the other, a single turn of the loop would wait for many of them. Therefore a thread gets its next
piece of work from the loop, which has by then served all sockets that were ready.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

LARGE_BYTES = 64 * 1024  # of a body that is worked on in a thread
SCANNED_BYTES = 256 * 1024  # of one that is looked through in a thread; less takes half a millisecond at most
JOINED_BYTES = 512 * 1024  # of one that is translated in several pieces; less takes as long as a few of its pieces
HUGE_BYTES = 2 * 1024 * 1024  # in another thread: a huge body must not hold up the common large ones
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


class SerialThread:
    """A thread, and the lock that a loop holds while the thread works for it."""

    def __init__(self, name: str, prepare: Callable[[], None] | None = None) -> None:
        self._executor = ThreadPoolExecutor(1, name, prepare)
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which begins once the thread has done what this loop gave it before."""
        loop = asyncio.get_running_loop()
        lock = self._locks.get(loop)
        if lock is None:
            lock = self._locks[loop] = asyncio.Lock()
        async with lock:
            return await loop.run_in_executor(self._executor, copy_context().run, work)


def _return_freed_memory() -> None:
    """Make glibc return freed blocks of this size to the system; by default it keeps a hundred megabytes of them."""
    import ctypes  # costs half a megabyte, and most gateways never see a huge body

    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            libc.mallopt(option, HUGE_BYTES)


_large = SerialThread("large-body")
_huge = SerialThread("huge-body", _return_freed_memory)


async def run_off_loop(size: int, work: Callable[[], T]) -> T:
    """Return the result of `work` on this number of bytes; few bytes are handled on the event loop."""
    if size <= LARGE_BYTES:
        return work()
    return await (_large if size <= HUGE_BYTES else _huge).run(work)
