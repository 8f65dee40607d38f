"""A file's new content comes in; the file has it whole or is as it was, whatever happens in between."""

import os
import tempfile
from pathlib import Path

MODE = 0o600


def replace(path: Path, content: bytes, expected: bytes | None) -> bool:
    """Put the content in place of exactly `expected` (None: of no file); False where somebody else has written."""
    path = path.resolve()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.chmod(temporary, MODE)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # The disk took its time; whoever wrote meanwhile keeps what they wrote.
        if content_of(path) != expected:
            os.unlink(temporary)
            return False
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)
    return True


def content_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _sync_directory(path: Path) -> None:
    """So that the rename survives a power cut; not every system can."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
