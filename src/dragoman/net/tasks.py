"""Work beside the running task: in background tasks, and on large bodies in a thread.

A background task is neither garbage-collected early, nor does it fail without a log line.

The interpreter switches between threads every few milliseconds of Python code, but not within one call into C, such
as decoding a body. The event loop needs the interpreter anew for each socket that it reads: beside a thread that makes
one such call after the other, a single turn of the loop would wait for many of them. Therefore a thread gets its next
piece of work from the loop, which has by then served all sockets that were ready.
"""

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

LARGE_BYTES = 64 * 1024  # of a body that is worked on in a thread
HUGE_BYTES = 2 * 1024 * 1024  # in another thread: a huge body must not hold up the common large ones
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h

_log = logging.getLogger(__name__)
_alive: set[asyncio.Task[object]] = set()

# The id of the request that the running code works for, for log lines. Each request has a task of its own, and so its
# own value, which tasks that it starts inherit.
request_id: ContextVar[str] = ContextVar("request_id", default="")


def spawn(coroutine: Coroutine[object, object, T], *, name: str) -> asyncio.Task[T]:
    """Run a coroutine in the background; a failure is logged even if the task is never awaited."""
    task = asyncio.create_task(coroutine, name=name)
    _alive.add(task)  # the event loop itself keeps only a weak reference
    task.add_done_callback(_settle)
    return task


def describe_fault(fault: BaseException) -> str:
    """Return the type of an exception and where it was raised, without its text, which may quote a secret."""
    frames = traceback.extract_tb(fault.__traceback__)[-4:]
    path = " > ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames)
    return f"{type(fault).__name__} at {path or 'unknown place'}"


def _settle(task: asyncio.Task[object]) -> None:
    _alive.discard(task)
    fault = None if task.cancelled() else task.exception()
    if fault is not None:
        _log.error("task %s failed: %s", task.get_name(), describe_fault(fault))


class Worker:
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


_large = Worker("large-body")
_huge = Worker("huge-body", _return_freed_memory)


async def run_off_loop(size: int, work: Callable[[], T]) -> T:
    """Return the result of `work` on this number of bytes; few bytes are handled on the event loop."""
    if size <= LARGE_BYTES:
        return work()
    return await (_large if size <= HUGE_BYTES else _huge).run(work)
