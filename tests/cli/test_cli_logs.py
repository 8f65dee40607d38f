"""What reaches a log or a screen: one line for each record, and nothing that looks like a credential."""

import asyncio
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cli import logs
from dragoman.cli.logs import BatchingHandler, JsonFormatter, TextFormatter
from dragoman.net.current_request import request_id
from dragoman.translate.framing.redaction import redact
from tables import each_row

SECRETS = [
    "sk-fake-0123456789abcdef",
    "sk-ant-api03-fake_0123456789",
    "dgm_fake0123456789",
    "ksk_fake0123456789",
    "ghp_fake0123456789",
    "AIzaFake0123456789012345678901234",
    "eyJmYWtlIjoi.eyJmYWtlMTIzIjo.c2lnbmF0dXJl",
]
CARRIERS = [
    "authorization: Bearer {}",
    "Authorization: Basic {}",
    "x-api-key: {}",
    "x-goog-api-key={}",
    '"api_key": "{}"',
    "GET /v1/models?key={}&limit=1",
    "{{'refresh_token': '{}'}}",
    "refreshToken={}",
    "http://user:{}@proxy:3128",
    "password={}",
]


@each_row("secret", SECRETS)
def test_credentials_are_masked_wherever_they_stand(secret: str) -> None:
    for text in (secret, f"key {secret}.", f'{{"k":"{secret}"}}', f"/v1/{secret}/x", f"id={secret}"):
        assert secret not in redact(text)
        assert "***" in redact(text)


@each_row("carrier", CARRIERS)
def test_values_in_places_of_credentials_are_masked(carrier: str) -> None:
    text = redact(carrier.format("hunter2fake"))
    assert "hunter2fake" not in text
    assert "***" in text


@each_row(
    "text",
    [
        "req_0123456789 messages>chat local/qwen-3 ok 12ms",
        "task-key sk- dgm_ is short",
        "provider risk-averse-model-name answers",
        "the key is missing",
        "http://127.0.0.1:8484/v1/models",
    ],
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert redact(text) == text


def record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("dragoman.x", logging.ERROR, __file__, 1, message, args, None)


def test_a_record_is_one_line_even_if_a_client_sends_line_breaks() -> None:
    line = TextFormatter().format(record("asked for %s", "a\n2026 info dragoman: all is well\r\x1b[2J\u2028"))
    assert line.splitlines() == [line]
    assert "\\n2026" in line
    assert line.isprintable()


def test_an_exception_is_logged_by_type_and_place_without_its_text() -> None:
    try:
        raise ValueError("sk-fake-0123456789 in a message")
    except ValueError:
        faulty = record("it failed")
        faulty.exc_info = sys.exc_info()
    line = TextFormatter().format(faulty)
    assert "ValueError at test_cli_logs.py" in line
    assert "in a message" not in line


def test_json_lines_hold_the_same_and_parse() -> None:
    line = JsonFormatter().format(record('Bearer %s said "hi"\n', "fake0123456789"))
    fields = msgspec.json.decode(line, type=dict[str, str])
    assert (fields["level"], fields["logger"], fields["message"]) == ("error", "dragoman.x", 'Bearer *** said "hi"\n')


@given(st.text() | st.text(st.characters(categories=["Cs", "Cc", "Zl", "Cf", "Cn"])))
def test_any_text_is_one_line_and_valid_json(text: str) -> None:
    line = JsonFormatter().format(record("%s", text))
    assert line.splitlines() == [line]
    assert msgspec.json.decode(line, type=dict[str, str])["logger"] == "dragoman.x"
    assert TextFormatter().format(record("%s", text)).isprintable()


class Writes(io.StringIO):
    """Collects the text of each write."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []

    def write(self, text: str) -> int:
        self.all += [text] if text else []
        return super().write(text)


def make_record(message: str) -> logging.LogRecord:
    return logging.LogRecord("dragoman.x", logging.INFO, __file__, 1, message, (), None)


def test_lines_of_one_turn_of_the_loop_are_one_write() -> None:
    writes = Writes()
    handler = BatchingHandler(writes)

    async def turn() -> None:
        handler.handle(make_record("one"))
        handler.write("two")
        assert writes.all == []
        await asyncio.sleep(0)

    asyncio.run(turn())
    assert writes.all == ["one\ntwo\n"]


def test_frequent_lines_are_batched_for_a_short_time() -> None:
    writes = Writes()
    handler = BatchingHandler(writes)

    async def turns() -> None:
        handler.write("first")
        await asyncio.sleep(0)
        for number in range(20):
            handler.write(f"{number}")
            await asyncio.sleep(0)
        for _ in range(500):
            if writes.all[-1].endswith("19\n"):
                return
            await asyncio.sleep(0.01)

    asyncio.run(turns())
    assert "".join(writes.all) == "first\n" + "".join(f"{number}\n" for number in range(20))
    assert len(writes.all) <= 5


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_log_that_cannot_be_written_does_no_harm() -> None:
    handler = BatchingHandler(FullDisk())

    async def turn() -> None:
        handler.write("lost")
        handler.handle(record("lost, too"))
        handler.flush()

    asyncio.run(turn())


LONG = "x" * 999


@pytest.fixture
def pipe() -> Iterator[tuple[TextIO, TextIO]]:
    reader, writer = os.pipe()
    with os.fdopen(reader, errors="strict") as out, os.fdopen(writer, "w") as into:
        yield out, into


def test_a_stalled_reader_blocks_nothing_and_loses_no_line_within_the_bound(
    pipe: tuple[TextIO, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = pipe
    monkeypatch.setattr(logs, "DRAIN_S", 20.0)
    handler = BatchingHandler(writer)
    lines = [f"{number} {LONG}" for number in range(500)]  # far more than a pipe holds

    async def turns() -> None:
        for line in lines:
            handler.write(line)
            handler.flush()

    asyncio.run(turns())
    taking = threading.Thread(target=lambda: taken.extend(reader.readline() for _ in lines))
    taken: list[str] = []
    taking.start()
    handler.drain()
    taking.join(20)
    assert taken == [f"{line}\n" for line in lines]


def test_lost_lines_are_counted_and_reported(pipe: tuple[TextIO, TextIO], monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = pipe
    monkeypatch.setattr(logs, "DRAIN_S", 20.0)

    def take_slowly() -> None:
        """Read a piece at a time, so that the pipe is full when the last line that was kept is written."""
        while piece := os.read(reader.fileno(), 4 * (len(LONG) + 1)):
            pieces.append(piece)
            time.sleep(0.002)

    handler = BatchingHandler(writer)
    logging.getLogger("dragoman.cli.logs").addHandler(handler)
    handler.setFormatter(JsonFormatter())
    try:
        for _ in range(3000):
            handler.write(LONG)
        pieces: list[bytes] = []
        taking = threading.Thread(target=take_slowly)
        taking.start()
        handler.drain()
        writer.close()
        taking.join(20)
    finally:
        logging.getLogger("dragoman.cli.logs").removeHandler(handler)
    taken = b"".join(pieces).decode().splitlines()
    assert set(taken[:-1]) == {LONG}
    lost = msgspec.json.decode(taken[-1], type=dict[str, str])["message"]
    assert lost == f"{3000 - len(taken) + 1} lines of the log were lost: the reader of stderr is too slow"


def test_lines_that_are_logged_during_a_request_have_its_id() -> None:
    async def format_in_request() -> tuple[str, str]:
        request_id.set("req_1")
        entry = record("broken")
        return TextFormatter().format(entry), JsonFormatter().format(entry)

    line, coded = asyncio.run(format_in_request())
    assert line.endswith(" error dragoman.x: req_1 broken")
    assert msgspec.json.decode(coded, type=dict[str, str])["request_id"] == "req_1"
    assert "request_id" not in msgspec.json.decode(JsonFormatter().format(record("broken")), type=dict[str, str])


def test_a_warning_writes_pending_lines_at_once() -> None:
    writes = Writes()
    handler = BatchingHandler(writes)

    async def turn() -> None:
        handler.handle(make_record("before"))
        handler.handle(record("broken"))
        assert writes.all == ["before\nbroken\n"]

    asyncio.run(turn())


def test_outside_an_event_loop_each_line_is_written_at_once() -> None:
    writes = Writes()
    BatchingHandler(writes).handle(make_record("alone"))
    assert writes.all == ["alone\n"]


def test_flush_writes_pending_lines() -> None:
    writes = Writes()
    handler = BatchingHandler(writes)

    async def turn() -> None:
        handler.handle(make_record("last words"))
        handler.flush()

    asyncio.run(turn())
    assert writes.all == ["last words\n"]


def test_a_line_has_its_time_in_milliseconds() -> None:
    entry = make_record("x")
    entry.created, entry.msecs = 1763199637.123456, 123.0
    assert TextFormatter().format(entry) == "2025-11-15T09:40:37.123Z info dragoman.x: x"


@each_row("character", ["x", "é", "\x00", '"', "\\", "\U0001f600", "\u2028", "\ud800"])
def test_a_line_is_at_most_4_kb(character: str) -> None:
    long = record("%s", character * 300_000)
    assert len(TextFormatter().format(long).encode(errors="surrogatepass")) <= 4096
    line = JsonFormatter().format(long)
    assert len(line.encode()) <= 4096
    assert msgspec.json.decode(line, type=dict[str, str])["message"].endswith("(cut)")
    assert TextFormatter().format(long).endswith("(cut)")
