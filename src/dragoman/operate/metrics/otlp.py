"""Write OTLP's messages for traces and metrics as JSON: ids are hexadecimal and 64-bit integers are strings."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby

import msgspec

from dragoman.operate.metrics.catalogue import CATALOGUE, Family, Type
from dragoman.operate.metrics.readings import PROVIDER_NAMES, Reading, merge_readings
from dragoman.proxy.outcome import OK, Outcome
from dragoman.translate.framing.redaction import one_line
from dragoman.translate.hub.ports import OPERATION
from dragoman.translate.protocols import OPERATIONS

Attribute = str | int | float | bool | tuple[str, ...]
Message = dict[str, object]
Address = Callable[[str], tuple[str, int] | None]  # the host and port of a provider

CLIENT_SPAN = 3
ERROR_STATUS = 2
CUMULATIVE = 2
MAX_TEXT = 200
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
DOTTED = re.compile(r"^(gen_ai_(?:operation|provider|request|token)|error)_")


def export_message(signal: str, resource: Message, scope: Message, items: Iterable[Message]) -> bytes:
    """Return the body of an export request, which is wrapped in the same way for "traces" and "metrics"."""
    kind = {"traces": "Spans", "metrics": "Metrics"}[signal]
    scoped = {"scope": scope, kind.lower(): list(items)}
    return msgspec.json.encode({f"resource{kind}": [{"resource": resource, f"scope{kind}": [scoped]}]})


def resource_message(attributes: Mapping[str, Attribute]) -> Message:
    return {"attributes": _attributes(attributes)}


def span_message(outcome: Outcome, address: Address, random_bytes: Callable[[int], bytes]) -> Message | None:
    """Return the span of a request, below the client's span if it sent one; None if that is not sampled."""
    trace, parent, sampled = _parse_traceparent(outcome.traceparent)
    if not sampled:
        return None
    provider, model = _target_of(outcome)
    operation = OPERATIONS.get(outcome.client_protocol, OPERATION)
    return {
        "traceId": trace or random_bytes(16).hex(),
        "spanId": random_bytes(8).hex(),
        "parentSpanId": parent,
        "name": f"{operation} {model}".strip(),
        "kind": CLIENT_SPAN,
        "startTimeUnixNano": _nanoseconds(outcome.started_at),
        "endTimeUnixNano": _nanoseconds(outcome.started_at + outcome.duration_s),
        "attributes": _attributes(span_attributes(outcome, provider, model, address)),
        "status": {"code": ERROR_STATUS} if outcome.outcome != OK else {},
    }


def span_attributes(outcome: Outcome, provider: str, model: str, address: Address) -> dict[str, Attribute]:
    """Return what is known of a request, without content and keys."""
    usage = outcome.usage
    server = address(provider) if provider else None
    attributes: dict[str, Attribute | None] = {
        "gen_ai.operation.name": OPERATIONS.get(outcome.client_protocol, OPERATION),
        "gen_ai.provider.name": PROVIDER_NAMES.get(provider, provider) or None,
        "gen_ai.request.model": model or None,
        "gen_ai.request.stream": outcome.stream,
        "gen_ai.response.model": _clean(outcome.reported_model) or None,
        "gen_ai.response.time_to_first_chunk": outcome.ttft_s if outcome.stream else None,
        "server.address": server[0] if server else None,
        "server.port": server[1] if server else None,
        "error.type": outcome.outcome if outcome.outcome != OK else None,
        "dragoman.request.id": _clean(outcome.request_id),
        "dragoman.client.request_id": _clean(outcome.client_request_id) or None,
        "dragoman.client.protocol": outcome.client_protocol,
        "dragoman.upstream.protocol": outcome.upstream_protocol or None,
        "dragoman.client.name": _clean(outcome.client) or None,
        "dragoman.losses": outcome.losses or None,
        "dragoman.steps": tuple(f"{_clean(step.route)}: {step.why}" for step in outcome.failed_attempts) or None,
    }
    if usage is not None:
        attributes |= {
            "gen_ai.usage.input_tokens": usage.input,
            "gen_ai.usage.output_tokens": usage.output,
            "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
            "gen_ai.usage.cache_creation.input_tokens": usage.cache_write,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
            "dragoman.usage.source": usage.source.value,
        }
    return {name: value for name, value in attributes.items() if value is not None}


def metric_messages(readings: Iterable[Reading], began_ns: int, now_ns: int) -> Iterator[Message]:
    """Yield all metrics of a scrape except those of the process itself; counters began at `began_ns`."""
    ordered = sorted(merge_readings(readings), key=lambda reading: reading.name)
    for name, series in groupby(ordered, key=lambda reading: reading.name):
        family = CATALOGUE[name]
        if not name.startswith("process_"):
            points = [_data_point(family, reading, began_ns, now_ns) for reading in series]
            yield {
                "name": family.otel or name.replace("_", ".", 1).removesuffix("_total"),
                "description": family.help,
                "unit": family.unit,
                **_data_field(family, points),
            }


def otel_label(label: str) -> str:
    """Return OpenTelemetry's spelling: `gen_ai.request.model` for `gen_ai_request_model`."""
    return DOTTED.sub(lambda match: match[1].replace("gen_ai_", "gen_ai.") + ".", label)


def _data_field(family: Family, points: list[Message]) -> Message:
    match family.type:
        case Type.GAUGE:
            return {"gauge": {"dataPoints": points}}
        case Type.COUNTER:
            return {"sum": {"dataPoints": points, "aggregationTemporality": CUMULATIVE, "isMonotonic": True}}
        case Type.HISTOGRAM:
            return {"histogram": {"dataPoints": points, "aggregationTemporality": CUMULATIVE}}


def _data_point(family: Family, reading: Reading, began_ns: int, now_ns: int) -> Message:
    labels = {otel_label(name): value for name, value in zip(family.labels, reading.labels, strict=True) if value}
    point: Message = {
        "startTimeUnixNano": str(began_ns),
        "timeUnixNano": str(now_ns),
        "attributes": _attributes(labels),
    }
    if family.type is not Type.HISTOGRAM:
        return {**point, "asDouble": reading.values[0]}
    *counts, total = reading.values
    buckets = [int(count) for count in counts]
    return {
        **point,
        "count": str(sum(buckets)),
        "sum": total,
        "bucketCounts": [str(count) for count in buckets],
        "explicitBounds": family.bounds,
    }


def _attributes(attributes: Mapping[str, Attribute]) -> list[Message]:
    return [{"key": name, "value": _encode_value(value)} for name, value in attributes.items()]


def _encode_value(value: Attribute) -> Message:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            # A variable of the environment may contain surrogates, and JSON may not.
            return {"stringValue": value.encode(errors="replace").decode()}
        case tuple():
            return {"arrayValue": {"values": [_encode_value(part) for part in value]}}


def _parse_traceparent(header: str) -> tuple[str, str, bool]:
    """Return trace, parent span and whether the client sampled it; a malformed header is ignored."""
    match = TRACEPARENT.fullmatch(header)
    if match is None or not match[1].strip("0") or not match[2].strip("0"):
        return "", "", True
    return match[1], match[2], bool(int(match[3], 16) & 1)


def _target_of(outcome: Outcome) -> tuple[str, str]:
    """Return provider and model that replied, else those tried last, else the requested model."""
    if outcome.provider:
        return outcome.provider, _clean(outcome.model)
    if outcome.failed_attempts:
        provider, _, model = outcome.failed_attempts[-1].route.partition("/")
        return provider, _clean(model)
    return "", _clean(outcome.requested_model)


def _nanoseconds(since_epoch: float) -> str:
    """Round to microseconds, which is as precise as a float of this size."""
    return str(round(since_epoch * 1e6) * 1000)


def _clean(text: str) -> str:
    return one_line(text[:MAX_TEXT])
