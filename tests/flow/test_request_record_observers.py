"""Observers get every request once; one that fails affects no stream and is reported."""

import asyncio
import logging
import time
import urllib.request
from pathlib import Path

import msgspec
import pytest

from dragoman.accounts.keys import Keyring
from dragoman.app import App
from dragoman.config import Secret, load
from dragoman.flow.request_record import MAX_QUEUED, ObserverQueue, RequestRecord
from dragoman.hub.outcome import Outcome
from dragoman.net.headers import Headers
from dragoman.net.tasks import request_id
from gateway import KEY
from waiting import wait_until_async

NONE = Headers([])


def record(number: int) -> RequestRecord:
    return RequestRecord(f"req_{number}", "chat", NONE)


async def test_the_first_outcome_is_reported_after_this_turn_and_the_others_soon() -> None:
    observed: list[str] = []
    queue = ObserverQueue([lambda outcome: observed.append(outcome.request_id)])
    queue.add(record(0))
    await asyncio.sleep(0)
    assert observed == ["req_0"]
    for number in range(1, 10):
        queue.add(record(number))
        await asyncio.sleep(0)
    await wait_until_async(lambda: len(observed) == 10)
    assert observed == [f"req_{number}" for number in range(10)]


async def test_no_more_wait_than_a_few() -> None:
    observed: list[str] = []
    queue = ObserverQueue([lambda outcome: observed.append(outcome.request_id)])
    for number in range(MAX_QUEUED + 1):
        queue.add(record(number))
    assert len(observed) == MAX_QUEUED
    queue.flush()
    assert len(observed) == MAX_QUEUED + 1


def test_how_long_a_request_took_does_not_depend_on_when_it_is_reported() -> None:
    ended = record(0)
    ended.end()
    seconds = ended.outcome().duration_s
    time.sleep(0.05)
    assert ended.outcome().duration_s == seconds


async def test_what_observers_do_is_not_laid_to_one_request() -> None:
    named: list[str] = []
    queue = ObserverQueue([lambda outcome: named.append(request_id.get())])
    request_id.set("req_of_the_first")
    queue.add(record(0))
    await asyncio.sleep(0)
    assert named == [""]


def break_down(outcome: Outcome) -> None:
    raise ValueError("the disk of an observer is full")


def test_an_observer_that_fails_on_every_request_harms_no_stream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    observed: list[str] = []
    loop = asyncio.new_event_loop()
    (tmp_path / "dragoman.toml").write_text("")
    config = load(str(tmp_path / "dragoman.toml"), {}, tmp_path, tmp_path, {"server.port": 0})

    async def serve() -> list[bytes]:
        observers = [break_down, lambda outcome: observed.append(outcome.request_id)]
        app = App(config, Keyring(None, Secret(KEY)), {}, observers=observers)
        await app.start()
        try:
            replies = [await asyncio.to_thread(ask, app.server.port) for _ in range(5)]
            await wait_until_async(lambda: len(observed) == 5)
            replies.append(await asyncio.to_thread(scrape, app.server.port))
            return replies
        finally:
            await app.stop()

    try:
        *streams, scraped = loop.run_until_complete(serve())
    finally:
        loop.close()
    assert all(stream.rstrip().endswith(b"data: [DONE]") for stream in streams)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 5
    assert all(f"{one} went unobserved: ValueError at" in line for one, line in zip(observed, errors, strict=True))
    assert "is full" not in caplog.text
    assert b"\ndragoman_observer_failures_total 5\n" in scraped


def ask(port: int) -> bytes:
    body = msgspec.json.encode({"model": "echo", "stream": True, "messages": [{"role": "user", "content": "Hi"}]})
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", body, {"authorization": f"Bearer {KEY}"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return bytes(answer.read())


def scrape(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return bytes(answer.read())
