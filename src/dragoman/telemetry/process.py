"""Nothing comes in; readings of the running process go out: its memory, its files, its age, what it is."""

import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from dragoman import __version__
from dragoman.observers import metrics_catalogue as catalogue
from dragoman.observers.metrics_text import Reading

STATM = Path("/proc/self/statm")
FILES = (Path("/proc/self/fd"), Path("/dev/fd"))
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Process:
    """The process that made this."""

    def __init__(self) -> None:
        self._started = time.time()

    def readings(self) -> Iterator[Reading]:
        yield Reading(catalogue.WORKERS.name, (), (1,))
        yield Reading(catalogue.BUILD.name, (__version__, platform.python_version()), (1,))
        yield Reading(catalogue.STARTED.name, (), (round(self._started, 3),))
        yield Reading(catalogue.MEMORY.name, (), (_resident_bytes(),))
        files = _open_files()
        if files is not None:
            yield Reading(catalogue.FILES.name, (), (files,))


def _resident_bytes() -> int:
    try:
        return int(STATM.read_text().split()[1]) * PAGE_BYTES
    except OSError:  # no Linux: the most that it ever was must do
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _open_files() -> int | None:
    for place in FILES:
        try:
            return len(os.listdir(place)) - 1  # less the one that lists them
        except OSError:
            continue
    return None
