"""An advisory lock beside a file, for which other processes of ours wait; the end of a process frees it."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

if sys.platform != "win32":  # on Windows, processes rely on the comparison before each write
    import fcntl

log = logging.getLogger(__name__)

POLL_S = 0.05
SUFFIX = ".dragoman-lock"


@asynccontextmanager
async def hold_file_lock(path: Path | None, timeout_s: float) -> AsyncIterator[bool]:
    """Hold the lock beside a file; yield False if others have held it for `timeout_s`.

    Where there can be no lock (no path, a read-only directory, Windows), processes do not wait for each other.
    """
    handle = None if path is None or sys.platform == "win32" else _open(path)
    try:
        yield True if handle is None else await _acquire(handle, timeout_s)
    finally:
        if handle is not None:
            os.close(handle)


def _open(path: Path) -> int | None:
    beside = path.resolve()
    try:
        return os.open(beside.with_name(beside.name + SUFFIX), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        log.debug("no lock beside %s: %s", path, error)
        return None


async def _acquire(handle: int, timeout_s: float) -> bool:
    loop = asyncio.get_running_loop()
    patience = loop.time() + timeout_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if loop.time() > patience:
                return False
        await asyncio.sleep(POLL_S)
