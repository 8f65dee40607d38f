"""A disk that can be filled and emptied under a running process: a small tmpfs, or a limit on the size of files."""

import os
import resource
import shutil
import subprocess
from pathlib import Path

WAYS = ["limit"]
NAMESPACE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
SHARED = ["dragoman.db-shm"]  # recreated from the log
MOUNT = 'mount -t tmpfs -o size=16m none "$0" && exec "$@"'


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
    """The disk of a store. `before` is a prefix for the command of the process that uses it."""

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

    def copy_files(self, pid: int, to: Path) -> Path:
        """Copy the files: SQLite does not follow a path into the mounts of another process."""
        shutil.copytree(self._filler(pid).parent, to, dirs_exist_ok=True, ignore=lambda *_: ["filler", *SHARED])
        return to

    def _filler(self, pid: int) -> Path:
        """Return the path in the mounts of the process."""
        return Path(f"/proc/{pid}/root{self.directory}") / "filler"
