"""What a person calls a time comes in; the span of milliseconds that is meant goes out."""

import re
from datetime import date, datetime, time, timedelta

import click

from dragoman.store.usage_rows import Span

AGO = re.compile(r"(\d{1,5})([hdw])")
EVER = "all"
ADVICE = 'write how long ago (24h, 7d, 4w), a day (2026-11-15), or "all"'


def span_of(since: str, until: str | None, now: datetime) -> Span:
    """Days are those of this machine's time zone; the last one is part of the span."""
    end = now + timedelta(milliseconds=1) if until is None else _midnight(_day(until) + timedelta(days=1))
    begin = _begin(since, now)
    if begin >= end:
        raise click.UsageError("--since is not before --until.")
    return Span(max(0, _ms(begin)), _ms(end))


def title(span: Span) -> str:
    first = datetime.fromtimestamp(span.since_ms / 1000)
    last = datetime.fromtimestamp((span.until_ms - 1) / 1000).date()
    if span.since_ms == 0:
        return f"Usage up to {last}"
    since = str(first.date()) if first.time() == time() else first.strftime("%Y-%m-%d %H:%M")
    return f"Usage on {since}" if since == str(last) else f"Usage from {since} to {last}"


def _begin(since: str, now: datetime) -> datetime:
    if since == EVER:
        return datetime.fromtimestamp(0)
    ago = AGO.fullmatch(since)
    if ago is None:
        return _midnight(_day(since))
    number = int(ago[1])
    if ago[2] == "h":
        return now - timedelta(hours=number)
    days = number * (7 if ago[2] == "w" else 1)
    return _midnight(now.date() - timedelta(days=max(0, days - 1)))  # today is one of them


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f'"{text}" is no time: {ADVICE}.') from None


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time())


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
