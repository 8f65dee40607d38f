"""The live feed: rows while requests are answered, frames for the inspected one, nothing without a subscriber."""

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from console.browser import Browser, sign_in
from console.feed_reader import WORDS, Client, reading, run_clients, wait_until_unwatched
from console.traffic import ECHO, own_id, write_words
from dragoman.operate.captures.timeline import build_timeline
from dragoman.server.console.feed import MAX_FEEDS
from fakes.upstream import FakeUpstream, Gate
from gateway import KEY, Running, provider_section, running
from tables import each_row
from waiting import wait_until
from wire_json import JsonObject


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeUpstream]:
    with FakeUpstream(keep_alive=False) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, fake: FakeUpstream) -> Iterator[Running]:
    directory = Path(tmp_path_factory.mktemp("feed"))
    toml = ECHO + provider_section("chat", fake.url)
    with running(toml, directory, stored=["someone"]) as started:
        yield started


def hold(fake: FakeUpstream) -> threading.Event:
    """Let the fake's streams stop in the middle until the event is set."""
    opened = threading.Event()
    fake.answers = [write_words(40, Gate(opened, at=2000))]
    return opened


@pytest.fixture
def browser(gateway: Running) -> Browser:
    return sign_in(gateway, KEY)


def as_tuples(entries: list[JsonObject]) -> list[tuple[object, ...]]:
    return [(entry["at"], entry["side"], entry["text"]) for entry in entries]


def test_without_watching_the_feed_is_a_snapshot(browser: Browser) -> None:
    reply = browser.send("GET", "/api/v1/feed")
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-store"
    assert [line for line in reply.body.split(b"\n") if line.startswith(b"event")] == [b"event: hello", b"event: rows"]


def test_a_key_has_a_bounded_number_of_feeds_and_others_have_their_own(gateway: Running, browser: Browser) -> None:
    other = sign_in(gateway, gateway.keys["someone"])
    with ExitStack() as stack:
        feeds = [stack.enter_context(reading(other)) for _ in range(MAX_FEEDS)]
        refused = other.send("GET", "/api/v1/feed?watch=live")
        assert (refused.status, refused.json["error"]["code"]) == (429, "rate_limited")
        assert refused.headers["retry-after"] == "15"
        assert browser.send("GET", "/api/v1/feed").status == 200
        feeds[0].close()
        wait_until(lambda: other.send("GET", "/api/v1/feed").status == 200)


def test_a_row_changes_while_its_request_is_answered(gateway: Running, browser: Browser, fake: FakeUpstream) -> None:
    opened = hold(fake)
    with reading(browser) as feed:
        client = Client(gateway, "live-1", model="up/m")
        client.start()
        feed.wait_for(lambda: feed.row("live-1").get("state") == "streaming")
        under_way = dict(feed.row("live-1"))
        opened.set()
        feed.wait_for_end("live-1")
        ended = feed.row("live-1")
    assert under_way["usage_source"] == "estimated"
    assert (ended["outcome"], ended["route"], ended["key"]) == ("ok", "up/m", "environment")
    assert ended["output_tokens"] != under_way["output_tokens"]
    totals = feed.events[-1][1]["totals"]
    assert totals["under_way"] == 0


def test_a_client_key_sees_its_own_rows_and_no_content(gateway: Running, browser: Browser) -> None:
    other = sign_in(gateway, gateway.keys["someone"])
    with reading(browser) as all_of_them, reading(other) as rows:
        Client(gateway, "not-own").start()
        Client(gateway, "own-1", gateway.keys["someone"]).start()
        query = f"watch=live&frames={own_id(gateway, 'own-1')}"
        with reading(browser, query) as every, reading(other, query) as own:
            rows.wait_for_end("own-1")
            all_of_them.wait_for_end("not-own")
            own.wait_for_entry("characters")
            every.wait_for_entry("word3")
    assert rows.row("not-own") == own.row("not-own") == {}
    assert all("word" not in str(entry["text"]) for entry in own.entries)


def test_the_frames_of_a_live_request_are_those_of_its_capture(tmp_path: Path) -> None:
    toml = f'{ECHO}[debug]\ncapture = "all"\ndirectory = "{tmp_path}/captures"\n'
    with running(toml, tmp_path, stored=["someone"]) as gateway:
        browser = sign_in(gateway, KEY)
        client = Client(gateway, "same-1", text=f"{WORDS} {KEY}")
        with reading(browser, "watch=live") as rows:
            client.start()
            rows.wait_for(lambda: rows.row("same-1").get("state") in ("streaming", "ended"))
            id = own_id(gateway, "same-1")
            with reading(browser, f"watch=live&frames={id}") as feed:
                feed.wait_for_entry("message_stop")
                described = browser.send("GET", f"/api/v1/live/{id}").json["description"]
                client.join(60)
                capture = gateway.capture("same-1")
                expected = [(entry.at, entry.side, entry.text) for entry in build_timeline(capture)]
                feed.wait_for_entries(len(expected))
    assert sorted(as_tuples(feed.entries), key=str) == sorted(expected, key=str)
    assert described["losses"] == list(msgspec.to_builtins(capture.losses))
    assert KEY not in str(feed.entries)
    assert KEY not in str(described)


def test_a_request_that_began_before_the_tab_was_open_is_shown_from_then_on(
    gateway: Running, browser: Browser, fake: FakeUpstream
) -> None:
    opened, client = hold(fake), Client(gateway, "early-1", model="up/m")
    wait_until_unwatched(gateway)
    client.start()
    wait_until(lambda: b"w5" in client.response)
    id = own_id(gateway, "early-1")
    query = f"watch=live&frames={id}"
    with reading(browser, query) as feed, reading(browser, query) as other:
        feed.wait_for(lambda: bool(feed.events))
        other.wait_for(lambda: bool(other.events))
        opened.set()
        feed.wait_for_entry("message_stop")
        other.wait_for_entry("message_stop")
        assert browser.send("GET", f"/api/v1/live/{id}").json["description"] is None
    client.join(60)
    first, *later = [event for name, event in feed.events if name == "frames"]
    assert (first["late"], first["first"]) == (True, True)
    assert not any(event["first"] for event in later)
    for side in ("upstream", "hub", "client"):
        texts = [str(entry["text"]) for entry in feed.entries if entry["side"] == side]
        words = [text for text in texts if re.search(r"\bw\d", text)]
        assert "w39" in words[-1], (side, texts)
        assert all("w0 " not in text for text in words)
    assert client.response.count(b"event: content_block_delta") == 40
    with reading(browser, query) as after:
        after.wait_for(lambda: any(name == "frames" for name, _ in after.events))
    [problem] = [event["problem"] for name, event in after.events if name == "frames"]
    assert "was not recorded" in str(problem)


def test_a_tab_that_comes_back_gets_only_what_it_missed(gateway: Running, browser: Browser) -> None:
    with reading(browser) as feed:
        Client(gateway, "away-1", text="Hi").start()
        feed.wait_for_end("away-1")
    run_clients(Client(gateway, "away-2", text="Hi"))
    with reading(browser, last_id=feed.last_id) as again:
        again.wait_for_end("away-2")
        assert again.row("away-1") == {}
        assert "hello" not in [name for name, _ in again.events]
    with reading(browser, last_id="00000000-7") as again:
        again.wait_for(lambda: again.row("away-1") != {} and again.row("away-2") != {})
        assert again.events[0][0] == "hello"


def test_nothing_is_recorded_without_a_subscriber(gateway: Running, browser: Browser) -> None:
    captures = gateway.app.gateway.captures
    with reading(browser) as feed:
        feed.wait_for(lambda: captures.live_left > 0)
    wait_until_unwatched(gateway)
    left = captures.memory_left
    run_clients(Client(gateway, "nobody-1", text="Hi"))
    assert captures.memory_left == left


def test_a_stream_that_is_ended_gets_an_error_in_its_own_protocol(gateway: Running, browser: Browser) -> None:
    client = Client(gateway, "end-1", text=WORDS * 20)
    with reading(browser) as feed:
        client.start()
        feed.wait_for(lambda: feed.row("end-1").get("state") == "streaming")
        id = own_id(gateway, "end-1")
        assert browser.send("DELETE", f"/api/v1/live/{id}").status == 200
        client.join(60)
        feed.wait_for_end("end-1")
    assert (feed.row("end-1")["outcome"], feed.row("end-1")["error_code"]) == ("forbidden", "ended_by_operator")
    assert b"event: error" in client.response
    assert b"The operator of the gateway ended this request." in client.response
    assert browser.send("DELETE", f"/api/v1/live/{id}").status == 409
    assert browser.send("DELETE", "/api/v1/live/unknown").status == 404


def test_looks_at_content_and_ended_streams_are_in_the_audit_log(gateway: Running, browser: Browser) -> None:
    with reading(browser, "watch=live&frames=audited-1") as feed:
        feed.wait_for(lambda: bool(feed.events))
    rows = browser.send("GET", "/api/v1/audit").json["audit"]
    assert ("live.read", "audited-1") in {(row["action"], row["subject"]) for row in rows}


@each_row(("query", "field"), [("watch=all", "watch"), ("frames=%00", "frames"), ("what=1", "what")])
def test_a_wrong_parameter_is_named(browser: Browser, query: str, field: str) -> None:
    reply = browser.send("GET", f"/api/v1/feed?{query}")
    assert (reply.status, reply.json["error"]["field"]) == (400, field)
