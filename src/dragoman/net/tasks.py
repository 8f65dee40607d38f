"""Background tasks that are neither garbage-collected early nor fail without a log line."""

import asyncio
import logging
import traceback
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_log = logging.getLogger(__name__)
_alive: set[asyncio.Task[object]] = set()

# The id of the request that the running code works for, for log lines. Each exchange has a task of its own, and so its
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
    log_fault(task)


def log_fault(task: asyncio.Task[T]) -> None:
    """Log the exception that a task has ended with, if any; a cancelled task has none."""
    if task.cancelled():
        return
    fault = task.exception()
    if fault is not None:
        _log.error("task %s failed: %s", task.get_name(), describe_fault(fault))
