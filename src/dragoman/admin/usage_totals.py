"""Sums by quarter of an hour come in; totals by day, model, key, client or provider go out."""

from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal

from msgspec import Struct

from dragoman.store.usage_rows import SLOT_MS, Span, UsageSum

NOBODY = "(none)"
COUNTS = (
    *("requests", "failed", "client_gone", "input_tokens", "cache_read_tokens", "cache_write_tokens"),
    *("output_tokens", "reasoning_tokens", "credits", "cost_nano_usd"),
    *("priced", "counted", "derived", "estimated", "estimated_tokens", "duration_ms"),
)


class Total(Struct):
    """What the requests of one group used. Input counts what was read from and written to a cache too."""

    name: str
    key: str = ""  # the key's id, where the group is one
    requests: int = 0
    failed: int = 0
    client_gone: int = 0
    input_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    credits: float = 0.0
    cost_nano_usd: int = 0
    priced: int = 0
    counted: int = 0
    derived: int = 0
    estimated: int = 0
    estimated_tokens: int = 0
    duration_ms: int = 0
    days: dict[date, int] = {}  # tokens

    @property
    def label(self) -> str:
        return f"{self.name} ({self.key})" if self.key not in ("", self.name) else self.name

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def fresh(self) -> int:
        """Input that came from and went to no cache."""
        return max(0, self.input_tokens - self.cache_read_tokens - self.cache_write_tokens)

    @property
    def unpriced(self) -> int:
        """Requests with counts and without a price."""
        return self.counted - self.priced

    @property
    def dollars(self) -> Decimal:
        return Decimal(self.cost_nano_usd).scaleb(-9)

    def add(self, part: "UsageSum | Total", days: Mapping[date, int]) -> None:
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(part, name))
        for day, tokens in days.items():
            self.days[day] = self.days.get(day, 0) + tokens

    def as_row(self, by: str) -> dict[str, object]:
        """For machines: the same names as in the store, and the cost in dollars too."""
        head: dict[str, object] = {by: self.name} if by != "key" else {"key": self.key, "name": self.name}
        counts: dict[str, object] = {name: getattr(self, name) for name in COUNTS}
        counts["credits"] = round(self.credits, 12)  # beyond, only the noise of adding them up
        if not self.priced:
            return head | counts | {"cost_nano_usd": None, "cost_usd": None}
        return head | counts | {"cost_usd": float(self.dollars)}


def totals_of(parts: Iterable[UsageSum], by: str, names: Mapping[str, str]) -> list[Total]:
    """By day in order of time, by anything else the greatest first. `names` are those of keys."""
    found: dict[str, Total] = {}
    for part in parts:
        day = _day(part)
        group = day.isoformat() if by == "day" else part.group
        if group not in found:
            found[group] = Total(_name(group, by, names), group if by == "key" else "")
        found[group].add(part, {day: part.input_tokens + part.output_tokens})
    if by == "day":
        days = all_days(day for total in found.values() for day in total.days)
        return [found.get(day.isoformat()) or Total(day.isoformat()) for day in days]
    return sorted(found.values(), key=lambda total: (-total.tokens, -total.requests, total.name))


def sum_of(totals: Iterable[Total]) -> Total:
    whole = Total("total")
    for total in totals:
        whole.add(total, total.days)
    return whole


def all_days(days: Iterable[date]) -> list[date]:
    """From the first to the last, those of which nothing is known too."""
    known = sorted(days)
    return [known[0] + timedelta(days=number) for number in range((known[-1] - known[0]).days + 1)] if known else []


def as_json(totals: list[Total], by: str, span: Span) -> dict[str, object]:
    whole = sum_of(totals).as_row("total")
    whole.pop("total")
    rows = [total.as_row(by) for total in totals]
    return {"since": _moment(span.since_ms), "until": _moment(span.until_ms), "by": by, "rows": rows, "total": whole}


def _day(part: UsageSum) -> date:
    return datetime.fromtimestamp(part.slot * SLOT_MS / 1000).date()


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat("T", "seconds")


def _name(group: str, by: str, names: Mapping[str, str]) -> str:
    if by == "key":
        return names.get(group, group or NOBODY)
    return group.strip("/") or NOBODY
