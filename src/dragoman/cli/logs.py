"""Log records come in; one line each goes to stderr, as text or JSON, with nothing in it that looks like a secret."""

import asyncio
import logging
import sys
from datetime import UTC, datetime
from functools import lru_cache
from typing import TextIO

import msgspec

from dragoman.framing.redact import redacted
from dragoman.net.tasks import place_of

OURS = "dragoman"
SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Line(logging.Formatter):
    """The whole line passes the redaction, whatever part of the record a secret may sit in."""

    def format(self, record: logging.LogRecord) -> str:
        return one_line(self.worded(record))

    def worded(self, record: logging.LogRecord) -> str:
        return f"{_moment(record)} {record.levelname.lower()} {record.name}: {_message(record)}"


class JsonLine(Line):
    def worded(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(_message(record)),
        }
        return msgspec.json.encode(fields).decode()


class Remark(Line):
    """For commands that are no servers: no time, no logger."""

    def worded(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.capitalize()}: {_message(record)}"


class PerTurn(logging.StreamHandler[TextIO]):
    """What one turn of the event loop has to tell goes out in one write; a warning or worse never waits for that."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record))
            if record.levelno > logging.INFO:
                self.flush()
            elif len(self._lines) == 1:
                self._flush_after_this_turn()
        except Exception:
            self.handleError(record)

    def _flush_after_this_turn(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
        else:
            loop.call_soon(self.flush)

    def flush(self) -> None:
        self.acquire()
        try:
            lines, self._lines = self._lines, []
            self.stream.write("".join(f"{line}\n" for line in lines))
            super().flush()
        finally:
            self.release()


def one_line(text: str) -> str:
    """A line break in a record would let a client write log lines of its own."""
    text = redacted(text)
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def log_to_stderr(formatter: logging.Formatter, level: int) -> None:
    handler = PerTurn(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.raiseExceptions = False  # a record that cannot be written is not worth a traceback
    # No line tells these, so no record needs to look for them; nor for the place in the code.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    logging.getLogger(OURS).setLevel(level)


def _escaped(character: str) -> str:
    """Valid inside a JSON string too."""
    if character in SHORT:
        return SHORT[character]
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _moment(record: logging.LogRecord) -> str:
    return f"{_second(int(record.created))}.{int(record.msecs):03}Z"


@lru_cache(maxsize=2)
def _second(since_epoch: int) -> str:
    return datetime.fromtimestamp(since_epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _message(record: logging.LogRecord) -> str:
    message = record.getMessage().encode(errors="backslashreplace").decode()
    fault = record.exc_info[1] if record.exc_info else None
    return f"{message}: {place_of(fault)}" if fault is not None else message
