"""A disk that can be filled and emptied under a running process: a small tmpfs of its own, or a limit on its files."""

import os
import resource
import shutil
import subprocess
from pathlib import Path

WAYS = ["limit"]
NAMESPACE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
SHARED = ["dragoman.db-shm"]  # made anew from the log
MOUNT = 'mount -t tmpfs -o size=2m none "$0" && exec "$@"'


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    try:
        return subprocess.run([*NAMESPACE, "sh", "-c", MOUNT, "/mnt", "true"], capture_output=True).returncode == 0
    except OSError:
        return False


if _can_mount():
    WAYS.append("tmpfs")


class Disk:
    """What the store is on. `before` goes before the command of the process that uses it."""

    def __init__(self, way: str, directory: Path) -> None:
        self.directory = directory / "disk"
        self.directory.mkdir()
        self.before = [*NAMESPACE, "sh", "-c", MOUNT, str(self.directory)] if way == "tmpfs" else []
        self._way = way

    def fill(self, pid: int) -> None:
        if self._way == "limit":
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            return
        with self._filler(pid).open("wb", buffering=0) as filler:
            try:
                while filler.write(bytes(4096)):
                    pass
            except OSError:
                return

    def empty(self, pid: int) -> None:
        if self._way == "limit":
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        else:
            self._filler(pid).unlink()

    def copied(self, pid: int, to: Path) -> Path:
        """The files, where they can be opened: SQLite would not follow the path into another's mounts."""
        shutil.copytree(self._filler(pid).parent, to, dirs_exist_ok=True, ignore=lambda *_: ["filler", *SHARED])
        return to

    def _filler(self, pid: int) -> Path:
        """As the process sees the directory: the mount is its own."""
        return Path(f"/proc/{pid}/root{self.directory}") / "filler"
