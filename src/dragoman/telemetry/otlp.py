"""Attributes, outcomes and readings come in; OTLP's protobuf messages for traces and metrics go out."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import groupby

from dragoman.framing.oneline import one_line
from dragoman.hub.outcome import OK, Outcome
from dragoman.observers.metrics import OPERATIONS, PROVIDER_NAMES
from dragoman.observers.metrics_catalogue import CATALOGUE, Family, Type
from dragoman.observers.metrics_text import Reading, joined
from dragoman.telemetry import protobuf as pb

Attribute = str | int | float | bool | tuple[str, ...]
Address = Callable[[str], tuple[str, int] | None]  # of a provider

CLIENT_SPAN = 3
ERROR_STATUS = 2
CUMULATIVE = 2
MAX_TEXT = 200
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
DOTTED = re.compile(r"^(gen_ai_(?:operation|provider|request|token)|error)_")


def trace_message(resource: bytes, scope: bytes, spans: Iterable[bytes]) -> bytes:
    return _nested(resource, scope, spans)


def metrics_message(resource: bytes, scope: bytes, metrics: Iterable[bytes]) -> bytes:
    return _nested(resource, scope, metrics)


def _nested(resource: bytes, scope: bytes, items: Iterable[bytes]) -> bytes:
    """Both exports have the same shape down to here."""
    of_scope = pb.message(1, scope) + b"".join(pb.message(2, item) for item in items)
    return pb.message(1, pb.message(1, resource) + pb.message(2, of_scope))


def resource_message(attributes: Mapping[str, Attribute]) -> bytes:
    return _attributes(1, attributes)


def scope_message(name: str, version: str) -> bytes:
    return pb.text(1, name) + pb.text(2, version)


def span_message(outcome: Outcome, address: Address, chance: Callable[[int], bytes]) -> bytes | None:
    """One request's span, below the client's own where it named one; None where the client said not to record it."""
    trace, parent, sampled = _parent(outcome.traceparent)
    if not sampled:
        return None
    provider, model = _asked(outcome)
    operation = OPERATIONS.get(outcome.client_protocol, "chat")
    failed = outcome.outcome != OK
    return b"".join(
        (
            pb.blob(1, trace or chance(16)),
            pb.blob(2, chance(8)),
            pb.blob(4, parent),
            pb.text(5, f"{operation} {model}".strip()),
            pb.integer(6, CLIENT_SPAN),
            pb.fixed64(7, _nanoseconds(outcome.started_at)),
            pb.fixed64(8, _nanoseconds(outcome.started_at + outcome.duration_s)),
            _attributes(9, span_attributes(outcome, provider, model, address)),
            pb.message(15, pb.integer(3, ERROR_STATUS)) if failed else b"",
        )
    )


def span_attributes(outcome: Outcome, provider: str, model: str, address: Address) -> dict[str, Attribute]:
    """No content, no key; what is not known is not there."""
    usage = outcome.usage
    where = address(provider) if provider else None
    told: dict[str, Attribute | None] = {
        "gen_ai.operation.name": OPERATIONS.get(outcome.client_protocol, "chat"),
        "gen_ai.provider.name": PROVIDER_NAMES.get(provider, provider) or None,
        "gen_ai.request.model": model or None,
        "gen_ai.request.stream": outcome.stream,
        "gen_ai.response.model": _plain(outcome.reported_model) or None,
        "gen_ai.response.time_to_first_chunk": outcome.ttft_s if outcome.stream else None,
        "server.address": where[0] if where else None,
        "server.port": where[1] if where else None,
        "error.type": outcome.outcome if outcome.outcome != OK else None,
        "dragoman.request.id": _plain(outcome.request_id),
        "dragoman.client.protocol": outcome.client_protocol,
        "dragoman.upstream.protocol": outcome.upstream_protocol or None,
        "dragoman.client.name": _plain(outcome.client) or None,
        "dragoman.losses": outcome.losses or None,
        "dragoman.steps": tuple(f"{_plain(step.route)}: {step.why}" for step in outcome.failed_attempts) or None,
    }
    if usage is not None:
        told |= {
            "gen_ai.usage.input_tokens": usage.input,
            "gen_ai.usage.output_tokens": usage.output,
            "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
            "gen_ai.usage.cache_creation.input_tokens": usage.cache_write,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
            "dragoman.usage.source": usage.source.value,
        }
    return {name: value for name, value in told.items() if value is not None}


def metric_messages(readings: Iterable[Reading], began_ns: int, now_ns: int) -> Iterator[bytes]:
    """All that a scrape would tell but what is the process's own, counted since `began_ns`."""
    of_family = sorted(joined(readings), key=lambda reading: reading.name)
    for name, series in groupby(of_family, key=lambda reading: reading.name):
        family = CATALOGUE[name]
        if not name.startswith("process_"):
            points = b"".join(pb.message(1, _point(family, reading, began_ns, now_ns)) for reading in series)
            yield b"".join(
                (
                    pb.text(1, family.otel or otel_name(name)),
                    pb.text(2, family.help),
                    pb.text(3, family.unit),
                    _data(family, points),
                )
            )


def otel_name(name: str) -> str:
    return name.replace("_", ".", 1).removesuffix("_total")


def otel_label(label: str) -> str:
    """`gen_ai_request_model` is `gen_ai.request.model` there."""
    return DOTTED.sub(lambda match: match[1].replace("gen_ai_", "gen_ai.") + ".", label)


def _data(family: Family, points: bytes) -> bytes:
    match family.type:
        case Type.GAUGE:
            return pb.message(5, points)
        case Type.COUNTER:
            return pb.message(7, points + pb.integer(2, CUMULATIVE) + pb.integer(3, 1))
        case Type.HISTOGRAM:
            return pb.message(9, points + pb.integer(2, CUMULATIVE))


def _point(family: Family, reading: Reading, began_ns: int, now_ns: int) -> bytes:
    labels = {otel_label(name): value for name, value in zip(family.labels, reading.labels, strict=True) if value}
    times = pb.fixed64(2, began_ns) + pb.fixed64(3, now_ns)
    if family.type is not Type.HISTOGRAM:
        return times + pb.double(4, reading.values[0]) + _attributes(7, labels)
    *counts, total = reading.values
    whole = [int(count) for count in counts]
    return b"".join(
        (
            times,
            pb.fixed64(4, sum(whole)),
            pb.double(5, total),
            pb.packed_fixed64(6, whole),
            pb.packed_double(7, family.bounds),
            _attributes(9, labels),
        )
    )


def _attributes(field: int, attributes: Mapping[str, Attribute]) -> bytes:
    return b"".join(pb.message(field, _name(name) + pb.message(2, _value(value))) for name, value in attributes.items())


@lru_cache(maxsize=256)
def _name(attribute: str) -> bytes:
    return pb.text(1, attribute)


def _value(value: Attribute) -> bytes:
    match value:
        case bool():
            return pb.chosen_integer(2, int(value))
        case int():
            return pb.chosen_integer(3, value)
        case float():
            return pb.double(4, value)
        case str():
            return pb.message(1, value.encode(errors="replace"))
        case tuple():
            return pb.message(5, b"".join(pb.message(1, _value(part)) for part in value))


def _parent(trace: str) -> tuple[bytes, bytes, bool]:
    """Trace, parent span, and whether it is to be recorded; a header that is none is as good as no header."""
    match = TRACEPARENT.fullmatch(trace)
    if match is None or not match[1].strip("0") or not match[2].strip("0"):
        return b"", b"", True
    return bytes.fromhex(match[1]), bytes.fromhex(match[2]), bool(int(match[3], 16) & 1)


def _asked(outcome: Outcome) -> tuple[str, str]:
    """Who answered, or where nobody did, who was asked last, or at least for what."""
    if outcome.provider:
        return outcome.provider, _plain(outcome.model)
    if outcome.failed_attempts:
        provider, _, model = outcome.failed_attempts[-1].route.partition("/")
        return provider, _plain(model)
    return "", _plain(outcome.requested_model)


def _nanoseconds(since_epoch: float) -> int:
    """To the microsecond: a float of this size knows no more."""
    return round(since_epoch * 1e6) * 1000


def _plain(text: str) -> str:
    return one_line(text[:MAX_TEXT])
