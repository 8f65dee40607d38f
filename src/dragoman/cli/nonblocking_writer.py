"""Write lines to a stream without waiting for a slow reader; lines beyond a bound are lost and counted."""

import os
import select
import stat
from typing import TextIO

PIPE_PIECE_BYTES = select.PIPE_BUF  # a pipe that is ready takes this much, unmixed with other processes' lines
FILE_PIECE_BYTES = 1 << 20
MAX_PENDING_BYTES = 1 << 20


class NonblockingWriter:
    """Writes what the stream takes now and keeps the rest for the next call."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._pending = b""
        self.lost = 0  # lines; the owner resets it
        try:
            self._descriptor: int | None = stream.fileno()
        except (OSError, ValueError):
            self._descriptor = None  # not a file: it takes everything
        self._piece_bytes = PIPE_PIECE_BYTES
        if self._descriptor is not None and stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            self._piece_bytes = FILE_PIECE_BYTES

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def write(self, lines: list[str], timeout_s: float = 0.0) -> None:
        """Write lines; those that cannot be written at all are lost, since a full disk must not stop the gateway."""
        try:
            if self._descriptor is None:
                self._stream.write(_join(lines))
                self._stream.flush()
                return
            if len(self._pending) < MAX_PENDING_BYTES:
                self._pending += _join(lines).encode(errors="backslashreplace")
            else:
                self.lost += len(lines)
            self._write_pending(self._descriptor, timeout_s)
        except (OSError, ValueError):
            self._pending = b""

    def _write_pending(self, descriptor: int, timeout_s: float) -> None:
        data, start = self._pending, 0
        ready = select.poll()
        ready.register(descriptor, select.POLLOUT)
        while start < len(data) and ready.poll(timeout_s * 1000):
            end = data.rfind(b"\n", start, start + self._piece_bytes) + 1 or start + self._piece_bytes
            try:
                start += os.write(descriptor, data[start:end])
            except BlockingIOError:
                break
        self._pending = data[start:]


def _join(lines: list[str]) -> str:
    return "\n".join(lines) + "\n" if lines else ""
