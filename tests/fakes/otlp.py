"""An OTLP collector on the loopback that parses the JSON it is sent with the makers' own protobuf classes."""

import base64
import gzip
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import TypeVar

from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

M = TypeVar("M", ExportTraceServiceRequest, ExportMetricsServiceRequest)
IDS = re.compile(rb'("(?:traceId|spanId|parentSpanId)":)"([^"]*)"')


def parse_json(body: bytes, message: M) -> M:
    """Parse an export request strictly. OTLP's ids are lower-case hexadecimal, where protobuf's JSON has base64."""

    def encode_id(match: re.Match[bytes]) -> bytes:
        assert re.fullmatch(rb"(?:[0-9a-f]{16}){0,2}", match[2])
        return b'%b"%b"' % (match[1], base64.b64encode(bytes.fromhex(match[2].decode())))

    json_format.Parse(IDS.sub(encode_id, body), message)
    return message


class FakeCollector:
    """Accepts traces and metrics; answers with `status` while that is set."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.requests = 0

    def __enter__(self) -> "FakeCollector":
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                fake.take(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                self.send_response(fake.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Tests have nothing to read here."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.requests += 1
        if self.status != 200:
            return
        assert headers["content-type"] == "application/json"
        assert headers["user-agent"].startswith("dragoman/")
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.headers.append(headers)
        if path == "/v1/traces":
            self.traces.append(parse_json(body, ExportTraceServiceRequest()))
        elif path == "/v1/metrics":
            self.metrics.append(parse_json(body, ExportMetricsServiceRequest()))

    @property
    def spans(self) -> list[Span]:
        return spans_of(self.traces)

    @property
    def metrics_by_name(self) -> dict[str, Metric]:
        """The latest of each metric."""
        return {metric.name: metric for request in self.metrics for metric in metrics_of(request)}


def spans_of(requests: list[ExportTraceServiceRequest]) -> list[Span]:
    return [
        span
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def metrics_of(request: ExportMetricsServiceRequest) -> list[Metric]:
    return [
        metric for resource in request.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
    ]


def attributes(pairs: "list[KeyValue]") -> dict[str, object]:
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(part) for part in value.array_value.values]
    return getattr(value, str(kind))
