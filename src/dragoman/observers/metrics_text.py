"""Readings of metrics come in, one worker's or several; the text that Prometheus scrapes goes out."""

import math
from collections.abc import Iterable, Iterator

from msgspec import Struct

from dragoman.observers.metrics_catalogue import CATALOGUE, Family, Joint, Type

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Reading(Struct, frozen=True, array_like=True):
    """One series at one moment; of a histogram, how many fell into each bucket, then the sum of what fell there."""

    name: str
    labels: tuple[str, ...]
    values: tuple[float, ...]


def joined(readings: Iterable[Reading]) -> list[Reading]:
    """One reading for each series, whatever several workers said of it; what is not in the catalogue is left out."""
    found: dict[tuple[str, tuple[str, ...]], tuple[float, ...]] = {}
    for reading in readings:
        family = CATALOGUE.get(reading.name)
        if family is None or not _fits(family, reading):
            continue
        series = reading.name, reading.labels
        known = found.get(series)
        found[series] = reading.values if known is None else _together(family.joint, known, reading.values)
    return [Reading(name, labels, values) for (name, labels), values in found.items()]


def counted(readings: Iterable[Reading]) -> list[Reading]:
    """Without the gauges: what stays true of a process that is gone."""
    return [reading for reading in readings if CATALOGUE[reading.name].type is not Type.GAUGE]


def as_text(readings: Iterable[Reading]) -> bytes:
    by_name: dict[str, list[Reading]] = {name: [] for name in CATALOGUE}
    for reading in joined(readings):
        by_name[reading.name].append(reading)
    lines: list[str] = []
    for name, family in CATALOGUE.items():
        lines.append(f"# HELP {name} {family.help}\n# TYPE {name} {family.type.value}\n")
        for reading in sorted(by_name[name], key=lambda reading: reading.labels):
            lines += _samples(family, reading)
    return "".join(lines).encode(errors="replace")


def _fits(family: Family, reading: Reading) -> bool:
    """A worker of another version may mean something else by a name."""
    width = len(family.bounds) + 2 if family.type is Type.HISTOGRAM else 1
    return len(reading.values) == width and len(reading.labels) == len(family.labels)


def _together(joint: Joint, one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    if joint is Joint.SUM:
        return tuple(left + right for left, right in zip(one, other, strict=True))
    return max(one, other) if joint is Joint.MOST else min(one, other)


def _samples(family: Family, reading: Reading) -> Iterator[str]:
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(family.labels, reading.labels, strict=True))
    name, values = family.name, reading.values
    braced = f"{{{labels}}}" if labels else ""
    if family.type is not Type.HISTOGRAM:
        yield f"{name}{braced} {_number(values[0])}\n"
        return
    total = 0.0
    comma = "," if labels else ""
    for bound, count in zip((*map(_number, family.bounds), "+Inf"), values, strict=False):
        total += count
        yield f'{name}_bucket{{{labels}{comma}le="{bound}"}} {_number(total)}\n'
    yield f"{name}_sum{braced} {_number(values[-1])}\n{name}_count{braced} {_number(total)}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)
