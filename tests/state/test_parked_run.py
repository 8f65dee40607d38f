"""How a reply is split into events that can be sent again, and how little memory all of them may take."""

import asyncio
import json
from collections.abc import Callable

import pytest

from dragoman.state import run_index
from dragoman.state.parked_run import ParkedRun, RunOrigin
from dragoman.state.run_index import EMPTY_RUN_BYTES, RunIndex
from dragoman.state.stream_splitter import ArraySplitter, EventSplitter
from tables import each_row

EVENTS = [b"data: 1\n\n", b"event: a\r\ndata: 2\r\n\r\n", b": alive\n\n", b"data: 3\r\r"]
ELEMENTS = [b'[{"a":"}{\\""}', b',\n{"b":[{"c":"\xc3\xa4"}]}', b"\n,\n{}"]


@each_row("size", [1, 2, 3, 7, 1000])
def test_events_are_split_wherever_the_bytes_are_cut(size: int) -> None:
    data = b"".join(EVENTS) + b"data: cut"
    splitter = EventSplitter()
    found = [event for at in range(0, len(data), size) for event in splitter.feed(data[at : at + size])]
    assert (found, splitter.rest) == (EVENTS, b"data: cut")


@each_row("size", [1, 2, 3, 7, 1000])
def test_elements_are_split_wherever_the_bytes_are_cut(size: int) -> None:
    data = b"".join(ELEMENTS) + b"\n]"
    assert len(json.loads(data)) == len(ELEMENTS)
    splitter = ArraySplitter()
    found = [event for at in range(0, len(data), size) for event in splitter.feed(data[at : at + size])]
    assert (found, splitter.rest) == (ELEMENTS, b"\n]")


def test_signs_of_life_are_neither_counted_nor_kept() -> None:
    run = make_run()
    run.begin(200, [(b"content-type", b"text/event-stream")])
    run.add(b": one\n\ndata: a\n\nevent: ping\ndata: {}\n\nevent:ping\ndata: {}\n\n: note\ndata: b\n\ndata: [DONE]\n\n")
    run.end(whole=True)
    assert run.blocks == [(0, b"data: a\n\n"), (1, b": note\ndata: b\n\n"), (-1, b"data: [DONE]\n\n")]
    assert (run.signs, run.sign) == (3, b"event:ping\ndata: {}\n\n")


def make_run(owner: str = "alice", digest: bytes = b"same") -> ParkedRun:
    return ParkedRun(0, RunOrigin(owner, "/v1/chat/completions", digest, None, "park"))


def fill(index: RunIndex, run: ParkedRun, size: int) -> None:
    """Add a whole reply of this size."""
    before = run.size
    run.begin(200, [])
    run.add(b"x" * size)
    index.record_growth(run, run.size - before)


def end(index: RunIndex, run: ParkedRun) -> None:
    """End a run whose client has got it."""
    run.clients = 0
    run.end(whole=True)
    index.record_end(run)


def test_the_oldest_ended_runs_of_a_key_make_room_for_its_new_ones() -> None:
    index = RunIndex(max_owner_bytes=5 * EMPTY_RUN_BYTES, max_bytes=100 * EMPTY_RUN_BYTES)
    runs = [make_run() for _ in range(8)]
    foreign = make_run("bob")
    for run in (foreign, *runs):
        index.add(run)
        end(index, run)
    assert [index.find(run.id) is run for run in runs] == [False] * 3 + [True] * 5
    assert index.find(foreign.id) is foreign
    assert (len(index), index.size) == (6, 6 * EMPTY_RUN_BYTES)


def test_a_run_that_outgrows_its_room_is_forgotten_and_its_memory_released() -> None:
    index = RunIndex(max_owner_bytes=10 * EMPTY_RUN_BYTES)
    run, other = make_run(), make_run()
    index.add(run)
    index.add(other)
    fill(index, run, 20 * EMPTY_RUN_BYTES)
    assert (run.is_resumable, run.blocks, index.find(run.id)) == (False, [], None)
    assert (other.is_resumable, index.size) == (True, EMPTY_RUN_BYTES)


def test_a_run_that_a_client_still_gets_counts_until_it_has_left() -> None:
    """Else clients that read slowly would hold any number of them."""
    index = RunIndex(max_owner_bytes=10 * EMPTY_RUN_BYTES)
    followed, late = make_run(), make_run()
    index.add(followed)
    fill(index, followed, 5 * EMPTY_RUN_BYTES)
    end(index, followed)
    followed.clients = 1
    index.add(late)
    fill(index, late, 5 * EMPTY_RUN_BYTES)
    assert (late.is_resumable, followed.is_resumable) == (False, True)  # there is no room while the older one is read
    index.remove(followed)  # its time is over
    assert (index.find(followed.id), index.size) == (None, followed.size)
    followed.clients = 0
    index.record_left(followed)
    assert (len(index), index.size) == (0, 0)


def test_the_last_sign_of_life_and_the_head_are_counted() -> None:
    run = make_run()
    run.begin(200, [(b"content-type", b"text/event-stream"), (b"x-large", b"y" * 5000)])
    run.add(b": " + b"z" * 9000 + b"\n\n")
    assert 14_000 < run.size < 14_100
    run.add(b": alive\n\n")
    assert 5_000 < run.size < 5_100


def test_an_ended_run_does_not_refer_to_the_request_that_wrote_it() -> None:
    run, stopped = make_run(), []
    run.stop = lambda: stopped.append("stopped")
    run.end(whole=True)
    run.release()
    run.stop()
    assert stopped == []


def test_no_run_is_larger_than_one_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_index, "MAX_RUN_BYTES", 10_000)
    index, run = RunIndex(), make_run()
    index.add(run)
    fill(index, run, 10_000)
    assert (run.is_resumable, len(index), index.size) == (False, 0, 0)


def test_a_retry_finds_the_oldest_lost_run_of_its_own_request() -> None:
    index = RunIndex()
    runs = [make_run(), make_run(), make_run(digest=b"other"), make_run("bob")]
    for run in runs:
        index.add(run)
    assert index.find_lost("alice", b"same") is None
    for run in runs:
        run.clients = 0
    assert index.find_lost("alice", b"same") is runs[0]
    runs[0].is_taken = True
    assert index.find_lost("alice", b"same") is runs[1]
    runs[1].is_delivered = True
    assert index.find_lost("alice", b"same") is None


def test_whoever_waits_for_a_run_is_woken_by_every_change() -> None:
    async def follow() -> list[int]:
        run, seen = make_run(), []
        waiting = asyncio.create_task(run.wait())
        await asyncio.sleep(0)
        run.begin(200, [(b"content-type", b"text/event-stream")])
        await waiting
        changes: list[Callable[[], None]] = [
            lambda: run.add(b"data: a\n\n"),
            lambda: run.add(b": alive\n\n"),
            lambda: run.end(whole=True),
        ]
        for change in changes:
            waiting = asyncio.create_task(run.wait())
            await asyncio.sleep(0)
            change()
            await waiting
            seen.append(len(run.blocks))
        return seen

    assert asyncio.run(follow()) == [1, 1, 1]
