"""Directories for Unix sockets."""

import os
from contextlib import suppress

MAX_SOCKET_PATH = 100  # bytes; macOS allows 103


def make_socket_directory(name: str) -> str:
    """Make a directory that only this user can enter, and in which a socket of this name has a short enough path.

    Raises OSError if neither the directory for temporary files nor /tmp can be used.
    """
    import tempfile  # 1 MB, only where processes talk to each other

    for parent in (tempfile.gettempdir(), "/tmp"):
        with suppress(OSError):
            directory = tempfile.mkdtemp(prefix="dragoman-", dir=parent)
            if len(os.fsencode(f"{directory}/{name}")) <= MAX_SOCKET_PATH:
                return directory
            os.rmdir(directory)
    raise OSError("no directory for sockets can be made; set TMPDIR to a short path")
