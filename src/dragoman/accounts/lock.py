"""A path comes in; while the lock beside it is held, no other process of ours renews the same credential."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

if sys.platform != "win32":  # there, processes rely on the comparison before each write
    import fcntl

log = logging.getLogger(__name__)

PATIENCE_S = 20.0
POLL_S = 0.05
SUFFIX = ".dragoman-lock"


@asynccontextmanager
async def held(path: Path | None) -> AsyncIterator[None]:
    """Advisory, and not for ever: a lock that cannot be had in time is done without."""
    handle = None if path is None or sys.platform == "win32" else _open(path)
    try:
        if handle is not None:
            await _acquire(handle)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _open(path: Path) -> int | None:
    beside = path.resolve()
    try:
        return os.open(beside.with_name(beside.name + SUFFIX), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        log.debug("no lock beside %s: %s", path, error.strerror)
        return None


async def _acquire(handle: int) -> None:
    loop = asyncio.get_running_loop()
    patience = loop.time() + PATIENCE_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if loop.time() > patience:
                log.warning("another process holds a credential's lock for too long: going on without it")
                return
        await asyncio.sleep(POLL_S)
