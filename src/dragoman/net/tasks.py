"""Background tasks, which are neither garbage-collected early nor fail without a log line."""

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from typing import TypeVar

from dragoman.net.errors import describe_fault

T = TypeVar("T")

_log = logging.getLogger(__name__)
_alive: set[asyncio.Task[object]] = set()


def spawn(coroutine: Coroutine[object, object, T], *, name: str) -> asyncio.Task[T]:
    """Run a coroutine in the background; a failure is logged even if the task is never awaited."""
    task = asyncio.create_task(coroutine, name=name)
    _alive.add(task)  # the event loop itself keeps only a weak reference
    task.add_done_callback(_settle)
    return task


def spawn_apart(coroutine: Coroutine[object, object, T], *, name: str) -> asyncio.Task[T]:
    """Run a coroutine in the background that belongs to no request, though one may begin it; no log line names it."""
    return Context().run(spawn, coroutine, name=name)


def _settle(task: asyncio.Task[object]) -> None:
    _alive.discard(task)
    fault = None if task.cancelled() else task.exception()
    if fault is not None:
        _log.error("task %s failed: %s", task.get_name(), describe_fault(fault))
