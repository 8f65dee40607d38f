"""Log records come in; one line each goes to stderr, as text or JSON, with nothing in it that looks like a secret."""

import asyncio
import logging
import sys
from typing import TextIO

import msgspec

from dragoman.cli.outlet import Outlet
from dragoman.framing.redaction import MAX_LINE_BYTES, cut_text, one_line, redact
from dragoman.net.tasks import describe_fault, request_id
from dragoman.observers.request_log import format_time

log = logging.getLogger(__name__)

OURS = "dragoman"
BATCH_S = 0.05  # how long lines may wait for company while there are many
AGAIN_S = 0.5  # after which a reader that has fallen behind is looked at again
MOST_LOOKED_AT = 16 * 1024  # bytes of a message: secrets are looked for in more than is shown
LAST_PATIENCE_S = 2.0  # with a reader that has fallen behind, at the end


class Line(logging.Formatter):
    """The whole line passes the redaction, whatever part of the record a secret may sit in."""

    def format(self, record: logging.LogRecord) -> str:
        message = cut_text(_message(record), MOST_LOOKED_AT)
        line = one_line(self.worded(record, message))
        return line if len(line) * 4 <= MAX_LINE_BYTES else self.shortened(record, message, line)

    def shortened(self, record: logging.LogRecord, message: str, line: str) -> str:
        return cut_text(line, MAX_LINE_BYTES)

    def worded(self, record: logging.LogRecord, message: str) -> str:
        request = request_id.get()
        said = f"{request} {message}" if request else message
        return f"{format_time(record.created)} {record.levelname.lower()} {record.name}: {said}"


class JsonLine(Line):
    def shortened(self, record: logging.LogRecord, message: str, line: str) -> str:
        """Its message is cut until the whole fits, so that it stays JSON."""
        most = MAX_LINE_BYTES
        while len(line.encode(errors="backslashreplace")) > MAX_LINE_BYTES and most > 1:
            most //= 2
            line = one_line(self.worded(record, cut_text(message, most)))
        return line

    def worded(self, record: logging.LogRecord, message: str) -> str:
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


class Remark(Line):
    """For commands that are no servers: no time, no logger."""

    def worded(self, record: logging.LogRecord, message: str) -> str:
        return f"{record.levelname.capitalize()}: {message}"


class Gathered(logging.Handler):
    """Lines that come close together go out in one write; a warning or worse waits for nothing."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._outlet = Outlet(stream)
        self._lines: list[str] = []
        self._written_at = 0.0  # by the loop's clock
        self._again_at = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            if record.levelno > logging.INFO:
                self._lines.append(line)
                self.flush()
            else:
                self.tell(line)
        except Exception:
            self.handleError(record)

    def tell(self, line: str) -> None:
        """A line that needs no more formatting: the first after a while goes out after this turn of the loop."""
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

    def flush(self, patience_s: float = 0.0) -> None:
        """As much as is taken now, or within so long; the rest waits for the next time."""
        self.acquire()
        try:
            lines, self._lines = self._lines, []
            if lines or self._outlet.waits:
                self._outlet.write(lines, patience_s)
            if self._outlet.waits:
                self._try_again()
            elif self._outlet.lost:
                self._confess()
                self._outlet.write([], patience_s)  # a reader who has just caught up may have no room for it yet
        finally:
            self.release()

    def drain(self) -> None:
        """The end: a reader that has fallen behind is waited for, but not for ever."""
        self.flush(LAST_PATIENCE_S)

    def _try_again(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if loop.time() >= self._again_at:
            self._again_at = loop.time() + AGAIN_S
            loop.call_later(AGAIN_S, self.flush)

    def _confess(self) -> None:
        lost, self._outlet.lost = self._outlet.lost, 0
        log.warning("%d lines of the log are lost: nobody took them", lost)


def log_to_stderr(formatter: logging.Formatter, level: int) -> Gathered:
    handler = Gathered(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.raiseExceptions = False  # a record that cannot be written is not worth a traceback
    # No line tells these, so no record needs to look for them; nor for the place in the code.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    logging.getLogger(OURS).setLevel(level)
    return handler


def _message(record: logging.LogRecord) -> str:
    message = record.getMessage().encode(errors="backslashreplace").decode()
    fault = record.exc_info[1] if record.exc_info else None
    return f"{message}: {describe_fault(fault)}" if fault is not None else message
