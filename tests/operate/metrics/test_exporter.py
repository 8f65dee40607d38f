"""A gateway exports to a collector, and is not affected by one that is slow, broken or unavailable."""

import logging
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from asking import ask, send
from dragoman.operate.metrics.exporter import MAX_WAITING, Exporter, make_exporter
from dragoman.proxy.outcome import Outcome
from fakes.otlp import FakeCollector, attributes
from gateway import Running, running
from waiting import wait_until

PATIENCE_S = 60.0
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_METRIC_EXPORT_INTERVAL": "100", "OTEL_EXPORTER_OTLP_TIMEOUT": "20000"}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def environ(url: str, **more: str) -> dict[str, str]:
    return {**QUICK, "OTEL_EXPORTER_OTLP_ENDPOINT": url, **more}


def ask_echo(gateway: Running, **headers: str) -> bytes:
    return ask(gateway, "chat", "echo", "the content is private", stream=True, headers=headers).body


def scrape(gateway: Running) -> str:
    return send(gateway, "GET", "/metrics").body.decode()


def test_spans_and_metrics_reach_the_collector(tmp_path: Path) -> None:
    given = {"OTEL_EXPORTER_OTLP_HEADERS": "x-scope=fake-tenant", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}
    with FakeCollector() as collector:
        with running("", tmp_path, environ(collector.url, OTEL_SERVICE_NAME="edge", **given)) as gateway:
            ask_echo(gateway, traceparent=f"00-{TRACE}-{PARENT}-01")
            ask_echo(gateway)
            wait_until(lambda: len(collector.spans) == 2)
            wait_until(lambda: "gen_ai.server.request.duration" in collector.metrics_by_name)
            wait_until(lambda: "dragoman_otlp_spans_sent_total 2" in scrape(gateway))
        first, second = collector.spans
        resources = [attributes(list(each.resource_spans[0].resource.attributes)) for each in collector.traces]
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == (TRACE, PARENT)
    assert second.trace_id.hex() != TRACE
    assert attributes(list(first.attributes))["gen_ai.request.model"] == "echo"
    assert {resource["service.name"] for resource in resources} == {"edge"}
    assert {headers["x-scope"] for headers in collector.headers} == {"fake-tenant"}
    assert b"content is private" not in b"".join(each.SerializeToString() for each in collector.traces)
    assert "gen_ai.client.token.usage" in collector.metrics_by_name


def test_waiting_spans_are_sent_when_the_gateway_stops(tmp_path: Path) -> None:
    slow = {"OTEL_BSP_SCHEDULE_DELAY": "600000", "OTEL_METRIC_EXPORT_INTERVAL": "600000"}
    with FakeCollector() as collector:
        with running("", tmp_path, environ(collector.url, **slow)) as gateway:
            ask_echo(gateway)
            assert collector.requests == 0
        assert len(collector.spans) == 1
        assert collector.metrics_by_name["dragoman.requests"].sum.data_points[0].as_double == 1


def test_a_dead_collector_is_logged_once_and_affects_no_stream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as gone, caplog.at_level(logging.INFO):
        gone.bind(("127.0.0.1", 0))  # bound, but never listening
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
        with running("", tmp_path, environ(url)) as gateway:
            replies = [ask_echo(gateway) for _ in range(5)]
            wait_until(lambda: "OTLP export" in caplog.text)
            replies += [ask_echo(gateway) for _ in range(5)]
            time.sleep(0.2)  # several more attempts fail meanwhile, and are not logged
    assert all(reply.rstrip().endswith(b"data: [DONE]") for reply in replies)
    messages = [record.getMessage() for record in caplog.records if "OTLP export" in record.getMessage()]
    collectors = {message.partition(" fails")[0] for message in messages}
    assert len(collectors) == len(messages) <= 2  # traces and metrics, once each


@pytest.mark.rest
def test_a_collector_that_never_responds_delays_no_request(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with running("", tmp_path, environ(url, OTEL_EXPORTER_OTLP_TIMEOUT="60000")) as gateway:
            for _ in range(5):
                assert ask_echo(gateway).rstrip().endswith(b"data: [DONE]")
            began = time.monotonic()
        assert time.monotonic() - began < PATIENCE_S / 2  # a slow collector does not delay the stop


def test_spans_wait_for_a_collector_that_is_unavailable_for_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with FakeCollector(status=503) as collector, running("", tmp_path, environ(collector.url)) as gateway:
        ask_echo(gateway)
        wait_until(lambda: "HTTP 503" in caplog.text)
        collector.status = 200
        wait_until(lambda: len(collector.spans) == 1)
        wait_until(lambda: "works again" in caplog.text)


def test_spans_that_the_collector_rejects_are_dropped_and_counted(tmp_path: Path) -> None:
    with FakeCollector(status=400) as collector, running("", tmp_path, environ(collector.url)) as gateway:
        ask_echo(gateway)
        wait_until(lambda: "dragoman_otlp_spans_dropped_total 1" in scrape(gateway))


def test_spans_beyond_the_queue_are_dropped() -> None:
    exporter = make_exporter(environ("http://127.0.0.1:9"))
    assert isinstance(exporter, Exporter)
    for number in range(MAX_WAITING + 7):
        exporter.observe(Outcome(request_id=f"req_{number}", started_at=0.0, client_protocol="chat"))
    counts = {reading.name: reading.values for reading in exporter.readings()}
    assert counts["dragoman_otlp_spans_dropped_total"] == (7,)


def test_an_unsupported_protocol_is_logged_and_the_gateway_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = environ("http://127.0.0.1:4317", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    before = set(threading.enumerate())  # threads of other tests may still be ending
    with caplog.at_level(logging.WARNING), running("", tmp_path, given) as gateway:
        assert ask_echo(gateway).rstrip().endswith(b"data: [DONE]")
        begun = set(threading.enumerate()) - before
    assert "only http/json is supported" in caplog.text
    assert not [thread for thread in begun if thread.name == "OTLP export"]


def test_without_a_collector_the_exporter_is_not_imported() -> None:
    probe = "import sys, dragoman.app; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60).stdout.split()
    assert "dragoman.operate.metrics.registry" in loaded
    assert not {
        "dragoman.operate.metrics.exporter",
        "dragoman.operate.metrics.otlp",
        "urllib.request",
        "opentelemetry",
    } & set(loaded)
