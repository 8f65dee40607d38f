"""The messages for a collector, parsed by the protobuf classes of OpenTelemetry with their JSON mapping."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from dragoman.operate.metrics import otlp
from dragoman.operate.metrics.exporter import Collector, InvalidSetting, find_collector, resource_attributes
from dragoman.operate.metrics.readings import Reading, RequestMetrics
from dragoman.proxy.outcome import FailedAttempt, Outcome
from dragoman.translate.hub.usage import Usage
from fakes.otlp import attributes, metrics_of, parse_json, spans_of

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SCOPE: otlp.Message = {"name": "dragoman", "version": "0"}


def outcome(**given: object) -> Outcome:
    usual = Outcome(
        request_id="req_1",
        started_at=1763200000.25,
        client_protocol="messages",
        upstream_protocol="chat",
        requested_model="best",
        provider="local",
        model="qwen",
        duration_s=1.5,
    )
    return replace(usual, **given)


def span(given: Outcome) -> Span | None:
    made = otlp.span_message(given, lambda provider: ("127.0.0.1", 11434), bytes)
    if made is None:
        return None
    request = parse_json(otlp.export_message("traces", {}, SCOPE, [made]), ExportTraceServiceRequest())
    (found,) = spans_of([request])
    return found


def read_span(given: Outcome) -> Span:
    found = span(given)
    assert found is not None
    return found


def test_a_request_is_a_span_with_the_attributes_of_the_convention() -> None:
    usage = Usage(input=10, output=7, cache_read=4, cache_write=2, reasoning=3)
    found = read_span(
        outcome(stream=True, ttft_s=0.5, usage=usage, reported_model="qwen-3-32b", client="cli", losses=2)
    )
    assert (found.name, found.kind) == ("chat qwen", Span.SPAN_KIND_CLIENT)
    assert found.start_time_unix_nano == 1763200000_250000000
    assert found.end_time_unix_nano == 1763200001_750000000
    assert found.status.code == Status.STATUS_CODE_UNSET
    assert attributes(list(found.attributes)) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "local",
        "gen_ai.request.model": "qwen",
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "qwen-3-32b",
        "gen_ai.response.time_to_first_chunk": 0.5,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.cache_creation.input_tokens": 2,
        "gen_ai.usage.reasoning.output_tokens": 3,
        "server.address": "127.0.0.1",
        "server.port": 11434,
        "dragoman.request.id": "req_1",
        "dragoman.client.protocol": "messages",
        "dragoman.client.name": "cli",
        "dragoman.upstream.protocol": "chat",
        "dragoman.usage.source": "reported",
        "dragoman.losses": 2,
    }


def test_a_failed_span_has_an_error_and_the_failed_attempts() -> None:
    steps = (FailedAttempt("a/m", "overloaded"), FailedAttempt("b/m", "lost"))
    found = read_span(outcome(provider="", model="", upstream_protocol="", outcome="lost", failed_attempts=steps))
    known = attributes(list(found.attributes))
    assert found.status.code == Status.STATUS_CODE_ERROR
    assert (known["error.type"], known["gen_ai.provider.name"], known["gen_ai.request.model"]) == ("lost", "b", "m")
    assert known["dragoman.steps"] == ["a/m: overloaded", "b/m: lost"]
    assert "gen_ai.usage.input_tokens" not in known


def test_the_clients_span_is_the_parent() -> None:
    found = read_span(outcome(traceparent=f"00-{TRACE}-{PARENT}-01"))
    assert (found.trace_id.hex(), found.parent_span_id.hex()) == (TRACE, PARENT)
    assert len(found.span_id) == 8


def test_a_request_that_the_client_does_not_sample_has_no_span() -> None:
    assert span(outcome(traceparent=f"00-{TRACE}-{PARENT}-00")) is None


@pytest.mark.parametrize(
    "trace",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{PARENT}",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
    ],
)
def test_a_malformed_traceparent_is_ignored(trace: str) -> None:
    found = read_span(outcome(traceparent=trace))
    assert len(found.trace_id) == 16
    assert found.trace_id.hex() != TRACE
    assert found.parent_span_id == b""


@given(st.text(max_size=300))
@settings(max_examples=60, deadline=None)
def test_any_name_gives_a_valid_span(text: str) -> None:
    found = read_span(
        outcome(
            model=text,
            reported_model=text,
            client=text,
            traceparent=text,
            failed_attempts=(FailedAttempt(f"p/{text}", "lost"),),
        )
    )
    assert attributes(list(found.attributes))["dragoman.request.id"] == "req_1"


def test_a_span_contains_no_secret() -> None:
    secret = "sk-fake-0123456789abcdef"
    made = otlp.span_message(
        outcome(
            request_id=secret,
            model=secret,
            requested_model=secret,
            client=secret,
            reported_model=secret,
            failed_attempts=(FailedAttempt(f"p/{secret}", "x"),),
        ),
        lambda provider: None,
        bytes,
    )
    assert made is not None
    assert secret not in str(made)


def test_a_surrogate_in_an_attribute_is_replaced() -> None:
    resource = otlp.resource_message({"service.name": "b\udcff"})
    request = parse_json(otlp.export_message("traces", resource, SCOPE, []), ExportTraceServiceRequest())
    assert attributes(list(request.resource_spans[0].resource.attributes)) == {"service.name": "b?"}


def export_metrics(*outcomes: Outcome, more: tuple[Reading, ...] = ()) -> dict[str, Metric]:
    counted_requests = RequestMetrics()
    for each in outcomes:
        counted_requests.observe(each)
    metrics = otlp.metric_messages([*counted_requests.readings(), *more], 1_000, 2_000)
    request = parse_json(otlp.export_message("metrics", {}, SCOPE, metrics), ExportMetricsServiceRequest())
    return {metric.name: metric for metric in metrics_of(request)}


def test_metrics_have_the_names_units_and_buckets_of_the_convention() -> None:
    found = export_metrics(outcome(usage=Usage(input=16, output=17)), outcome(duration_s=0.01, outcome="lost"))
    usage = found["gen_ai.client.token.usage"]
    assert usage.unit == "{token}"
    assert usage.histogram.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    by_type = {attributes(list(point.attributes))["gen_ai.token.type"]: point for point in usage.histogram.data_points}
    point = by_type["output"]
    assert (point.count, point.sum, list(point.bucket_counts)[:5]) == (1, 17, [0, 0, 0, 1, 0])
    assert list(point.explicit_bounds)[:3] == [1, 4, 16]
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert (point.start_time_unix_nano, point.time_unix_nano) == (1_000, 2_000)
    duration = found["gen_ai.server.request.duration"]
    assert duration.unit == "s"
    ends = [attributes(list(point.attributes)).get("error.type") for point in duration.histogram.data_points]
    assert sorted(ends, key=str) == [None, "lost"]
    assert attributes(list(duration.histogram.data_points[0].attributes))["gen_ai.request.model"] == "qwen"


def test_own_counters_and_gauges_are_exported_and_those_of_the_process_are_not() -> None:
    gauge = Reading("dragoman_connections", (), (3,))
    found = export_metrics(outcome(), more=(gauge, Reading("process_open_fds", (), (9,))))
    requests = found["dragoman.requests"].sum
    assert requests.is_monotonic
    assert requests.data_points[0].as_double == 1
    assert attributes(list(requests.data_points[0].attributes))["upstream_protocol"] == "chat"
    assert found["dragoman.connections"].gauge.data_points[0].as_double == 3
    assert not [name for name in found if name.startswith("process")]


BASE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318/"}


def test_the_standard_variables_are_obeyed() -> None:
    environ = {
        **BASE,
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20fake,x-scope=a=b",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1500",
        "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT": "2500",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:9/own",
    }
    headers = {"authorization": "Bearer fake", "x-scope": "a=b"}
    assert find_collector("traces", environ) == Collector("http://127.0.0.1:4318/v1/traces", headers, 1.5, True, "")
    assert find_collector("metrics", environ) == Collector("http://127.0.0.1:9/own", headers, 2.5, True, "")


@pytest.mark.parametrize("protocol", ["http/json", "http/protobuf"])
def test_either_protocol_over_http_is_accepted(protocol: str) -> None:
    assert find_collector("traces", {**BASE, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol})


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {**BASE, "OTEL_SDK_DISABLED": "true"},
        {**BASE, "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_nothing_is_exported_unless_a_variable_says_so(environ: dict[str, str]) -> None:
    assert find_collector("traces", environ) is None


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "only http/json"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "file:///etc/passwd"}, "http://"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "http://"),
    ],
)
def test_a_setting_that_is_not_supported_is_named(more: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        find_collector("traces", {**BASE, **more})


def test_a_collector_is_shown_without_its_password() -> None:
    collector = Collector("http://user:hunter2fake@127.0.0.1:4318/v1/traces?key=fake", {}, 1.0, False, "")
    assert collector.where == "http://127.0.0.1:4318/v1/traces"


def test_the_resource_has_the_attributes_of_the_variables() -> None:
    given = {
        "OTEL_SERVICE_NAME": "edge",
        "OTEL_RESOURCE_ATTRIBUTES": "service.name=other,deployment.environment=test%20one",
    }
    found = resource_attributes(given, "0.1", "worker-1")
    assert found["service.name"] == "edge"
    assert found["deployment.environment"] == "test one"
    assert (found["service.version"], found["service.instance.id"]) == ("0.1", "worker-1")
    assert resource_attributes({}, "0.1", "x")["service.name"] == "dragoman"
