"""Lines come in; they go out to a stream as fast as somebody takes them, and nobody here waits for that."""

import os
import select
import stat
from typing import TextIO

PIECE = select.PIPE_BUF  # what is ready takes so much at once, and does not mix it with what other processes write
WHOLE = 1 << 20
MAX_REST = 1 << 20  # bytes that may wait; more lines are lost


class Outlet:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rest = b""
        self.lost = 0  # lines, since somebody last asked
        try:
            self._descriptor: int | None = stream.fileno()
        except (OSError, ValueError):
            self._descriptor = None  # no file at all: it takes everything
        self._piece = PIECE
        if self._descriptor is not None and stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            self._piece = WHOLE

    @property
    def waits(self) -> bool:
        return bool(self._rest)

    def write(self, lines: list[str], patience_s: float = 0.0) -> None:
        """What cannot be written at all is lost: a full disk is no reason to serve nobody."""
        try:
            if self._descriptor is None:
                self._stream.write(_text(lines))
                self._stream.flush()
                return
            if len(self._rest) < MAX_REST:
                self._rest += _text(lines).encode(errors="backslashreplace")
            else:
                self.lost += len(lines)
            self._pour(self._descriptor, patience_s)
        except (OSError, ValueError):
            self._rest = b""

    def _pour(self, descriptor: int, patience_s: float) -> None:
        data, start = self._rest, 0
        ready = select.poll()
        ready.register(descriptor, select.POLLOUT)
        while start < len(data) and ready.poll(patience_s * 1000):
            end = data.rfind(b"\n", start, start + self._piece) + 1 or start + self._piece
            try:
                start += os.write(descriptor, data[start:end])
            except BlockingIOError:
                break
        self._rest = data[start:]


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n" if lines else ""
