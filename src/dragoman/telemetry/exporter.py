"""Outcomes and readings come in and are only put aside; a thread makes spans and metrics of them for a collector."""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping

from dragoman import __version__
from dragoman.hub.outcome import Outcome
from dragoman.observers import metrics_catalogue as catalogue
from dragoman.observers.metrics_text import Reading
from dragoman.telemetry import otlp
from dragoman.telemetry.collector import Collector, Refusal, Unusable, collector_for, milliseconds, resource_of

log = logging.getLogger(__name__)

MAX_WAITING = 2048
MAX_BATCH = 512
GOODBYE_S = 2.0  # for what still waits when the gateway stops


class Exporter:
    """An observer. What the collector cannot take in time is dropped and counted."""

    def __init__(self, traces: Collector | None, metrics: Collector | None, environ: Mapping[str, str]) -> None:
        self._traces = traces
        self._metrics = metrics
        self._address: otlp.Address = lambda provider: None
        instance = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._resource = otlp.resource_message(resource_of(environ, __version__, instance))
        self._scope = otlp.scope_message("dragoman", __version__)
        self._began_ns = time.time_ns()
        self._pause_s = milliseconds(environ.get("OTEL_BSP_SCHEDULE_DELAY", ""), 5_000)
        self.interval_s = milliseconds(environ.get("OTEL_METRIC_EXPORT_INTERVAL", ""), 60_000)
        self._outcomes: deque[Outcome] = deque()
        self._readings: list[Reading] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="OTLP export", daemon=True)
        self._troubled: set[str] = set()  # collectors that took nothing the last time
        self._sent = 0
        self._overflowed = 0  # counted by the event loop,
        self._given_up = 0  # and these by the thread

    def start(self, address: otlp.Address) -> None:
        self._address = address
        self._thread.start()

    def stop(self) -> None:
        """Blocks for as long as a goodbye may take, and no longer."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(GOODBYE_S)

    def observe(self, outcome: Outcome) -> None:
        if self._traces is None:
            return
        if len(self._outcomes) < MAX_WAITING:
            self._outcomes.append(outcome)
        else:
            self._overflowed += 1

    def offer(self, readings: list[Reading]) -> None:
        """The latest stand for all before them."""
        self._readings = readings

    def readings(self) -> Iterator[Reading]:
        yield Reading(catalogue.SPANS_SENT.name, (), (self._sent,))
        yield Reading(catalogue.SPANS_DROPPED.name, (), (self._overflowed + self._given_up,))

    def _run(self) -> None:
        while not self._stopping.wait(self._pause_s):
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        try:
            while self._outcomes and self._send_spans():
                pass
            self._send_metrics()
        except Exception as bug:  # a thread that ended here would end the export for good
            self._complain("the export itself", type(bug).__name__)

    def _send_spans(self) -> bool:
        """Whether to go on with the next batch."""
        assert self._traces is not None
        batch = [self._outcomes.popleft() for _ in range(min(MAX_BATCH, len(self._outcomes)))]
        made = (otlp.span_message(outcome, self._address, os.urandom) for outcome in batch)
        spans = [span for span in made if span is not None]
        if not spans:
            return True
        try:
            self._post(self._traces, otlp.trace_message(self._resource, self._scope, spans))
        except Refusal as refusal:
            if refusal.again:
                self._outcomes.extendleft(reversed(batch))
                return False
            self._given_up += len(spans)
        else:
            self._sent += len(spans)
        return True

    def _send_metrics(self) -> None:
        readings, self._readings = self._readings, None
        if readings is None or self._metrics is None:
            return
        metrics = otlp.metric_messages(readings, self._began_ns, time.time_ns())
        with contextlib.suppress(Refusal):  # the next ones say the same and more
            self._post(self._metrics, otlp.metrics_message(self._resource, self._scope, metrics))

    def _post(self, collector: Collector, message: bytes) -> None:
        try:
            collector.post(message)
        except Refusal as refusal:
            self._complain(collector.where, str(refusal))
            raise
        if collector.where in self._troubled:
            self._troubled.discard(collector.where)
            log.info("the OTLP collector %s takes what it is sent again", collector.where)

    def _complain(self, where: str, why: str) -> None:
        """Once, until it is better."""
        if where not in self._troubled:
            self._troubled.add(where)
            log.warning("OTLP export to %s fails: %s; requests are served all the same", where, why)


def exporter_for(environ: Mapping[str, str]) -> Exporter | None:
    """As OpenTelemetry's variables say; None where they name no collector, or one that cannot be spoken to."""
    try:
        traces, metrics = collector_for("traces", environ), collector_for("metrics", environ)
    except Unusable as unusable:
        log.warning("nothing is exported to OpenTelemetry: %s", unusable)
        return None
    return Exporter(traces, metrics, environ) if traces or metrics else None
