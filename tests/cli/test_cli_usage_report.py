"""`dragoman usage`: what was used, in tables, JSON and CSV, from a store of either kind."""

import asyncio
import csv
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import StringIO

import msgspec
import pytest
from msgspec.structs import replace

from asking import ask
from dragoman.store import open_store
from dragoman.store.usage_rows import UsageRow
from dragoman.tenancy.keys import Keyring
from gateway import KEY
from postgres import Postgres
from shell import Shell
from store.rows import row_at
from waiting import wait_until

NOON = datetime.now().replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)
MODELS = ("claude-sonnet-4-5", "claude-opus-4-6", "a-model-with-a-name-as-long-as-anybody-would-ever-give-one:latest")


def row(number: int, key: str) -> UsageRow:
    time_ms = int((NOON - timedelta(days=number % 5)).timestamp() * 1000) + number
    return replace(
        row_at(time_ms, number),
        request_id=f"req_{number}",
        key=key,
        client=("curl", "claude-cli", "=HYPERLINK(1)")[number % 3],
        model=MODELS[number % 3],
        input_tokens=1_000_000_007 + number,
        cache_read_tokens=300_000_000,
        cache_write_tokens=1_000,
        output_tokens=70_000_001,
        reasoning_tokens=30_000,
        credits=None if number % 2 else 0.0123456789,
        usage_source=("reported", "estimated", "derived", None)[number % 4],
        cost_nano_usd=None if number % 3 == 2 else 1_234_567_891,
        outcome=("ok", "ok", "overloaded", "client_gone")[number % 4],
        cache_possible_tokens=None if number % 2 else 400_000_000,
        cache_saved_nano_usd=None if number % 2 else 2_000_000_001,
    )


@dataclass(frozen=True)
class Filled:
    """A store with sixty requests of the last five days, by two keys, and the shell of its owner."""

    shell: Shell
    rows: list[UsageRow]


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.rest)])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    home = tmp_path_factory.mktemp("home")
    url = f"sqlite:///{home}/dragoman.db"
    if request.param == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        url = server.database()
    shell = Shell(home)
    shell.write("dragoman.toml", f'[store]\nurl = "{url}"\n')

    async def fill() -> list[UsageRow]:
        store = await open_store(url)
        keyring = Keyring(store)
        keys = [(await keyring.create(name)).row.id for name in ("laptop", "build server")]
        rows = [row(number, keys[number % 2]) for number in range(60)]
        await store.append_usage(rows)
        await store.close()
        return rows

    return Filled(shell, asyncio.run(fill()))


def read_report(shell: Shell, *words: str) -> dict[str, object]:
    done = shell.run("usage", "--json", *words)
    assert done.code == 0, done.err
    return msgspec.json.decode(done.out, type=dict[str, object])


NAMES: dict[str, Callable[[UsageRow], str]] = {
    "day": lambda one: datetime.fromtimestamp(one.time_ms / 1000).date().isoformat(),
    "model": lambda one: f"up/{one.model}",
    "key": lambda one: one.key,
    "client": lambda one: one.client,
    "provider": lambda one: one.provider,
}


def test_the_numbers_are_exact_by_any_group(filled: Filled) -> None:
    for by in NAMES:
        check_numbers(filled.rows, by, read_report(filled.shell, "--by", by))


def check_numbers(rows: list[UsageRow], by: str, report: dict[str, object]) -> None:
    groups, total = report["rows"], report["total"]
    assert isinstance(groups, list)
    assert isinstance(total, dict)
    assert {group[by] for group in groups} == {NAMES[by](one) for one in rows}
    for group in groups:
        mine = [one for one in rows if NAMES[by](one) == group[by]]
        assert group["requests"] == len(mine)
        for name in ("input", "cache_read", "cache_write", "output", "reasoning"):
            assert group[f"{name}_tokens"] == sum(getattr(one, f"{name}_tokens") for one in mine)
        costs = [one.cost_nano_usd for one in mine if one.cost_nano_usd is not None]
        assert group["cost_nano_usd"] == (sum(costs) if costs else None)
        assert group["credits"] == round(sum(one.credits or 0 for one in mine), 12)
        assert group["cache_possible_tokens"] == sum(one.cache_possible_tokens or 0 for one in mine)
        assert group["cache_had_tokens"] == sum(300_000_000 for one in mine if one.cache_possible_tokens)
        assert group["cache_saved_nano_usd"] == sum(one.cache_saved_nano_usd or 0 for one in mine)
        assert group["estimated"] == sum(one.usage_source == "estimated" for one in mine)
    assert total["requests"] == 60
    assert total["input_tokens"] == sum(one.input_tokens or 0 for one in rows)
    assert (total["failed"], total["client_gone"], total["counted"], total["estimated"]) == (15, 15, 55, 15)
    assert total["cost_usd"] == 40 * 1_234_567_891 / 10**9


@pytest.mark.rest
def test_tables_are_no_wider_than_a_terminal_and_mark_estimates(filled: Filled) -> None:
    for by in NAMES:
        done = filled.shell.run("usage", "--by", by)
        assert done.code == 0, done.err
        assert max(map(len, done.out.splitlines())) <= 100
        assert f"{sum(one.input_tokens or 0 for one in filled.rows):,}" in done.out
        assert "$49.38+" in done.out
        assert "60 requests, 15 failed, 15 cancelled by the client." in done.out
        assert "15 requests with estimated counts" in done.out
        assert "█" in done.out or by in ("key", "model")  # beside long names there is no room
        assert ("75%" in done.out) is (by not in ("key", "model")), "names are not cut for it"
        assert "Prompt caches had 75 % of what they could have had, and saved $60.00." in done.out


def test_keys_are_shown_by_name_and_id(filled: Filled) -> None:
    out = filled.shell.run("usage", "--by", "key").out
    assert f"laptop ({filled.rows[0].key})" in out
    assert f"build server ({filled.rows[1].key})" in out


@pytest.mark.rest
def test_csv_is_for_spreadsheets(filled: Filled) -> None:
    shell, rows = filled.shell, filled.rows
    read = list(csv.DictReader(StringIO(shell.run("usage", "--by", "client", "--csv").out)))
    assert {line["client"] for line in read} == {"curl", "claude-cli", "'=HYPERLINK(1)"}
    assert sum(int(line["input_tokens"]) for line in read) == sum(one.input_tokens or 0 for one in rows)
    each = list(csv.DictReader(StringIO(shell.run("usage", "--rows", "--csv").out)))
    assert [line["request_id"] for line in each] == [
        one.request_id for one in sorted(rows, key=lambda one: one.time_ms)
    ]
    assert each[0]["time"].endswith("+00:00")


@pytest.mark.rest
def test_a_span_is_given_as_days_hours_or_dates(filled: Filled) -> None:
    shell = filled.shell

    def count_requests(*words: str) -> object:
        total = read_report(shell, *words)["total"]
        assert isinstance(total, dict)
        return total["requests"]

    day = (NOON - timedelta(days=3)).date().isoformat()
    assert count_requests("--since", "all") == 60
    assert count_requests("--since", day, "--until", day) == 12
    assert count_requests("--since", "4d", "--until", NOON.date().isoformat()) == 36
    assert count_requests("--since", "2000-01-01", "--until", "2000-12-31") == 0
    done = shell.run("usage", "--since", "2000-01-01", "--until", "2000-12-31")
    assert (done.code, done.out) == (0, "")
    assert "--since all" in done.err


def test_wrong_usage_is_reported_as_such(shell: Shell) -> None:
    for line in ("--since yesterday", "--since 2026-13-01", "--by moon", "--csv --json", "--csv --plans"):
        assert shell.run("usage", *line.split()).code == 2, line


def test_looking_makes_no_store(shell: Shell) -> None:
    path = shell.home / "none.db"
    shell.write("dragoman.toml", f'[store]\nurl = "sqlite:///{path}"\n')
    done = shell.run("usage")
    assert (done.code, done.out) == (0, "")
    assert not path.exists()


@pytest.mark.rest
def test_a_database_that_does_not_answer_is_named_without_its_password(shell: Shell) -> None:
    url = "postgresql://me:sk-fake-password@127.0.0.1:1/usage"
    shell.write("dragoman.toml", f'[store]\nurl = "{url}"\n')
    for words in (("usage",), ("keys", "list"), ("doctor",), ("config", "show"), ("serve", "--port", "0")):
        done = shell.run(*words)
        assert "sk-fake-password" not in done.out + done.err
        assert "127.0.0.1:1/usage" in done.out + done.err
        assert done.code == (0 if words[0] == "config" else 1)


@pytest.mark.rest
def test_no_spelling_of_a_password_is_shown(shell: Shell) -> None:
    at = "127.0.0.1:1/u"
    for secret in (f"me:sk-fake-p@ss@{at}", f"me@{at}?password=sk-fake-p@ss", f"me:sk-fake-p/ss@{at}"):
        shell.write("dragoman.toml", f'[store]\nurl = "postgresql://{secret}"\n')
        for words in (("config", "show"), ("config", "check"), ("usage",), ("doctor",)):
            done = shell.run(*words)
            assert "sk-fake" not in done.out + done.err, (secret, words)
            assert "ss@" not in done.out + done.err, (secret, words)


def test_a_request_is_seen_while_the_gateway_runs(shell: Shell) -> None:
    with shell.serve(DRAGOMAN_API_KEY=KEY) as served:
        assert ask(served, "chat", "echo").status == 200
        wait_until(lambda: "echo/echo" in shell.run("usage", "--by", "model").out)
        assert "environment" in shell.run("usage", "--by", "key").out


def test_keys_are_made_listed_and_revoked_in_either_store(shell: Shell, store_url: str) -> None:
    shell.write("dragoman.toml", f'[store]\nurl = "{store_url}"\n')
    assert shell.run("keys", "create", "laptop").code == 0
    assert "laptop" in shell.run("keys", "list").out
    assert "1 in the store" in shell.run("doctor").out
    assert shell.run("keys", "revoke", "laptop").code == 0
    assert "revoked" in shell.run("keys", "list").out
