"""What was used: rows and sums from the store or the running gateway, totals, CSV, and the use of each plan."""

import csv
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Literal, cast, get_args
from urllib.parse import quote

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from dragoman.config.problems import ConfigError
from dragoman.config.providers import split_by_credential
from dragoman.config.settings import Config
from dragoman.net.client import ConnectionLost, HttpClient, SizeLimitExceeded, UpstreamTimeout
from dragoman.operate import AdminError, InvalidArgument
from dragoman.operate.gateway.running_gateway import GatewayClient
from dragoman.store import Store, open_store
from dragoman.store.rollup import HOUR_MS, SumQuery
from dragoman.store.store import SQLITE
from dragoman.store.usage_rows import SLOT_MS, GroupBy, UsageRow, UsageSpan, UsageSum, sum_by_day
from dragoman.tenancy.keys import Keyring
from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.translate.framing.redaction import redact
from dragoman.translate.hub.failure import RequestError
from dragoman.upstreams import KINDS, Surroundings
from dragoman.upstreams.account_state import Quota
from dragoman.upstreams.credentials.stored import open_stored_credentials

PATH = "/api/usage"
DAY = "day"
ROWS = "rows"  # instead of a group: every request by itself
TAG = "tag"
MAX_TAG = 64
GROUPS = tuple(by for by in get_args(GroupBy) if by != TAG)
MAX_ROWS = 10_000
MAX_SUMS = 40_000
RELATIVE_TIME = re.compile(r"(\d{1,5})([hdw])")
ALWAYS = "all"
TIME_FORMATS = 'use a duration (24h, 7d, 4w), a day (2026-11-15), or "all"'
NO_NAME = "(none)"
COUNTS = UsageSum.__struct_fields__[2:-2]  # without group, slot and the counts of speed
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


class UsageReport(Struct, frozen=True):
    """What was used, in sums or in rows. `whole`: by all keys, not only by those of one key, user, team or provider."""

    whole: bool
    sums: tuple[UsageSum, ...] = ()
    rows: tuple[UsageRow, ...] = ()
    names: dict[str, str] = {}  # of keys, by their ids, where the sums are by key


class UsageQuestion(Struct, frozen=True):
    """What a report shows: whose requests of which time, and by what they are grouped, DAY or ROWS among others."""

    span: UsageSpan
    by: str


class LoadedUsage(Struct, frozen=True):
    """A report and where it comes from; `gateway_problem` says why it is not from the gateway that runs."""

    report: UsageReport
    source: Literal["gateway", "store", "none"]
    gateway_problem: str = ""


class QuotaReport(Struct, frozen=True):
    """How much of each account's plan is used, and which accounts could not be read."""

    quotas: list[Quota]
    problems: list[str]


class TooMuchUsage(AdminError):
    """The report would have more lines than one response may have."""


def parse_span(since: str, until: str | None, now: datetime) -> UsageSpan:
    """Return the span from `since` to the end of the day `until`, in the days of this machine's time zone."""
    end = _milliseconds(now) + 1
    if until is not None:
        end = _milliseconds(_to_midnight(_parse_day(until) + timedelta(days=1)))
    begin = max(0, _parse_begin(since, now))
    if begin >= end:
        raise InvalidArgument("--since is not before --until.")
    return UsageSpan(begin, end)


async def read_usage(store: Store, question: UsageQuestion, *, limited: bool) -> UsageReport:
    """Read what a store has; where `limited`, raise TooMuchUsage instead of building a very long report."""
    span, by = question.span, question.by
    whole = span.is_whole
    if by == ROWS:
        sums = await store.read_usage_sums(make_query(span, step_ms=0)) if limited else ()
        if sum(part.requests for part in sums) > MAX_ROWS:
            raise _too_much(MAX_ROWS)
        return UsageReport(whole, rows=await store.read_usage_rows(span))
    if by == DAY:
        return UsageReport(whole, sum_by_day(await store.read_usage_sums(make_query(span))))
    query = make_query(span, by)
    sums = await store.read_usage_sums(limit_sums(query) if limited else query)
    return await make_report(store, sums, question, limited=limited)


async def make_report(
    store: Store, sums: tuple[UsageSum, ...], question: UsageQuestion, *, limited: bool
) -> UsageReport:
    """Return sums with the names of keys, where they are by key."""
    if limited and len(sums) > MAX_SUMS:
        raise _too_much(MAX_SUMS)
    whole = question.span.is_whole
    groups = {part.group for part in sums}
    keys = [row for row in await store.list_keys() if whole or row.id in groups] if question.by == "key" else ()
    return UsageReport(whole, sums, names={row.id: row.name for row in keys})


def make_query(span: UsageSpan, by: str = "all", step_ms: int = SLOT_MS) -> SumQuery:
    """Return the query of a group, which may be `tag:NAME`."""
    group, _, tag = by.partition(":")
    return SumQuery(
        since_ms=span.since_ms,
        until_ms=span.until_ms,
        key=span.key,
        by=cast(GroupBy, group),
        step_ms=step_ms,
        team=span.team,
        tag=tag,
        user=span.user,
        provider=span.provider,
    )


def limit_sums(query: SumQuery) -> SumQuery:
    """Return a query that reads no more than is needed to see that its report would be too long."""
    return replace(query, most=MAX_SUMS + 1)


def find_group_problem(by: str, more: Sequence[str] = ()) -> str | None:
    """Return what is wrong with a group, or None. `more` are words that stand for other reports."""
    group, _, tag = by.partition(":")
    if by in more or (group == TAG and 0 < len(tag) <= MAX_TAG and tag.isprintable() and not set(tag) & {",", "="}):
        return None
    if by in GROUPS:
        return None
    offered = ", ".join((*more, *GROUPS, f"{TAG}:NAME"))
    return f"by must be one of {offered}, got {by[:80]!r}."


async def load_usage(config: Config, key: str | None, question: UsageQuestion, root: str | None = None) -> LoadedUsage:
    """Ask the gateway at `root`, whose report includes what it has not stored yet; else read the store.

    A gateway reports to a stored key only what that key used; the store is then read if it is the gateway's.
    """
    reported, problem = await _ask_gateway(config, root, key, question)
    if reported is not None and reported.whole:
        return LoadedUsage(reported, "gateway")
    stored = await _read_store(config.store.url, question, opened_by=None if reported is None else key)
    if stored is not None:
        return LoadedUsage(stored, "store", problem)
    if reported is not None:
        return LoadedUsage(reported, "gateway")
    return LoadedUsage(UsageReport(whole=True), "none", problem)


async def read_quotas(config: Config) -> QuotaReport:
    """Ask every provider that has plans how much of them is used."""
    report = QuotaReport([], [])
    async with HttpClient() as http, open_stored_credentials(config, os.environ) as stored:
        around = Surroundings(http.send, os.environ, stored)
        for section in (single for provider in config.providers.values() for single in split_by_credential(provider)):
            try:
                provider = KINDS[section.kind](section, around) if section.kind in KINDS else None
                if provider is not None and provider.account.read_quotas is not None:
                    report.quotas.extend(await provider.account.read_quotas())
            except RequestError as refused:
                problem = f"{section.name}: {refused.failure.message} `dragoman doctor` shows what to do."
                report.problems.append(problem)
            except ConfigError as error:
                report.problems.append(str(error))
    return report


async def _ask_gateway(
    config: Config, root: str | None, key: str | None, question: UsageQuestion
) -> tuple[UsageReport | None, str]:
    """Return the gateway's report, or None and why there is none."""
    if root is None or not key:
        return None, ""
    span = question.span
    path = f"{PATH}?since_ms={span.since_ms}&until_ms={span.until_ms}&by={quote(question.by)}"
    try:
        async with HttpClient() as http:
            return msgspec.json.decode(await GatewayClient(root, key, http).get(path), type=UsageReport), ""
    except (AdminError, ConnectionLost, UpstreamTimeout, SizeLimitExceeded, *JSON_ERRORS) as fault:
        if is_absent(config.store.url):
            raise
        return None, redact(str(fault))


async def _read_store(url: str, question: UsageQuestion, opened_by: str | None) -> UsageReport | None:
    """Return None where there is no store, or where it does not have the key that the gateway accepts."""
    if is_absent(url):
        return None
    async with await open_store(url) as store:
        if opened_by is not None:
            keyring = Keyring(store)
            await keyring.refresh()
            if keyring.check(opened_by.encode()) is None:
                return None
        return await read_usage(store, question, limited=False)


def is_absent(url: str) -> bool:
    """Return whether the store's file is missing; opening the store would create it."""
    return url.startswith(SQLITE) and not Path(url.removeprefix(SQLITE)).exists()


def _too_much(limit: int) -> TooMuchUsage:
    return TooMuchUsage(f"The response would have more than {limit} lines: request a shorter time.")


def _parse_begin(since: str, now: datetime) -> int:
    """Return milliseconds since the epoch. Hours are counted, whatever the clock shows where it is changed."""
    if since == ALWAYS:
        return 0
    relative = RELATIVE_TIME.fullmatch(since)
    if relative is None:
        return _milliseconds(_to_midnight(_parse_day(since)))
    number = int(relative[1])
    if relative[2] == "h":
        return _milliseconds(now) - number * HOUR_MS
    days = number * (7 if relative[2] == "w" else 1)
    return _milliseconds(_to_midnight(now.date() - timedelta(days=max(0, days - 1))))  # today is one of them


def _parse_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(f'"{text}" is not a valid time: {TIME_FORMATS}.') from None


def _to_midnight(day: date) -> datetime:
    return datetime.combine(day, time())


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


class Total(UsageSum):
    """What the requests of one group used. Input includes what was read from and written to a cache."""

    key: str = ""  # the key's id, where the group is one
    days: dict[date, int] = field(default_factory=dict)  # tokens

    @property
    def name(self) -> str:
        return self.group

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
        """Requests with counts and without a known price."""
        return self.counted - self.priced

    @property
    def dollars(self) -> Decimal:
        return Decimal(self.cost_nano_usd).scaleb(-9)

    @property
    def cache_share(self) -> float | None:
        """How much of what prompt caches could have had they had; None: that is not known."""
        return self.cache_had_tokens / self.cache_possible_tokens if self.cache_possible_tokens else None

    @property
    def saved_dollars(self) -> Decimal:
        return Decimal(self.cache_saved_nano_usd).scaleb(-9)

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
        day = datetime.fromtimestamp(part.slot * SLOT_MS / 1000).date()
        group = day.isoformat() if by == "day" else part.group
        if group not in groups:
            groups[group] = Total(_name(group, by, names), key=group if by == "key" else "")
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
    return {
        "since": _format_time(span.since_ms),
        "until": _format_time(span.until_ms),
        "by": by,
        "rows": rows,
        "total": whole,
    }


def _format_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat("T", "seconds")


def _name(group: str, by: str, names: Mapping[str, str]) -> str:
    if by == "key":
        return names.get(group, group or NO_NAME)
    return group.strip("/") or NO_NAME


def format_csv_header(names: Sequence[str]) -> str:
    return _format_csv([names])


def format_csv_rows(records: Iterable[Mapping[str, object]], names: Sequence[str]) -> str:
    return _format_csv([escape_formula(record.get(name)) for name in names] for record in records)


def escape_formula(value: object) -> object:
    """Quote what a spreadsheet would run as a formula. A carriage return, which would end the row, becomes a space."""
    if not isinstance(value, str):
        return value
    text = value.replace("\r", " ")
    return f"'{text}" if value.startswith(FORMULA_STARTS) else text


def _format_csv(rows: Iterable[Sequence[object]]) -> str:
    page = io.StringIO()
    csv.writer(page, lineterminator="\n").writerows(rows)
    return page.getvalue()
