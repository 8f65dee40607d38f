"""Readings of metrics: merge those of several workers, and render them in Prometheus's text format."""

import math
from collections.abc import Iterable, Iterator

from msgspec import Struct

from dragoman.observers.metrics_catalogue import CATALOGUE, Aggregation, Family, Type

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Reading(Struct, frozen=True, array_like=True):
    """The value of one series at one time; for a histogram, the count of each bucket and then the sum."""

    name: str
    labels: tuple[str, ...]
    values: tuple[float, ...]


def merge_readings(readings: Iterable[Reading]) -> list[Reading]:
    """Return one reading for each series; readings that are not in the catalogue are dropped."""
    merged: dict[tuple[str, tuple[str, ...]], tuple[float, ...]] = {}
    for reading in readings:
        family = CATALOGUE.get(reading.name)
        if family is None or not _has_shape_of(family, reading):
            continue
        series = reading.name, reading.labels
        known = merged.get(series)
        merged[series] = reading.values if known is None else _aggregate(family.aggregation, known, reading.values)
    return [Reading(name, labels, values) for (name, labels), values in merged.items()]


def drop_gauges(readings: Iterable[Reading]) -> list[Reading]:
    """Return the readings that stay true after their process has ended."""
    return [reading for reading in readings if CATALOGUE[reading.name].type is not Type.GAUGE]


def render_text(readings: Iterable[Reading]) -> bytes:
    by_name: dict[str, list[Reading]] = {name: [] for name in CATALOGUE}
    for reading in merge_readings(readings):
        by_name[reading.name].append(reading)
    lines: list[str] = []
    for name, family in CATALOGUE.items():
        lines.append(f"# HELP {name} {family.help}\n# TYPE {name} {family.type.value}\n")
        for reading in sorted(by_name[name], key=lambda reading: reading.labels):
            lines += _render_samples(family, reading)
    return "".join(lines).encode(errors="replace")


def _has_shape_of(family: Family, reading: Reading) -> bool:
    """Whether a reading fits its family: a worker of another version may use the name differently."""
    width = len(family.bounds) + 2 if family.type is Type.HISTOGRAM else 1
    return len(reading.values) == width and len(reading.labels) == len(family.labels)


def _aggregate(how: Aggregation, one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    if how is Aggregation.SUM:
        return tuple(left + right for left, right in zip(one, other, strict=True))
    return max(one, other) if how is Aggregation.MAX else min(one, other)


def _render_samples(family: Family, reading: Reading) -> Iterator[str]:
    labels = ",".join(f'{name}="{_escape(value)}"' for name, value in zip(family.labels, reading.labels, strict=True))
    name, values = family.name, reading.values
    braced = f"{{{labels}}}" if labels else ""
    if family.type is not Type.HISTOGRAM:
        yield f"{name}{braced} {_format_number(values[0])}\n"
        return
    total = 0.0
    comma = "," if labels else ""
    for bound, count in zip((*map(_format_number, family.bounds), "+Inf"), values, strict=False):
        total += count
        yield f'{name}_bucket{{{labels}{comma}le="{bound}"}} {_format_number(total)}\n'
    yield f"{name}_sum{braced} {_format_number(values[-1])}\n{name}_count{braced} {_format_number(total)}\n"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _format_number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)
