"""Usage from a real store and a real gateway, the spans of time that a user may name, totals and CSV."""

import asyncio
import csv
import io
import time
import urllib.request
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.config.load import ConfigSource
from dragoman.config.settings import Config
from dragoman.operate import AdminError, InvalidArgument
from dragoman.operate.usage.reports import (
    LoadedUsage,
    TooMuchUsage,
    Total,
    UsageQuestion,
    add_totals,
    as_record,
    fill_days,
    format_csv_header,
    format_csv_rows,
    group_totals,
    limit_sums,
    load_usage,
    make_query,
    parse_span,
    read_quotas,
    read_usage,
)
from dragoman.store import open_store
from dragoman.store.usage_rows import SLOT_MS, UsageSpan, UsageSum
from fakes.kiro import ARN, FakeKiro
from gateway import KEY, Running, running
from store.rows import row

EVER = UsageSpan(0, 10**17)
NOW = datetime(2026, 11, 15, 13, 30)
ECHO = b'{"model":"echo","messages":[{"role":"user","content":"one two three"}]}'


def config_in(directory: Path, toml: str = "", port: int = 1) -> Config:
    file = directory / "command.toml"
    file.write_text(f'{toml}\n[store]\nurl = "sqlite:///{directory}/store.db"\n[server]\nport = {port}\n')
    return ConfigSource(str(file), {}, directory, directory).read()


def send_request(gateway: Running, key: str = KEY) -> None:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{gateway.url}/v1/chat/completions", ECHO, headers)
    with urllib.request.urlopen(request, timeout=20) as reply:
        reply.read()


@pytest.mark.parametrize(
    ("since", "begin"),
    [
        ("24h", datetime(2026, 11, 14, 13, 30)),
        ("1d", datetime(2026, 11, 15)),
        ("7d", datetime(2026, 11, 9)),
        ("2w", datetime(2026, 11, 2)),
        ("2026-11-01", datetime(2026, 11, 1)),
        ("all", datetime.fromtimestamp(0)),
    ],
)
def test_a_span_begins_where_the_user_says(since: str, begin: datetime) -> None:
    assert parse_span(since, None, NOW).since_ms == int(begin.timestamp() * 1000)


def test_hours_are_counted_where_the_clock_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        for moment in (datetime(2026, 3, 29, 12), datetime(2026, 10, 25, 12), datetime(2026, 10, 25, 2, 30, fold=1)):
            span, now_ms = parse_span("24h", None, moment), int(moment.timestamp() * 1000)
            assert (span.since_ms, span.until_ms) == (now_ms - 24 * 3_600_000, now_ms + 1), moment
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_last_day_is_part_of_the_span() -> None:
    end = parse_span("all", "2026-11-14", NOW).until_ms
    assert datetime.fromtimestamp((end - 1) / 1000).date() == date(2026, 11, 14)


@pytest.mark.parametrize(("since", "until"), [("yesterday", None), ("7x", None), ("all", "7d"), ("1d", "2026-11-01")])
def test_a_time_that_means_nothing_is_an_invalid_argument(since: str, until: str | None) -> None:
    with pytest.raises(InvalidArgument):
        parse_span(since, until, NOW)


def test_a_store_is_read_by_group_by_row_and_for_one_key(tmp_path: Path) -> None:
    async def read() -> None:
        store = await open_store(f"sqlite:///{tmp_path}/store.db")
        try:
            await store.append_usage([row(1), replace(row(2), key="key_2", model="other")])
            by_model = await read_usage(store, UsageQuestion(EVER, "model"), limited=True)
            assert (by_model.whole, sorted(part.group for part in by_model.sums)) == (
                True,
                ["up/claude-fake", "up/other"],
            )
            rows = await read_usage(store, UsageQuestion(EVER, "rows"), limited=True)
            assert [one.request_id for one in rows.rows] == ["req_1", "req_2"]
            own = await read_usage(store, UsageQuestion(replace(EVER, key="key_2"), "day"), limited=True)
            assert (own.whole, sum(part.requests for part in own.sums)) == (False, 1)
        finally:
            await store.close()

    asyncio.run(read())


def test_too_many_rows_are_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.operate.usage.reports.MAX_ROWS", 1)

    async def read() -> None:
        store = await open_store(f"sqlite:///{tmp_path}/store.db")
        try:
            await store.append_usage([row(1), row(2)])
            with pytest.raises(TooMuchUsage, match="more than 1 lines"):
                await read_usage(store, UsageQuestion(EVER, "rows"), limited=True)
            assert len((await read_usage(store, UsageQuestion(EVER, "rows"), limited=False)).rows) == 2
        finally:
            await store.close()

    asyncio.run(read())


def test_too_many_sums_are_refused_before_they_are_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.operate.usage.reports.MAX_SUMS", 2)

    async def read() -> None:
        async with await open_store(f"sqlite:///{tmp_path}/store.db") as store:
            await store.append_usage([replace(row(number), tags=f"job={number}") for number in range(1, 10)])
            with pytest.raises(TooMuchUsage, match="more than 2 lines"):
                await read_usage(store, UsageQuestion(EVER, "tag:job"), limited=True)
            assert len(await store.read_usage_sums(limit_sums(make_query(EVER, "tag:job", 0)))) == 3
            assert len((await read_usage(store, UsageQuestion(EVER, "tag:job"), limited=False)).sums) == 9

    asyncio.run(read())


def test_without_a_gateway_and_a_store_nothing_was_used_and_no_file_is_made(tmp_path: Path) -> None:
    loaded = asyncio.run(load_usage(config_in(tmp_path), None, UsageQuestion(EVER, "all")))
    assert (loaded.source, loaded.report.sums) == ("none", ())
    assert not (tmp_path / "store.db").exists()


def load_from(gateway: Running, directory: Path, key: str, span: UsageSpan = EVER) -> LoadedUsage:
    return asyncio.run(
        load_usage(config_in(directory, port=gateway.port), key, UsageQuestion(span, "all"), gateway.url)
    )


def test_the_running_gateway_is_used_first(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with running('[providers.echo]\nkind = "echo"\n', tmp_path, stored=("laptop",)) as gateway:
        send_request(gateway)
        send_request(gateway, gateway.keys["laptop"])
        owner = load_from(gateway, tmp_path_factory.mktemp("owner"), KEY)
        assert (owner.source, owner.report.whole) == ("gateway", True)
        assert sum(part.requests for part in owner.report.sums) == 2
        own = load_from(gateway, tmp_path_factory.mktemp("elsewhere"), gateway.keys["laptop"])
        assert (own.source, own.report.whole) == ("gateway", False)
        assert sum(part.requests for part in own.report.sums) == 1


def test_a_gateway_that_rejects_the_key_is_an_error_only_without_a_store(tmp_path: Path) -> None:
    with running('[providers.echo]\nkind = "echo"\n', tmp_path, stored=("laptop",)) as gateway:
        loaded = load_from(gateway, tmp_path, "dgm_wrong")
        assert loaded.source == "store"
        assert "rejects the key" in loaded.gateway_problem
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        with pytest.raises(AdminError, match="rejects the key"):
            load_from(gateway, elsewhere, "dgm_wrong")


def test_quotas_come_from_the_accounts(tmp_path: Path) -> None:
    with FakeKiro() as fake:
        file = tmp_path / "kiro-auth-token.json"
        table = {**fake.issue(), "expiresAt": "2099-01-01T00:00:00Z", "authMethod": "social", "profileArn": ARN}
        file.write_bytes(msgspec.json.encode(table))
        report = asyncio.run(read_quotas(config_in(tmp_path, fake.section(str(file)))))
    assert report.problems == []
    assert [(quota.provider, quota.used, quota.limit) for quota in report.quotas] == [("kiro", 12.5, 50.0)]


def test_an_account_that_cannot_be_read_is_a_problem_with_its_name(tmp_path: Path) -> None:
    section = f'[providers.mine]\nkind = "kiro"\ncredentials = "{tmp_path}/absent.json"\n'
    report = asyncio.run(read_quotas(config_in(tmp_path, section)))
    assert report.quotas == []
    assert ["mine" in problem for problem in report.problems] == [True]


def usage(group: str, day: int, tokens: int, cost: int = 0) -> UsageSum:
    slot = int(datetime(2026, 11, day, 12).timestamp() * 1000) // SLOT_MS
    return UsageSum(
        group=group,
        slot=slot,
        requests=1,
        failed=0,
        client_gone=0,
        input_tokens=tokens,
        cache_read_tokens=1,
        cache_write_tokens=0,
        output_tokens=2,
        reasoning_tokens=0,
        credits=0.0,
        cost_nano_usd=cost,
        priced=1 if cost else 0,
        counted=1,
        derived=0,
        estimated=0,
        estimated_tokens=0,
        duration_ms=1,
        web_searches=3,
        web_fetches=0,
    )


def test_days_without_usage_are_part_of_the_report() -> None:
    totals = group_totals([usage("all", 3, 10), usage("all", 1, 10), usage("all", 3, 5)], "day", {})
    assert [(total.name, total.requests) for total in totals] == [
        ("2026-11-01", 1),
        ("2026-11-02", 0),
        ("2026-11-03", 2),
    ]
    assert fill_days([]) == []


def test_other_groups_are_sorted_by_size_and_keys_have_their_names() -> None:
    totals = group_totals([usage("key_1", 1, 10), usage("key_2", 1, 20), usage("", 1, 1)], "key", {"key_1": "laptop"})
    assert [total.label for total in totals] == ["key_2", "laptop (key_1)", "(none)"]


def test_what_is_derived_from_the_counts() -> None:
    whole = add_totals(group_totals([usage("m", 1, 10, cost=2_000_000_000), usage("m", 2, 10)], "model", {}))
    assert (whole.tokens, whole.fresh_input_tokens, whole.unpriced) == (24, 18, 1)
    assert whole.dollars == Decimal(2)
    assert whole.days == {date(2026, 11, 1): 12, date(2026, 11, 2): 12}


def test_a_record_has_the_names_of_the_store_and_no_cost_without_a_price() -> None:
    record = as_record([Total("m", requests=1)], "model", UsageSpan(0, 1000))
    assert record["by"] == "model"
    [row] = record["rows"] if isinstance(record["rows"], list) else []
    assert (row["model"], row["requests"], row["cost_nano_usd"], row["cost_usd"]) == ("m", 1, None, None)


def test_records_are_read_back_by_a_csv_reader() -> None:
    names = ("name", "n")
    records: list[dict[str, object]] = [{"name": 'a,"b"\nc', "n": -1, "more": 2}, {"n": None}]
    text = format_csv_header(names) + format_csv_rows(records, names)
    assert list(csv.reader(io.StringIO(text))) == [["name", "n"], ['a,"b"\nc', "-1"], ["", ""]]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_no_text_starts_a_formula(start: str) -> None:
    [[cell]] = csv.reader(io.StringIO(format_csv_rows([{"name": f"{start}cmd|' /C calc'!A0"}], ("name",)), newline=""))
    assert cell.startswith("'")
