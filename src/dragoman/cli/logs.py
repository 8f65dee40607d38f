"""The log on stderr: a line for each record, as text or JSON, redacted, written without waiting for a slow reader."""

import asyncio
import logging
import os
import select
import stat
import sys
from typing import TextIO

import msgspec

from dragoman.net.current_request import request_id
from dragoman.net.errors import describe_fault
from dragoman.operate.request_log import format_time
from dragoman.translate.framing.redaction import MAX_LINE_BYTES, cut_text, one_line, redact

log = logging.getLogger(__name__)

ROOT_LOGGER = "dragoman"
BATCH_S = 0.05  # how long lines wait for more while there are many
RETRY_S = 0.5  # until pending lines are written again
MAX_MESSAGE_BYTES = 16 * 1024  # more than a line shows, so that a secret at its end is redacted whole
DRAIN_S = 2.0  # how long pending lines may take at the end
PIPE_PIECE_BYTES = select.PIPE_BUF  # a pipe that is ready takes this much, unmixed with other processes' lines
FILE_PIECE_BYTES = 1 << 20
MAX_PENDING_BYTES = 1 << 20


class TextFormatter(logging.Formatter):
    """Redacts the whole line, since any part of a record may contain a secret."""

    def format(self, record: logging.LogRecord) -> str:
        message = cut_text(_message(record), MAX_MESSAGE_BYTES)
        line = one_line(self.compose(record, message))
        return line if len(line) * 4 <= MAX_LINE_BYTES else self.shorten(record, message, line)

    def shorten(self, record: logging.LogRecord, message: str, line: str) -> str:
        return cut_text(line, MAX_LINE_BYTES)

    def compose(self, record: logging.LogRecord, message: str) -> str:
        request = request_id.get()
        text = f"{request} {message}" if request else message
        return f"{format_time(record.created)} {record.levelname.lower()} {record.name}: {text}"


class JsonFormatter(TextFormatter):
    def shorten(self, record: logging.LogRecord, message: str, line: str) -> str:
        """Cut the message until the line fits, so that it stays JSON."""
        limit = MAX_LINE_BYTES
        while len(line.encode(errors="backslashreplace")) > MAX_LINE_BYTES and limit > 1:
            limit //= 2
            line = one_line(self.compose(record, cut_text(message, limit)))
        return line

    def compose(self, record: logging.LogRecord, message: str) -> str:
        fields = {
            "time": format_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(message),
        }
        request = request_id.get()
        if request:
            fields["request_id"] = request
        return msgspec.json.encode(fields).decode()


class NoteFormatter(TextFormatter):
    """For commands other than `serve`: no time, no logger."""

    def compose(self, record: logging.LogRecord, message: str) -> str:
        return f"{record.levelname.capitalize()}: {message}"


class BatchingHandler(logging.Handler):
    """Writes lines that come close together in one batch; a warning or an error is written at once."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._writer = NonblockingWriter(stream)
        self._lines: list[str] = []
        self._written_at = 0.0  # by the loop's clock
        self._retry_at = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            if record.levelno > logging.INFO:
                self._lines.append(line)
                self.flush()
            else:
                self.write(line)
        except Exception:
            self.handleError(record)

    def write(self, line: str) -> None:
        """Write a formatted line: the first after a while at the end of this turn of the loop, others in a batch."""
        self._lines.append(line)
        if len(self._lines) > 1:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            return
        now = loop.time()
        if now - self._written_at >= BATCH_S:
            self._written_at = now
            loop.call_soon(self.flush)
        else:
            self._written_at = now + BATCH_S
            loop.call_later(BATCH_S, self.flush)

    def flush(self, timeout_s: float = 0.0) -> None:
        """Write as much as the reader takes now or within `timeout_s`; the rest is kept for the next time."""
        self.acquire()
        try:
            lines, self._lines = self._lines, []
            if lines or self._writer.has_pending:
                self._writer.write(lines, timeout_s)
            if self._writer.has_pending:
                self._schedule_retry()
            elif self._writer.lost:
                lost, self._writer.lost = self._writer.lost, 0
                log.warning("%d lines of the log were lost: the reader of stderr is too slow", lost)
                self._writer.write([], timeout_s)  # the reader may have no room for it yet
        finally:
            self.release()

    def drain(self) -> None:
        """Write what is pending at the end, for at most DRAIN_S."""
        self.flush(DRAIN_S)

    def _schedule_retry(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if loop.time() >= self._retry_at:
            self._retry_at = loop.time() + RETRY_S
            loop.call_later(RETRY_S, self.flush)


def log_to_stderr(formatter: logging.Formatter, level: int) -> BatchingHandler:
    handler = BatchingHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.raiseExceptions = False  # a record that cannot be written is not worth a traceback
    # No line contains these or the place in the code, so records need not look them up.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    logging.getLogger(ROOT_LOGGER).setLevel(level)
    return handler


def _message(record: logging.LogRecord) -> str:
    message = record.getMessage().encode(errors="backslashreplace").decode()
    fault = record.exc_info[1] if record.exc_info else None
    return f"{message}: {describe_fault(fault)}" if fault is not None else message


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
