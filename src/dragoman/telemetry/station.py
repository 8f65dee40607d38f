"""Outcomes and readings come in; the answer to a scrape goes out, for this process or for all workers."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from dragoman.hub.outcome import OutcomeObserver
from dragoman.net.tasks import place_of, spawn
from dragoman.observers import metrics_catalogue as catalogue
from dragoman.observers.metrics import Histogram, Tally
from dragoman.observers.metrics_text import Reading, as_text
from dragoman.telemetry.board import Board, Seat
from dragoman.telemetry.process import Process

if TYPE_CHECKING:
    from dragoman.telemetry.exporter import Exporter
    from dragoman.telemetry.otlp import Address

log = logging.getLogger(__name__)

PROBE_S = 0.5
RARELY = 50  # times as long as a post took passes before the next: many models must not cost many requests
EXPORTING = tuple(f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT" for signal in ("", "TRACES_", "METRICS_"))

Read = Callable[[], Iterable[Reading]]


class Station:
    """Where one process's readings come together."""

    def __init__(self, board: Board | None = None, exporter: "Exporter | None" = None) -> None:
        self.tally = Tally()
        self._lag = Histogram(catalogue.LAG)
        self._sources: list[Read] = [self.tally.readings, Process().readings, self._lag_readings]
        self._seat: Seat | None = None if board is None else board.sit_down()
        self._exporter = exporter
        if exporter is not None:
            self.add(exporter.readings)
        self._probing: asyncio.Task[None] | None = None
        self._at_a_loss = False

    def add(self, source: Read) -> None:
        """Asked for its readings at each scrape."""
        self._sources.append(source)

    @property
    def observers(self) -> list[OutcomeObserver]:
        return [self.tally.observe] if self._exporter is None else [self.tally.observe, self._exporter.observe]

    def start(self, address: "Address") -> None:
        """`address` tells where a provider is reached."""
        self._probing = spawn(self._probe(), name="loop lag")
        if self._exporter is not None:
            self._exporter.start(address)

    async def stop(self) -> None:
        """The last word stays on the board, and goes to the collector if that is quick."""
        if self._probing is not None:
            self._probing.cancel()
        self._post()
        if self._exporter is not None:
            self._exporter.offer(list(self.readings()))
            await asyncio.to_thread(self._exporter.stop)

    def readings(self) -> Iterator[Reading]:
        """This process's own; a source that fails is left out and told."""
        for source in self._sources:
            try:
                yield from source()
            except Exception as bug:
                self._say_once(f"some metrics are missing: {place_of(bug)}")

    async def scrape(self) -> bytes:
        """What has been told before is never told as less: this process's own readings come from the board, too."""
        if self._seat is None or not self._post():
            return await asyncio.to_thread(as_text, list(self.readings()))
        seat = self._seat
        return await asyncio.to_thread(lambda: as_text(seat.read_all()))

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
        export_at = clock() + (0.0 if self._exporter is None else self._exporter.interval_s)
        post_at = 0.0
        while True:
            due = clock() + PROBE_S
            await asyncio.sleep(PROBE_S)
            now = clock()
            self._lag.add(max(0.0, now - due))
            if now >= post_at:
                self._post()
                post_at = clock() + (clock() - now) * RARELY
            if self._exporter is not None and now >= export_at:
                export_at = now + self._exporter.interval_s
                self._exporter.offer(list(self.readings()))

    def _say_once(self, what: str) -> None:
        if not self._at_a_loss:
            self._at_a_loss = True
            log.warning("%s", what)


def open_station(environ: Mapping[str, str], board: Board | None = None) -> Station:
    """With an export where OpenTelemetry's variables name a collector; nothing of it is loaded otherwise."""
    if not any(environ.get(name) for name in EXPORTING):
        return Station(board)
    from dragoman.telemetry.exporter import exporter_for

    return Station(board, exporter_for(environ))
