"""Write OTLP's protobuf messages for traces and metrics."""

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import groupby

from dragoman.framing.redaction import one_line
from dragoman.hub.outcome import OK, Outcome
from dragoman.hub.ports import OPERATION
from dragoman.observers.metrics import PROVIDER_NAMES, Reading, merge_readings
from dragoman.observers.metrics_catalogue import CATALOGUE, Family, Type
from dragoman.protocols import OPERATIONS

Attribute = str | int | float | bool | tuple[str, ...]
Address = Callable[[str], tuple[str, int] | None]  # the host and port of a provider

CLIENT_SPAN = 3
ERROR_STATUS = 2
CUMULATIVE = 2
MAX_TEXT = 200
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_DOUBLE = struct.Struct("<d")
_FIXED64 = struct.Struct("<Q")
_SMALL = tuple(bytes((number,)) for number in range(0x80))
DOTTED = re.compile(r"^(gen_ai_(?:operation|provider|request|token)|error)_")


def trace_message(resource: bytes, scope: bytes, spans: Iterable[bytes]) -> bytes:
    return _export_message(resource, scope, spans)


def metrics_message(resource: bytes, scope: bytes, metrics: Iterable[bytes]) -> bytes:
    return _export_message(resource, scope, metrics)


def _export_message(resource: bytes, scope: bytes, items: Iterable[bytes]) -> bytes:
    """Return the message of an export request, which is wrapped in the same way for traces and metrics."""
    scoped = _message_field(1, scope) + b"".join(_message_field(2, item) for item in items)
    return _message_field(1, _message_field(1, resource) + _message_field(2, scoped))


def resource_message(attributes: Mapping[str, Attribute]) -> bytes:
    return _attributes(1, attributes)


def scope_message(name: str, version: str) -> bytes:
    return _text_field(1, name) + _text_field(2, version)


def span_message(outcome: Outcome, address: Address, random_bytes: Callable[[int], bytes]) -> bytes | None:
    """Return the span of a request, below the client's span if it sent one; None if that is not sampled."""
    trace, parent, sampled = _parse_traceparent(outcome.traceparent)
    if not sampled:
        return None
    provider, model = _target_of(outcome)
    operation = OPERATIONS.get(outcome.client_protocol, OPERATION)
    failed = outcome.outcome != OK
    return b"".join(
        (
            _bytes_field(1, trace or random_bytes(16)),
            _bytes_field(2, random_bytes(8)),
            _bytes_field(4, parent),
            _text_field(5, f"{operation} {model}".strip()),
            _int_field(6, CLIENT_SPAN),
            _fixed64_field(7, _nanoseconds(outcome.started_at)),
            _fixed64_field(8, _nanoseconds(outcome.started_at + outcome.duration_s)),
            _attributes(9, span_attributes(outcome, provider, model, address)),
            _message_field(15, _int_field(3, ERROR_STATUS)) if failed else b"",
        )
    )


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


def metric_messages(readings: Iterable[Reading], began_ns: int, now_ns: int) -> Iterator[bytes]:
    """Yield all metrics of a scrape except those of the process itself; counters began at `began_ns`."""
    ordered = sorted(merge_readings(readings), key=lambda reading: reading.name)
    for name, series in groupby(ordered, key=lambda reading: reading.name):
        family = CATALOGUE[name]
        if not name.startswith("process_"):
            points = b"".join(_message_field(1, _data_point(family, reading, began_ns, now_ns)) for reading in series)
            yield b"".join(
                (
                    _text_field(1, family.otel or otel_name(name)),
                    _text_field(2, family.help),
                    _text_field(3, family.unit),
                    _data_field(family, points),
                )
            )


def otel_name(name: str) -> str:
    return name.replace("_", ".", 1).removesuffix("_total")


def otel_label(label: str) -> str:
    """Return OpenTelemetry's spelling: `gen_ai.request.model` for `gen_ai_request_model`."""
    return DOTTED.sub(lambda match: match[1].replace("gen_ai_", "gen_ai.") + ".", label)


def _data_field(family: Family, points: bytes) -> bytes:
    match family.type:
        case Type.GAUGE:
            return _message_field(5, points)
        case Type.COUNTER:
            return _message_field(7, points + _int_field(2, CUMULATIVE) + _int_field(3, 1))
        case Type.HISTOGRAM:
            return _message_field(9, points + _int_field(2, CUMULATIVE))


def _data_point(family: Family, reading: Reading, began_ns: int, now_ns: int) -> bytes:
    labels = {otel_label(name): value for name, value in zip(family.labels, reading.labels, strict=True) if value}
    times = _fixed64_field(2, began_ns) + _fixed64_field(3, now_ns)
    if family.type is not Type.HISTOGRAM:
        return times + _double_field(4, reading.values[0]) + _attributes(7, labels)
    *counts, total = reading.values
    buckets = [int(count) for count in counts]
    return b"".join(
        (
            times,
            _fixed64_field(4, sum(buckets)),
            _double_field(5, total),
            _packed_fixed64_field(6, buckets),
            _packed_double_field(7, family.bounds),
            _attributes(9, labels),
        )
    )


def _attributes(field: int, attributes: Mapping[str, Attribute]) -> bytes:
    return b"".join(
        _message_field(field, _encode_name(name) + _message_field(2, _encode_value(value)))
        for name, value in attributes.items()
    )


@lru_cache(maxsize=256)
def _encode_name(attribute: str) -> bytes:
    return _text_field(1, attribute)


def _encode_value(value: Attribute) -> bytes:
    match value:
        case bool():
            return _oneof_int_field(2, int(value))
        case int():
            return _oneof_int_field(3, value)
        case float():
            return _double_field(4, value)
        case str():
            return _message_field(1, value.encode(errors="replace"))
        case tuple():
            return _message_field(5, b"".join(_message_field(1, _encode_value(part)) for part in value))


def _parse_traceparent(header: str) -> tuple[bytes, bytes, bool]:
    """Return trace, parent span and whether the client sampled it; a malformed header is ignored."""
    match = TRACEPARENT.fullmatch(header)
    if match is None or not match[1].strip("0") or not match[2].strip("0"):
        return b"", b"", True
    return bytes.fromhex(match[1]), bytes.fromhex(match[2]), bool(int(match[3], 16) & 1)


def _target_of(outcome: Outcome) -> tuple[str, str]:
    """Return provider and model that replied, else those tried last, else the requested model."""
    if outcome.provider:
        return outcome.provider, _clean(outcome.model)
    if outcome.failed_attempts:
        provider, _, model = outcome.failed_attempts[-1].route.partition("/")
        return provider, _clean(model)
    return "", _clean(outcome.requested_model)


def _nanoseconds(since_epoch: float) -> int:
    """Round to microseconds, which is as precise as a float of this size."""
    return round(since_epoch * 1e6) * 1000


def _clean(text: str) -> str:
    return one_line(text[:MAX_TEXT])


# Protobuf fields. A default value is not written, as the format demands.


def _varint(number: int) -> bytes:
    if 0 <= number < 0x80:
        return _SMALL[number]
    number &= 0xFFFFFFFFFFFFFFFF  # negative numbers are written in two's complement
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _message_field(field: int, body: bytes) -> bytes:
    """An embedded message, written even if it is empty."""
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def _text_field(field: int, value: str) -> bytes:
    return _message_field(field, value.encode(errors="replace")) if value else b""


def _bytes_field(field: int, value: bytes) -> bytes:
    return _message_field(field, value) if value else b""


def _int_field(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""


def _oneof_int_field(field: int, value: int) -> bytes:
    """An integer of a oneof, written even if it is zero: it shows which of them is set."""
    return _varint(field << 3) + _varint(value)


def _double_field(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + _DOUBLE.pack(value)


def _fixed64_field(field: int, value: int) -> bytes:
    return _varint(field << 3 | 1) + _FIXED64.pack(value)


def _packed_fixed64_field(field: int, values: Iterable[int]) -> bytes:
    return _bytes_field(field, b"".join(map(_FIXED64.pack, values)))


def _packed_double_field(field: int, values: Iterable[float]) -> bytes:
    return _bytes_field(field, b"".join(map(_DOUBLE.pack, values)))
