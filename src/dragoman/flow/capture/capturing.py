"""Requests come in; those that are to be written down are recorded, and handed to the writer at the end."""

from contextlib import suppress

from msgspec import Struct

from dragoman.accounts.keys import presented_keys
from dragoman.config.settings import Debug
from dragoman.flow.capture.directory import Captures, captures_of
from dragoman.flow.capture.recording import Recording
from dragoman.flow.capture.writer import CaptureWriter, Job, Room
from dragoman.net.exchange import Exchange

MEMORY_BYTES = 128 * 1024 * 1024  # for all recordings together, under way or waiting to be written


class Counts(Struct, frozen=True):
    written: int
    dropped: int


class Capturing:
    """What is off costs nothing; what is on never holds up a stream."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._room = Room(memory_bytes)
        self._writer = CaptureWriter(self._room)
        self._settled: tuple[Debug, Captures] | None = None

    def begin(self, exchange: Exchange, began: float, debug: Debug) -> Recording | None:
        if debug.capture == "off":
            return None
        recording = Recording(exchange, began, self._room, lambda over: self._finished(over, debug))
        recording.secrets.update(presented_keys(exchange.headers, exchange.query))
        exchange.listener = recording
        return recording

    def _finished(self, recording: Recording, debug: Debug) -> None:
        if debug.capture == "errors" and not recording.failed:
            self._room.give_back(recording.size)
            return
        self._writer.put(Job(recording.capture, frozenset(recording.secrets), self._place(debug), recording.size))

    def expire(self, debug: Debug) -> None:
        """Removes what is too old, also where nothing new is captured; not for the event loop."""
        with suppress(OSError):
            captures_of(debug).prune()

    def _place(self, debug: Debug) -> Captures:
        """The same for as long as the settings are."""
        if self._settled is None or self._settled[0] != debug:
            self._settled = (debug, captures_of(debug))
        return self._settled[1]

    @property
    def counts(self) -> Counts:
        return Counts(self._writer.written, self._writer.dropped)

    @property
    def room_left(self) -> int:
        """Bytes for more recordings."""
        return self._room.left

    def close(self) -> None:
        """Waits a little for what is still to be written; not for the event loop."""
        self._writer.close()
