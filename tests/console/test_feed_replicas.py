"""The live feed of two replicas on one database: with Valkey each shows, inspects and ends what both do."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from console.browser import sign_in
from console.feed_reader import WORDS, Client, FeedReader, reading, run_clients
from console.test_feed import hold
from console.test_feed_workers import at, has_both_under_way
from console.traffic import ECHO, own_id
from fakes.upstream import FakeUpstream
from gateway import KEY, Running, provider_section, running_replicas
from postgres import Postgres
from valkey_server import ValkeyServer
from waiting import wait_until


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeUpstream]:
    with FakeUpstream(keep_alive=False) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def replicas(
    tmp_path_factory: pytest.TempPathFactory, fake: FakeUpstream, postgres: Postgres, valkey_process: ValkeyServer
) -> Iterator[list[Running]]:
    directory = Path(tmp_path_factory.mktemp("replicas"))
    toml = ECHO + provider_section("chat", fake.url)
    with running_replicas(toml, directory, postgres.database(), valkey_process.url) as both:
        wait_until(lambda: all(count_known(replica) == 2 for replica in both))
        yield both


def count_known(replica: Running) -> int:
    assert replica.app.processes is not None
    return len(replica.app.processes.names)


def states(feed: FeedReader) -> list[bool]:
    return [bool(event["is_partial"]) for name, event in feed.events if name == "hello"]


def test_a_tab_on_either_replica_shows_the_requests_of_both_and_where_they_are(
    replicas: list[Running], fake: FakeUpstream
) -> None:
    browser, opened = sign_in(replicas[0], KEY), hold(fake)
    with reading(browser) as feed, reading(at(replicas[1], browser)) as other:
        clients = [Client(replica, f"both-{number}", model="up/m") for number, replica in enumerate(replicas)]
        for client in clients:
            client.start()
        for reader in (feed, other):
            reader.wait_for(partial(has_both_under_way, reader))
        opened.set()
        for reader in (feed, other):
            reader.wait_for_end("both-0", "both-1")
            places = [str(reader.row(f"both-{number}")["replica"]) for number in (0, 1)]
            assert [place.rpartition(":")[2] for place in places] == [str(replica.port) for replica in replicas]
            assert len({row["number"] for row in reader.rows.values()}) == len(reader.rows) >= 2
            assert [name for name, _ in reader.events].count("hello") == 1
            assert states(reader) == [False]


def test_a_request_on_the_other_replica_is_inspected_and_ended(replicas: list[Running]) -> None:
    browser = sign_in(replicas[0], KEY)
    client = Client(replicas[1], "there", text=WORDS * 20)
    with reading(browser) as rows:
        rows.wait_for(lambda: replicas[1].app.gateway.captures.live_left > 0)
        client.start()
        rows.wait_for(lambda: rows.row("there").get("state") == "streaming")
        id = own_id(replicas[0], "there")
        with reading(browser, f"watch=live&frames={id}") as feed:
            feed.wait_for(lambda: {entry["side"] for entry in feed.entries} == {"upstream", "hub", "client"})
            feed.wait_for_entry("word3")
            assert isinstance(browser.send("GET", f"/api/v1/live/{id}").json["description"], dict)
            assert browser.send("DELETE", f"/api/v1/live/{id}").status == 200
            client.join(60)
            feed.wait_for_end("there")
            feed.wait_for_entry("ended_by_operator")
    assert b"The operator of the gateway ended this request." in client.response
    entries = [(entry["at"], entry["side"], entry["text"]) for entry in feed.entries]
    assert len(set(entries)) >= len(entries) * 0.9
    assert browser.send("DELETE", f"/api/v1/live/{id}").status == 409
    missing = browser.send("DELETE", "/api/v1/live/unknown")
    assert (missing.status, b"store.shared" in missing.body) == (404, False)
    audit = browser.send("GET", "/api/v1/audit").json["audit"]
    assert {("live.read", id), ("live.end", id)} <= {(row["action"], row["subject"]) for row in audit}


@pytest.mark.rest
def test_a_tab_that_comes_back_to_the_other_replica_gets_only_what_it_missed(replicas: list[Running]) -> None:
    browser = sign_in(replicas[0], KEY)
    with reading(browser) as feed:
        run_clients(*(Client(replica, f"before-{number}", text="Hi") for number, replica in enumerate(replicas)))
        feed.wait_for_end("before-0", "before-1")
    run_clients(*(Client(replica, f"missed-{number}", text="Hi") for number, replica in enumerate(replicas)))
    with reading(at(replicas[1], browser), last_id=feed.last_id) as again:
        again.wait_for_end("missed-0", "missed-1")
        assert not {"before-0", "before-1"} & {row.get("client_request_id") for row in again.rows.values()}
        assert "hello" not in [name for name, _ in again.events]


@pytest.mark.rest
def test_while_valkey_is_away_a_tab_shows_its_own_replica_and_says_so(
    replicas: list[Running], valkey_process: ValkeyServer
) -> None:
    with reading(sign_in(replicas[0], KEY)) as feed:
        run_clients(*(Client(replica, f"early-{number}", text="Hi") for number, replica in enumerate(replicas)))
        feed.wait_for_end("early-0", "early-1")
        valkey_process.kill()
        feed.wait_for(lambda: states(feed)[-1] and feed.row("early-1") == {})
        assert feed.row("early-0") != {}
        run_clients(Client(replicas[0], "meanwhile", text="Hi"))
        feed.wait_for_end("meanwhile")
        valkey_process.start()
        wait_until(lambda: not states(feed)[-1] and feed.row("early-1") != {}, patience_s=10.0)
        run_clients(Client(replicas[1], "after", text="Hi"))
        feed.wait_for_end("after")


@pytest.mark.rest
def test_the_rows_of_a_replica_that_ended_go_away(
    tmp_path: Path, postgres: Postgres, valkey_process: ValkeyServer
) -> None:
    other_number = valkey_process.url.removesuffix("0") + "1"
    with running_replicas(ECHO, tmp_path, postgres.empty_database(), other_number) as (first, other):
        wait_until(lambda: count_known(first) == 2)
        with reading(sign_in(first, KEY)) as feed:
            run_clients(Client(other, "last", text="Hi"))
            feed.wait_for_end("last")
            other.stop_soon().result(60)
            feed.wait_for(lambda: feed.row("last") == {})
            feed.wait_for(lambda: not states(feed)[-1])  # it has left: nothing is missing
            assert count_known(first) == 1


def test_without_valkey_a_replica_says_that_it_does_not_know_the_others(tmp_path: Path, postgres: Postgres) -> None:
    with running_replicas(ECHO, tmp_path, postgres.empty_database()) as (first, other):
        run_clients(Client(other, "elsewhere", text="Hi"))
        id = own_id(other, "elsewhere")
        browser = sign_in(first, KEY)
        with reading(browser, f"watch=live&frames={id}") as feed:
            feed.wait_for(lambda: "frames" in [name for name, _ in feed.events])
        assert feed.events[0][1]["one_replica"] is True
        assert feed.row("elsewhere") == {}
        assert "store.shared" in str(dict(feed.events)["frames"]["problem"])
        missing = browser.send("DELETE", f"/api/v1/live/{id}")
        assert (missing.status, b"on this replica" in missing.body) == (404, True)
        assert b"store.shared" in browser.send("GET", f"/api/v1/live/{id}").body
