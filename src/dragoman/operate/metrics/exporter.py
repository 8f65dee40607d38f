"""Export spans and metrics, from a thread of its own, to the OTLP collector that OpenTelemetry's variables name."""

import contextlib
import gzip
import logging
import os
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from dragoman import __version__
from dragoman.operate.metrics import catalogue as catalogue
from dragoman.operate.metrics import otlp
from dragoman.operate.metrics.readings import Reading
from dragoman.proxy.outcome import Outcome
from dragoman.translate.hub.failure import describe_cause

PREFIX = "OTEL_EXPORTER_OTLP_"
PROTOCOLS = ("http/json", "http/protobuf")  # JSON is sent either way: collectors read both from the same port
RETRYABLE = {408, 429, 502, 503, 504}
MAX_RESPONSE_BYTES = 65536


class InvalidSetting(Exception):
    """A variable has a value that is not supported; the message names it."""


class ExportFailed(Exception):
    """The collector did not accept a message."""

    def __init__(self, reason: str, retryable: bool) -> None:
        super().__init__(reason)
        self.retryable = retryable


class Collector(Struct, frozen=True):
    """Where and how to send one kind of message."""

    url: str
    headers: dict[str, str]
    timeout_s: float
    compress: bool
    certificate: str

    @property
    def where(self) -> str:
        """The URL without user, password and query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"

    def post(self, body: bytes) -> None:
        """Send a message; blocks for up to the timeout, raises ExportFailed."""
        headers = {"user-agent": f"dragoman/{__version__}", **self.headers, "content-type": "application/json"}
        if self.compress:
            body = gzip.compress(body, 1)
            headers["content-encoding"] = "gzip"
        request = urllib.request.Request(self.url, body, headers, method="POST")
        try:
            with self._opener().open(request, timeout=self.timeout_s) as response:
                response.read(MAX_RESPONSE_BYTES)
        except urllib.error.HTTPError as error:
            error.close()
            raise ExportFailed(f"HTTP {error.code}", error.code in RETRYABLE) from None
        except urllib.error.URLError as error:
            raise ExportFailed(_describe(error.reason), True) from None
        except (OSError, HTTPException) as error:
            raise ExportFailed(_describe(error), True) from None

    def _opener(self) -> urllib.request.OpenerDirector:
        """Return what follows no redirect: the headers may contain a credential for this host."""
        context = ssl.create_default_context(cafile=self.certificate or None)
        opener = urllib.request.OpenerDirector()
        opener.add_handler(urllib.request.ProxyHandler())
        opener.add_handler(urllib.request.HTTPHandler())
        opener.add_handler(urllib.request.HTTPSHandler(context=context))
        opener.add_handler(urllib.request.HTTPErrorProcessor())
        opener.add_handler(urllib.request.HTTPDefaultErrorHandler())
        return opener


def find_collector(signal: str, environ: Mapping[str, str]) -> Collector | None:
    """Return the collector for "traces" or "metrics"; None if none is named or it is disabled.

    Raises InvalidSetting.
    """
    own = environ.get(f"{PREFIX}{signal.upper()}_ENDPOINT", "").strip()
    base = environ.get(f"{PREFIX}ENDPOINT", "").strip()
    off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if off or not (own or base) or environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip().lower() == "none":
        return None
    protocol = _setting("PROTOCOL", signal, environ) or PROTOCOLS[0]
    if protocol not in PROTOCOLS:
        raise InvalidSetting(
            f"{PREFIX}PROTOCOL is {protocol!r}; only {PROTOCOLS[0]} is supported, usually on port 4318"
        )
    url = own or f"{base.rstrip('/')}/v1/{signal}"
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise InvalidSetting(f"{PREFIX}ENDPOINT must be a URL that begins with http:// or https://")
    return Collector(
        url=url,
        headers=parse_pairs(_setting("HEADERS", signal, environ)),
        timeout_s=parse_milliseconds(_setting("TIMEOUT", signal, environ), 10_000),
        compress=_setting("COMPRESSION", signal, environ) == "gzip",
        certificate=_setting("CERTIFICATE", signal, environ),
    )


def parse_pairs(text: str) -> dict[str, str]:
    """Parse `a=1,b=two%20words`, as in headers and resource attributes; other text is ignored."""
    found = (part.partition("=") for part in text.split(","))
    return {name.strip(): unquote(value.strip()) for name, equals, value in found if equals and name.strip()}


def parse_milliseconds(text: str, default: int) -> float:
    """Return the seconds that a number of milliseconds amounts to."""
    return (int(text) if text.strip().isdigit() and int(text) else default) / 1000


def resource_attributes(environ: Mapping[str, str], version: str, instance: str) -> dict[str, str]:
    given = parse_pairs(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    name = environ.get("OTEL_SERVICE_NAME", "").strip() or given.get("service.name", "") or "dragoman"
    return {
        "service.version": version,
        "service.instance.id": instance,
        "host.name": socket.gethostname(),
        **given,
        "service.name": name,
        "telemetry.sdk.name": "dragoman",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": version,
    }


def _setting(name: str, signal: str, environ: Mapping[str, str]) -> str:
    """Return a setting of this signal, else the one for all signals."""
    return environ.get(f"{PREFIX}{signal.upper()}_{name}", environ.get(f"{PREFIX}{name}", "")).strip()


def _describe(error: object) -> str:
    if isinstance(error, OSError):
        return describe_cause(error)
    return type(error).__name__ if isinstance(error, Exception) else str(error)


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
        self._scope: otlp.Message = {"name": "dragoman", "version": __version__}
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
            self._post(self._traces, otlp.export_message("traces", self._resource, self._scope, spans))
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
            self._post(self._metrics, otlp.export_message("metrics", self._resource, self._scope, metrics))

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
