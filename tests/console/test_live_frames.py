"""Frames of a request under way: those of a recorded one are the whole timeline's, of others the last ones are kept."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.browser import sign_in
from console.feed_reader import Client, reading, run_clients, wait_until_unwatched
from console.traffic import own_id
from dragoman.net.sink import CollectorSink
from dragoman.operate.captures.timeline import FrameCutter, TimelineEntry
from dragoman.proxy.capture.format import Chunk
from dragoman.proxy.capture.memory_bounds import TAIL_BYTES, HeadAndTail
from dragoman.proxy.request_record import RequestRecord
from dragoman.server.console.live_frames import FrameRing, hide_content
from fakes.upstream import Gate
from gateway import KEY
from proxy.in_memory import make_request
from rig import Rig, run_rig
from scripting import write_reply
from waiting import wait_until

TEXT = " ".join(f"word-{number}" for number in range(40))
STREAM = write_reply("chat", TEXT).body
LAST = {"chat": "[DONE]", "messages": "message_stop"}
SSE = "text/event-stream"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(Path(tmp_path_factory.mktemp("ring")), upstreams=("chat",), keys=("someone",)) as started:
        yield started


@pytest.mark.parametrize("protocol", LAST)
def test_a_stream_that_is_inspected_from_its_middle_on_does_not_change(rig: Rig, protocol: str) -> None:
    browser, model = sign_in(rig.gateway, KEY), rig.model("chat")
    wait_until_unwatched(rig.gateway)
    unseen, seen = (Client(rig.gateway, f"{protocol}-{name}", model=model, protocol=protocol) for name in ("un", ""))
    rig.play("chat", TEXT)
    run_clients(unseen)
    is_seen, is_seen_again = threading.Event(), threading.Event()
    end = Gate(is_seen_again, at=len(STREAM) // 2)
    rig.play("chat", write_reply("chat", TEXT, cut=100, gate=Gate(is_seen, at=len(STREAM) // 4, then=end)))
    seen.start()
    wait_until(lambda: seen.response.count(b"data:") > 5)
    query = f"watch=live&frames={own_id(rig.gateway, f'{protocol}-')}"
    with reading(browser, query) as short:
        is_seen.set()
        short.wait_for_entries(3)
    with reading(browser, query) as feed:
        feed.wait_for(lambda: bool(feed.events))
        is_seen_again.set()
        seen.join(60)
        feed.wait_for_entry(LAST[protocol])
    assert len(seen.response) == len(unseen.response)
    if protocol == "chat":
        assert seen.response == unseen.response == STREAM
    for side, first, last in (
        ("upstream", '"role":', "[DONE]"),
        ("hub", "started", "ended"),
        ("client", "start", LAST[protocol]),
    ):
        texts = [str(entry["text"]) for entry in feed.entries if entry["side"] == side and entry["text"] != "(end)"]
        assert last in texts[-1], side
        assert not any(first in text or "malformed" in text for text in texts), side
    assert KEY not in str(feed.entries)


def test_frames_are_the_same_however_the_bytes_are_cut() -> None:
    data = b"event: a\ndata: 1\n\nevent: b\ndata: 2\n\n"
    whole = FrameCutter(SSE)
    expected = [text for _, text in whole.feed(Chunk(0.0, data))]
    for cut in range(len(data)):
        reader = FrameCutter(SSE)
        frames = [*reader.feed(Chunk(0.0, data[:cut] or b":\n")), *reader.feed(Chunk(0.0, data[cut:] or b":\n"))]
        assert [text for _, text in frames] == expected


def test_a_stream_that_is_inspected_from_any_byte_on_is_cut_into_its_events_from_the_next_one_on() -> None:
    for begin in range(len(STREAM) - 2500, len(STREAM) - 1500, 7):
        sink = CollectorSink()
        request = make_request("/v1/chat/completions")
        ring = FrameRing(RequestRecord("req_1", "chat", request.headers), request, sink)
        for at in range(begin, len(STREAM), 100):
            ring.on_body(STREAM[at : at + 100])
        texts = [entry.text for entry in ring.read_from(0)[0]]
        assert texts[-1] == "[DONE]"
        assert all(text.startswith("{") for text in texts[-4:-1])


def test_parts_are_read_once_and_a_gap_stands_for_those_that_were_dropped() -> None:
    stream: HeadAndTail[str] = HeadAndTail("gap")
    stream.add("1")
    assert stream.read_from(0) == (["1"], 1)
    stream.add("2")
    assert stream.read_from(1) == (["2"], 2)
    stream.add_to_tail("3", 10)
    assert stream.read_from(2) == (["3"], 3)
    for number in range(4, 8):
        stream.add_to_tail(str(number), TAIL_BYTES)
    parts, position = stream.read_from(3)
    assert (parts, position) == (["gap", "7"], 7)
    assert stream.read_from(position) == ([], 7)


def test_without_the_right_to_content_an_entry_has_a_name_and_a_size() -> None:
    shown = hide_content(TimelineEntry(0.1, "client", 'content_block_delta {"text":"secret"}'))
    assert shown.text == "content_block_delta, 37 characters"
    assert hide_content(TimelineEntry(0.1, "hub", '{"secret":1}')).text == "frame, 12 characters"
