"""Frames of a request under way: those of a recorded one are the whole timeline's, of others the last ones are kept."""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from console.browser import Browser
from console.test_feed import reading
from dragoman.admin.timeline import FrameReader, TimelineEntry
from dragoman.flow.capture.format import Chunk
from dragoman.flow.capture.memory_bounds import TAIL_BYTES, HeadAndTail
from dragoman.http.console.live_frames import hide_content
from fakes.upstream import Answer, FakeUpstream, Gate
from gateway import KEY, Running, provider_section, running
from raw_http import Answered, post
from scripting import encode_chat
from scripting.replies import ScriptedReply, Text
from waiting import wait_until

STREAM = encode_chat.encode_stream(ScriptedReply((Text(" ".join(f"word-{number}" for number in range(40))),)))
LAST = {"chat": "[DONE]", "messages": "message_stop"}
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
SSE = "text/event-stream"


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeUpstream]:
    with FakeUpstream(keep_alive=False) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, fake: FakeUpstream) -> Iterator[Running]:
    directory = Path(tmp_path_factory.mktemp("ring"))
    with running(provider_section("chat", fake.url), directory, stored=["someone"]) as started:
        yield started


def stream(gateway: Running, client: str, request_id: str, replies: list[Answered]) -> None:
    request = {"model": "up/m", "stream": True, "max_tokens": 99, "messages": [{"role": "user", "content": "Hi"}]}
    replies.append(post(gateway.port, PATHS[client], msgspec.json.encode(request), f"x-request-id: {request_id}"))


@pytest.mark.parametrize("client", PATHS)
def test_a_stream_that_is_inspected_from_its_middle_on_does_not_change(
    gateway: Running, fake: FakeUpstream, client: str
) -> None:
    browser = Browser(gateway)
    browser.sign_in(KEY)
    replies: list[Answered] = []
    fake.answers = [Answer(STREAM)]
    stream(gateway, client, f"{client}-unseen", replies)
    is_seen, is_seen_again = threading.Event(), threading.Event()
    end = Gate(is_seen_again, at=len(STREAM) // 2)
    fake.answers = [Answer(STREAM, cut=100, pause_s=0.005, gate=Gate(is_seen, at=len(STREAM) // 4, then=end))]
    running_client = threading.Thread(target=stream, args=(gateway, client, f"{client}-seen", replies))
    running_client.start()
    wait_until(lambda: b'"state":"streaming"' in browser.send("GET", "/api/v1/feed").body)
    query = f"watch=live&frames={client}-seen"
    with reading(browser, query) as short:
        is_seen.set()
        short.wait_for_entries(3)
    with reading(browser, query) as feed:
        feed.wait_for(lambda: bool(feed.events))
        is_seen_again.set()
        running_client.join(60)
        feed.wait_for(lambda: any(LAST[client] in str(entry["text"]) for entry in feed.entries))
    unseen, seen = (reply.body for reply in replies)
    assert len(seen) == len(unseen)
    if client == "chat":
        assert seen == unseen == STREAM
    for side, first, last in (
        ("upstream", '"role":', "[DONE]"),
        ("hub", "started", "ended"),
        ("client", "start", LAST[client]),
    ):
        texts = [str(entry["text"]) for entry in feed.entries if entry["side"] == side and entry["text"] != "(end)"]
        assert last in texts[-1], side
        assert not any(first in text or "malformed" in text for text in texts[:5]), side
    assert KEY not in str(feed.entries)


def test_frames_are_the_same_however_the_bytes_are_cut() -> None:
    data = b"event: a\ndata: 1\n\nevent: b\ndata: 2\n\n"
    whole = FrameReader(SSE)
    expected = [text for _, text in whole.feed(Chunk(0.0, data))]
    for cut in range(len(data)):
        reader = FrameReader(SSE)
        frames = [*reader.feed(Chunk(0.0, data[:cut] or b":\n")), *reader.feed(Chunk(0.0, data[cut:] or b":\n"))]
        assert [text for _, text in frames] == expected


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
