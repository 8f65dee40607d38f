"""Tell whether the configuration file has changed since it was read."""

from collections.abc import Callable
from pathlib import Path

from dragoman.config.problems import ConfigError

# Path, time of the last change, size and inode; None where there is no file.
Stamp = tuple[Path, int, int, int] | None


def stamp_file(find: Callable[[], Path | None]) -> Stamp:
    """Return the stamp of the file that `find` finds. Take it before reading: a later edit then changes it."""
    try:
        path = find()
        status = None if path is None else path.stat()
    except (ConfigError, OSError):
        return None
    return None if path is None or status is None else (path, status.st_mtime_ns, status.st_size, status.st_ino)
