"""Totals of usage by day, model, key, client or provider, made from the store's sums of quarters of an hour."""

from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal

from msgspec import Struct

from dragoman.store.usage_rows import SLOT_MS, UsageSpan, UsageSum

NO_NAME = "(none)"
COUNTS = (
    *("requests", "failed", "client_gone", "input_tokens", "cache_read_tokens", "cache_write_tokens"),
    *("output_tokens", "reasoning_tokens", "credits", "cost_nano_usd"),
    *("priced", "counted", "derived", "estimated", "estimated_tokens", "duration_ms"),
    *("web_searches", "web_fetches"),
)


class Total(Struct):
    """What the requests of one group used. Input includes what was read from and written to a cache."""

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
    web_searches: int = 0
    web_fetches: int = 0
    days: dict[date, int] = {}  # tokens

    @property
    def label(self) -> str:
        return f"{self.name} ({self.key})" if self.key not in ("", self.name) else self.name

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def fresh_input_tokens(self) -> int:
        """Input that was neither read from a cache nor written to one."""
        return max(0, self.input_tokens - self.cache_read_tokens - self.cache_write_tokens)

    @property
    def unpriced(self) -> int:
        """Requests with token counts and without a known price."""
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
        """Return the counts by the names of the store's columns, and the cost in dollars."""
        head: dict[str, object] = {by: self.name} if by != "key" else {"key": self.key, "name": self.name}
        counts: dict[str, object] = {name: getattr(self, name) for name in COUNTS}
        counts["credits"] = round(self.credits, 12)  # further digits are rounding errors of the sum
        if not self.priced:
            return head | counts | {"cost_nano_usd": None, "cost_usd": None}
        return head | counts | {"cost_usd": float(self.dollars)}


def group_totals(parts: Iterable[UsageSum], by: str, names: Mapping[str, str]) -> list[Total]:
    """Return the totals: days in their order, any other group by size. `names` are the names of keys by their ids."""
    groups: dict[str, Total] = {}
    for part in parts:
        day = _day(part)
        group = day.isoformat() if by == "day" else part.group
        if group not in groups:
            groups[group] = Total(_name(group, by, names), group if by == "key" else "")
        groups[group].add(part, {day: part.input_tokens + part.output_tokens})
    if by == "day":
        days = fill_days(day for total in groups.values() for day in total.days)
        return [groups.get(day.isoformat()) or Total(day.isoformat()) for day in days]
    return sorted(groups.values(), key=lambda total: (-total.tokens, -total.requests, total.name))


def add_totals(totals: Iterable[Total]) -> Total:
    whole = Total("total")
    for total in totals:
        whole.add(total, total.days)
    return whole


def fill_days(days: Iterable[date]) -> list[date]:
    """Return every day from the first to the last, including those without usage."""
    known = sorted(days)
    return [known[0] + timedelta(days=number) for number in range((known[-1] - known[0]).days + 1)] if known else []


def as_record(totals: list[Total], by: str, span: UsageSpan) -> dict[str, object]:
    whole = add_totals(totals).as_row("total")
    whole.pop("total")
    rows = [total.as_row(by) for total in totals]
    return {"since": _moment(span.since_ms), "until": _moment(span.until_ms), "by": by, "rows": rows, "total": whole}


def _day(part: UsageSum) -> date:
    return datetime.fromtimestamp(part.slot * SLOT_MS / 1000).date()


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat("T", "seconds")


def _name(group: str, by: str, names: Mapping[str, str]) -> str:
    if by == "key":
        return names.get(group, group or NO_NAME)
    return group.strip("/") or NO_NAME
