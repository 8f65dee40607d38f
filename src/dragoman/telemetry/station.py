"""Outcomes and readings come in; the answer to a scrape goes out, for this process or for all workers."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

from dragoman.net.tasks import spawn
from dragoman.observers import metrics_catalogue as catalogue
from dragoman.observers.metrics import Histogram, Tally
from dragoman.observers.metrics_text import Reading, as_text
from dragoman.telemetry.board import Board, Seat
from dragoman.telemetry.process import Process

log = logging.getLogger(__name__)

PROBE_S = 0.5

Read = Callable[[], Iterable[Reading]]


class Station:
    """Where one process's readings come together."""

    def __init__(self, board: Board | None = None) -> None:
        self.tally = Tally()
        self._lag = Histogram(catalogue.LAG)
        self._sources: list[Read] = [self.tally.readings, Process().readings, self._lag_readings]
        self._seat: Seat | None = None if board is None else board.sit_down()
        self._probing: asyncio.Task[None] | None = None
        self._at_a_loss = False

    def add(self, source: Read) -> None:
        """Asked for its readings at each scrape."""
        self._sources.append(source)

    def start(self) -> None:
        self._probing = spawn(self._probe(), name="loop lag")

    def stop(self) -> None:
        """The last word stays on the board."""
        if self._probing is not None:
            self._probing.cancel()
        self._post()

    def readings(self) -> Iterator[Reading]:
        """This process's own; a source that fails is left out and told."""
        for source in self._sources:
            try:
                yield from source()
            except Exception as bug:
                self._say_once(f"some metrics are missing: {type(bug).__name__} in {source.__qualname__}")

    def scrape(self) -> bytes:
        """What has been told before is never told as less: this process's own readings come from the board, too."""
        if self._seat is None or not self._post():
            return as_text(self.readings())
        return as_text(self._seat.read_all())

    def _post(self) -> bool:
        if self._seat is None:
            return False
        try:
            self._seat.post(self.readings())
        except OSError as error:
            self._say_once(f"metrics tell of one worker only, they cannot be shared: {error}")
            return False
        return True

    def _lag_readings(self) -> Iterator[Reading]:
        yield Reading(catalogue.LAG.name, (), self._lag.values)

    async def _probe(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + PROBE_S
            await asyncio.sleep(PROBE_S)
            self._lag.add(max(0.0, clock() - due))
            self._post()

    def _say_once(self, what: str) -> None:
        if not self._at_a_loss:
            self._at_a_loss = True
            log.warning("%s", what)
