"""Export spans and metrics to an OTLP collector from a thread of its own."""

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
from dragoman.telemetry.collector import (
    Collector,
    ExportFailed,
    InvalidSetting,
    find_collector,
    parse_milliseconds,
    resource_attributes,
)

log = logging.getLogger(__name__)

MAX_WAITING = 2048
MAX_BATCH = 512
STOP_TIMEOUT_S = 2.0


class Exporter:
    """An observer. It queues outcomes, and drops and counts those that do not fit into the queue."""

    def __init__(self, traces: Collector | None, metrics: Collector | None, environ: Mapping[str, str]) -> None:
        self._traces = traces
        self._metrics = metrics
        self._address: otlp.Address = lambda provider: None
        instance = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._resource = otlp.resource_message(resource_attributes(environ, __version__, instance))
        self._scope = otlp.scope_message("dragoman", __version__)
        self._began_ns = time.time_ns()
        self._pause_s = parse_milliseconds(environ.get("OTEL_BSP_SCHEDULE_DELAY", ""), 5_000)
        self.interval_s = parse_milliseconds(environ.get("OTEL_METRIC_EXPORT_INTERVAL", ""), 60_000)
        self._outcomes: deque[Outcome] = deque()
        self._readings: list[Reading] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="OTLP export", daemon=True)
        self._failing: set[str] = set()  # collectors whose last export failed
        self._sent = 0
        self._overflowed = 0  # written by the event loop
        self._rejected = 0  # written by the thread

    def start(self, address: otlp.Address) -> None:
        self._address = address
        self._thread.start()

    def stop(self) -> None:
        """Export what is left; blocks for at most STOP_TIMEOUT_S."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    def observe(self, outcome: Outcome) -> None:
        if self._traces is None:
            return
        if len(self._outcomes) < MAX_WAITING:
            self._outcomes.append(outcome)
        else:
            self._overflowed += 1

    def offer(self, readings: list[Reading]) -> None:
        """Export these readings next, instead of any offered before."""
        self._readings = readings

    def readings(self) -> Iterator[Reading]:
        yield Reading(catalogue.SPANS_SENT.name, (), (self._sent,))
        yield Reading(catalogue.SPANS_DROPPED.name, (), (self._overflowed + self._rejected,))

    def _run(self) -> None:
        while not self._stopping.wait(self._pause_s):
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        try:
            while self._outcomes and self._send_spans():
                pass
            self._send_metrics()
        except Exception as bug:  # otherwise the thread would end, and with it the export
            self._warn_once("any collector", type(bug).__name__)

    def _send_spans(self) -> bool:
        """Send a batch; return whether to go on with the next one."""
        assert self._traces is not None
        batch = [self._outcomes.popleft() for _ in range(min(MAX_BATCH, len(self._outcomes)))]
        messages = (otlp.span_message(outcome, self._address, os.urandom) for outcome in batch)
        spans = [span for span in messages if span is not None]
        if not spans:
            return True
        try:
            self._post(self._traces, otlp.trace_message(self._resource, self._scope, spans))
        except ExportFailed as error:
            if error.retryable:
                self._outcomes.extendleft(reversed(batch))
                return False
            self._rejected += len(spans)
        else:
            self._sent += len(spans)
        return True

    def _send_metrics(self) -> None:
        readings, self._readings = self._readings, None
        if readings is None or self._metrics is None:
            return
        metrics = otlp.metric_messages(readings, self._began_ns, time.time_ns())
        with contextlib.suppress(ExportFailed):  # counters are cumulative: the next export includes these
            self._post(self._metrics, otlp.metrics_message(self._resource, self._scope, metrics))

    def _post(self, collector: Collector, message: bytes) -> None:
        try:
            collector.post(message)
        except ExportFailed as error:
            self._warn_once(collector.where, str(error))
            raise
        if collector.where in self._failing:
            self._failing.discard(collector.where)
            log.info("OTLP export to %s works again", collector.where)

    def _warn_once(self, where: str, why: str) -> None:
        """Log a failure once, until an export succeeds."""
        if where not in self._failing:
            self._failing.add(where)
            log.warning("OTLP export to %s fails: %s (requests are not affected)", where, why)


def make_exporter(environ: Mapping[str, str]) -> Exporter | None:
    """Make the exporter that OpenTelemetry's variables ask for; None if they name no usable collector."""
    try:
        traces, metrics = find_collector("traces", environ), find_collector("metrics", environ)
    except InvalidSetting as error:
        log.warning("nothing is exported to OpenTelemetry: %s", error)
        return None
    return Exporter(traces, metrics, environ) if traces or metrics else None
