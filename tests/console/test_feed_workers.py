"""The live feed of a gateway with two workers: a tab on either of them sees, inspects and ends what both do."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from console.browser import Browser, sign_in
from console.feed_reader import WORDS, Client, FeedReader, reading, run_clients, wait_until_unwatched
from console.test_feed import hold
from console.traffic import ECHO, own_id
from dragoman.server.console import gateway_rows
from fakes.upstream import FakeUpstream
from gateway import KEY, Running, provider_section, running_workers

Workers = tuple[Running, Running]


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeUpstream]:
    with FakeUpstream(keep_alive=False) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, fake: FakeUpstream) -> Iterator[Workers]:
    directory = Path(tmp_path_factory.mktemp("feeds"))
    toml = ECHO + provider_section("chat", fake.url)
    with running_workers(toml, directory, stored=["someone"]) as both:
        yield both


def at(worker: Running, browser: Browser) -> Browser:
    """Return the same browser with its next connection to this worker, which others have at the same address."""
    return Browser(worker, browser.cookie, browser.token, {"host": f"127.0.0.1:{browser.gateway.port}"})


def all_totals(reader: FeedReader) -> list[dict[str, float | bool]]:
    return [
        msgspec.convert(event["totals"], dict[str, float | bool]) for _, event in reader.events if "totals" in event
    ]


def has_counted(reader: FeedReader, requests: int) -> bool:
    return all_totals(reader)[-1]["requests_last_hour"] == requests


def has_both_under_way(reader: FeedReader) -> bool:
    return any(totals["under_way"] == 2 for totals in all_totals(reader))


def test_a_tab_on_either_worker_shows_the_requests_of_both(workers: Workers, fake: FakeUpstream) -> None:
    browser, opened = sign_in(workers[0], KEY), hold(fake)
    with reading(browser) as feed, reading(at(workers[1], browser)) as other:
        clients = [Client(worker, f"both-{number}", model="up/m") for number, worker in enumerate(workers)]
        for client in clients:
            client.start()
        for reader in (feed, other):
            reader.wait_for(partial(has_both_under_way, reader))
        opened.set()
        for reader in (feed, other):
            reader.wait_for_end("both-0", "both-1")
            reader.wait_for(partial(has_counted, reader, 2))
    for reader in (feed, other):
        assert reader.events[0][1]["is_partial"] is False
        assert max(totals["under_way"] for totals in all_totals(reader)) == 2
        assert len({row["number"] for row in reader.rows.values()}) == len(reader.rows)


def test_a_client_key_sees_its_own_rows_on_both_workers(workers: Workers) -> None:
    key = workers[0].keys["someone"]
    with reading(sign_in(workers[0], key)) as own:
        run_clients(Client(workers[1], "hidden", text="Hi"), Client(workers[1], "own", key, "Hi"))
        own.wait_for_end("own")
        own.wait_for(partial(has_counted, own, 1))
    assert own.row("hidden") == {}


def test_a_request_on_the_other_worker_is_inspected_and_ended(workers: Workers) -> None:
    browser = sign_in(workers[0], KEY)
    client = Client(workers[1], "there", text=WORDS * 20)
    with reading(browser) as rows:
        rows.wait_for(lambda: workers[1].app.gateway.captures.live_left > 0)
        client.start()
        rows.wait_for(lambda: rows.row("there").get("state") == "streaming")
        id = own_id(workers[0], "there")
        with reading(browser, f"watch=live&frames={id}") as feed:
            feed.wait_for(lambda: {entry["side"] for entry in feed.entries} == {"upstream", "hub", "client"})
            feed.wait_for_entry("word3")
            assert isinstance(browser.send("GET", f"/api/v1/live/{id}").json["description"], dict)
            assert browser.send("DELETE", f"/api/v1/live/{id}").status == 200
            client.join(60)
            feed.wait_for_end("there")
    assert b"The operator of the gateway ended this request." in client.response
    assert browser.send("DELETE", f"/api/v1/live/{id}").status == 409
    assert browser.send("DELETE", "/api/v1/live/unknown").status == 404
    audit = browser.send("GET", "/api/v1/audit").json["audit"]
    assert {("live.read", id), ("live.end", id)} <= {(row["action"], row["subject"]) for row in audit}


def test_a_tab_that_comes_back_to_the_other_worker_gets_only_what_it_missed(workers: Workers) -> None:
    browser = sign_in(workers[0], KEY)
    with reading(browser) as feed:
        run_clients(*(Client(worker, f"before-{number}", text="Hi") for number, worker in enumerate(workers)))
        feed.wait_for_end("before-0", "before-1")
    run_clients(*(Client(worker, f"missed-{number}", text="Hi") for number, worker in enumerate(workers)))
    with reading(at(workers[1], browser), last_id=feed.last_id) as again:
        again.wait_for_end("missed-0", "missed-1")
        assert not {"before-0", "before-1"} & {row.get("client_request_id") for row in again.rows.values()}
        assert "hello" not in [name for name, _ in again.events]


def test_a_tab_that_has_seen_more_than_the_worker_it_comes_back_to_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_workers(ECHO, tmp_path) as workers:
        browser = sign_in(workers[0], KEY)
        monkeypatch.setattr(gateway_rows, "TICK_S", 3600.0)  # the worker of this tab asks the other worker once
        with reading(at(workers[1], browser)) as other:
            other.wait_for(lambda: bool(other.events))
            run_clients(Client(workers[1], "known", text="Hi"))
            monkeypatch.undo()
            with reading(browser) as feed:
                run_clients(Client(workers[0], "before", text="Hi"))
                feed.wait_for_end("before")
            with reading(at(workers[1], browser), last_id=feed.last_id) as again:
                again.wait_for(lambda: bool(again.events))
                assert "hello" not in [name for name, _ in again.events]
                assert again.row("before") == {}


@pytest.mark.rest
def test_the_other_worker_gets_no_request_without_a_tab(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_rows, "POLLED_S", 0.4)
    browser = sign_in(workers[0], KEY)
    with reading(browser) as feed:
        feed.wait_for(lambda: all(worker.app.gateway.captures.live_left > 0 for worker in workers))
    wait_until_unwatched(*workers)


def test_the_rows_of_a_worker_that_ended_go_away_and_the_feed_goes_on(tmp_path: Path) -> None:
    with running_workers(ECHO, tmp_path) as (first, other), reading(sign_in(first, KEY)) as feed:
        run_clients(Client(first, "last-0", text="Hi"), Client(other, "last-1", text="Hi"))
        feed.wait_for_end("last-0", "last-1")
        assert other.app.group is not None
        asyncio.run_coroutine_threadsafe(other.app.group.server.close(), other.loop).result(60)
        feed.wait_for(lambda: feed.row("last-1") == {})
        assert feed.row("last-0") != {}
        assert [event["is_partial"] for name, event in feed.events if name == "hello"] == [False, True]
        run_clients(Client(first, "after", text="Hi"))
        feed.wait_for_end("after")
