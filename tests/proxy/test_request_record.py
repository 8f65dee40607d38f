"""What one request came to, from what was noted on its way."""

import ast
import asyncio
import logging
import re
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

import dragoman
from dragoman.app import App, ProcessParts
from dragoman.config.load import ConfigSource
from dragoman.config.secret import Secret
from dragoman.net.current_request import request_id
from dragoman.net.errors import BodyTimeout, BodyTooLarge, ClientDisconnected, HeadRejected
from dragoman.net.headers import Headers
from dragoman.proxy.outcome import CLIENT_GONE, OK, UNKNOWN_CACHE_USE, FailedAttempt, Outcome, ToolRun
from dragoman.proxy.reply_monitor import ReplyMonitor
from dragoman.proxy.request_record import MAX_QUEUED, Awaited, ObserverQueue, RequestRecord, client_name
from dragoman.proxy.source import EventSource
from dragoman.tenancy.keys import Keyring
from dragoman.translate.framing.known_secrets import Secrets
from dragoman.translate.hub.events import Delta, Event, Failed, Opened, Started, TextBlock, UsageReported
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.usage import Usage, UsageSource
from dragoman.upstreams.routing import Route
from gateway import KEY
from narrowing import present
from replies import END, START, text
from waiting import wait_until_async

ROUTE = Route("up", "m")
NONE = Headers([])


class Reply:
    """A reply of which these events were seen."""

    def __init__(self, events: Sequence[Event], usage: Usage | None = None) -> None:
        self.watch = ReplyMonitor(lambda: 0.0)
        self.usage = self.used_alone = usage
        for event in events:
            self.watch.observe(event)

    def tap(self, wrap: Callable[[EventSource], EventSource]) -> Secrets:
        return ()


def make_record(events: Sequence[Event], usage: Usage | None = None, ledger: Ledger | None = None) -> RequestRecord:
    record = RequestRecord("req_1", "chat", NONE)
    record.body = b"x" * 400
    record.record_reply(ROUTE, "messages", ledger, Reply(events, usage))
    return record


def end(record: RequestRecord) -> Outcome:
    record.end()
    return record.outcome()


def test_a_request_that_came_nowhere_names_what_is_known() -> None:
    headers = Headers([(b"user-agent", b"OpenAI/Python 3.49"), (b"traceparent", b"00-ab-cd-01")])
    record = RequestRecord("req_1", "chat", headers, "key_1", "t")
    record.requested_model, record.stream = "gpt", True
    record.record_failure(ROUTE, RequestError(Failure(Kind.OVERLOADED, "busy")))
    record.record_fault(RequestError(Failure(Kind.OVERLOADED, "busy", code="busy_now")))
    outcome = end(record)
    assert (outcome.request_id, outcome.key, outcome.client) == ("req_1", "key_1", "OpenAI/Python")
    assert (outcome.requested_model, outcome.stream, outcome.traceparent) == ("gpt", True, "00-ab-cd-01")
    assert (outcome.outcome, outcome.error_code) == ("overloaded", "busy_now")
    assert outcome.failed_attempts == (FailedAttempt("up/m", "overloaded"),)
    assert (outcome.provider, outcome.usage, outcome.ttft_s, outcome.passthrough) == ("", None, None, False)


def test_a_reply_names_who_answered_and_what_was_used() -> None:
    ledger = Ledger()
    ledger.record_dropped("/seed", "it has none")
    used = Usage(input=7, output=2)
    record = make_record([START, *text(0, "Hel", "lo"), END], used, ledger)
    outcome = end(record)
    assert (outcome.provider, outcome.model, outcome.route) == ("up", "m", "up/m")
    assert (outcome.client_protocol, outcome.upstream_protocol) == ("chat", "messages")
    assert (outcome.outcome, outcome.usage, outcome.losses, outcome.losses_by_how) == (OK, used, 1, (1, 0, 0))
    assert (outcome.deltas, outcome.reported_model, outcome.passthrough) == (2, "model-1", False)
    assert end(make_record([START, END])).passthrough


def test_an_outcome_has_what_was_noted_on_the_way() -> None:
    names = (b"x-request-id", b"mine"), (b"x-dragoman-tags", b"job=7"), (b"session-id", b"s-1")
    record = RequestRecord("req_1", "chat", Headers(list(names)), "key_1", "t", 12.5)
    run = ToolRun("web_search", "brave", OK, 0.5)
    record.record_sent(ROUTE)
    record.record_sent(ROUTE)
    record.record_tool_run(run)
    record.rounds, record.is_answered = 3, False
    outcome = end(record)
    assert (outcome.started_at, outcome.client_request_id, outcome.tags) == (12.5, "mine", "job=7")
    assert (outcome.attempts, outcome.rounds, outcome.is_answered, outcome.tool_runs) == (2, 3, False, (run,))
    assert (outcome.origin.session, outcome.cache_use) == ("s-1", UNKNOWN_CACHE_USE)


@pytest.mark.parametrize(
    ("fault", "result"),
    [
        (RequestError(Failure(Kind.NOT_FOUND, "which?")), "not_found"),
        (asyncio.CancelledError(), CLIENT_GONE),
        (ClientDisconnected(), CLIENT_GONE),
        (BodyTooLarge("big"), "too_large"),
        (BodyTimeout("slow"), "request_timeout"),
        (HeadRejected("odd"), "bad_request"),
        (ZeroDivisionError(), "bug"),
    ],
)
def test_what_was_raised_is_how_a_request_ends(fault: BaseException, result: str) -> None:
    record = RequestRecord("req_1", "chat", NONE)
    record.record_fault(fault)
    assert end(record).outcome == result


def test_a_failure_inside_the_reply_is_its_outcome() -> None:
    record = make_record([START, Failed(Failure(Kind.QUOTA, "used up", code="q" * 2000))])
    outcome = end(record)
    assert outcome.outcome == "quota"
    assert len(present(outcome.error_code).encode()) <= 256


def test_a_client_that_left_after_the_end_had_its_reply() -> None:
    for events, result in (([START, *text(0, "Hi"), END], OK), ([START, *text(0, "Hi")], CLIENT_GONE)):
        record = make_record(events)
        record.record_fault(ClientDisconnected())
        assert end(record).outcome == result


def test_a_client_that_left_while_its_reply_was_to_go_on_is_gone() -> None:
    failed = Failed(Failure(Kind.LOST, "reset", code="gone"))
    for events in ([START, *text(0, "Hi"), END], [START, *text(0, "Hi"), failed]):
        for interrupt, result in (
            (lambda record: record.record_fault(ClientDisconnected()), CLIENT_GONE),
            (RequestRecord.record_shutdown, "shutdown"),
            (lambda record: record.record_fault(RequestError(Failure(Kind.LOST, "reset", code="gone"))), "lost"),
        ):
            record = make_record(events)
            record.awaits = Awaited.MORE
            interrupt(record)
            outcome = end(record)
            assert (outcome.outcome, outcome.error_code) == (result, "gone" if result == "lost" else None)


def test_the_last_upstream_request_was_answered_or_is_the_last_failed_attempt() -> None:
    record = make_record([START, *text(0, "Hi"), END])
    assert end(record).is_answered
    record.record_failure(ROUTE, RequestError(Failure(Kind.LOST, "reset")))
    assert not record.outcome().is_answered
    record.record_reply(ROUTE, "messages", None, Reply([START]))
    assert record.outcome().is_answered
    record.record_client_gone(ROUTE)
    assert not record.outcome().is_answered


def test_a_gateway_that_stops_is_not_a_client_that_left() -> None:
    record = RequestRecord("req_1", "chat", NONE)
    record.record_client_gone(ROUTE)
    record.record_shutdown()
    assert end(record).outcome == "shutdown"
    assert record.outcome().failed_attempts == (FailedAttempt("up/m", "shutdown"),)


def test_usage_is_estimated_from_sizes_if_none_was_reported() -> None:
    record = make_record([START, Opened(0, TextBlock()), Delta(0, "x" * 40)])
    assert end(record).usage == Usage(input=100, output=10, source=UsageSource.ESTIMATED)


def test_a_reply_that_broke_off_has_at_least_the_output_that_was_seen() -> None:
    begun = Usage(input=50, output=1)
    started = replace(START, usage=begun)
    record = make_record([started, Opened(0, TextBlock()), Delta(0, "x" * 40)])
    assert end(record).usage == Usage(input=50, output=10, source=UsageSource.ESTIMATED)
    reported = make_record([started, *text(0, "x" * 40), UsageReported(Usage(input=50, output=2)), END])
    assert end(reported).usage == Usage(input=50, output=2)


def test_a_reply_without_anything_used_nothing() -> None:
    assert end(make_record([Started("", "")])).usage is None


def test_the_body_and_the_reply_are_released_at_the_end() -> None:
    record = make_record([START, END])
    record.end()
    assert record.body == b""
    assert record._reply is None


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (b"claude-cli/2.0.1 (external, cli)", "claude-cli"),
        (b"OpenAI/Python 3.49", "OpenAI/Python"),
        (b"ai-sdk/openai/2.0 runtime/node", "ai-sdk/openai"),
        (b"v2ray/1", "v2ray"),
        (b"<script>/1", "script"),
        (b"", ""),
        (b"x" * 500, "x" * 40),
    ],
)
def test_a_client_is_named_without_its_version(agent: bytes, name: str) -> None:
    assert client_name(agent) == name


# The log, the console, captures and what limits count are made from the record; a reply is not.
READERS = ("proxy/request_record.py", "proxy/accounts.py", "proxy/steps/observe.py", "server/console/")
WRITTEN_WITH = re.compile(r"record\.(?:record_\w+\(|recording\b)")


def find_reads(source: str) -> list[str]:
    """Return where an attribute of a record is read, other than to note something or to capture the request."""
    lines = source.splitlines()
    reads = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute) and is_record(node.value)]
    after = [lines[node.lineno - 1][node.value.end_col_offset or 0 :] for node in reads]
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for node, rest in zip(reads, after, strict=True)
        if isinstance(node.ctx, ast.Load) and not WRITTEN_WITH.match(f"record{rest}")
    ]


def is_record(value: ast.expr) -> bool:
    name = value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
    return name in ("record", "_record")


def test_nothing_that_is_sent_is_computed_from_the_record() -> None:
    [root] = dragoman.__path__
    paths = [path for package in ("proxy", "server", "state") for path in (Path(root) / package).rglob("*.py")]
    found = {str(path.relative_to(root)): find_reads(path.read_text()) for path in paths}
    assert not {name: reads for name, reads in found.items() if reads and not name.startswith(READERS)}


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("created = int(call.record.started_at)", ["1: call.record.started_at"]),
        ("if record.tenant != owner:\n    pass", ["1: record.tenant"]),
        ("call.record.record_fault(fault)\ncall.record.stream = True\ncall.record.rounds += 1", []),
        ("self._call.record.record_tool_run(run)\nif record.recording is None:\n    pass", []),
    ],
)
def test_a_read_of_the_record_is_found(source: str, reads: list[str]) -> None:
    assert find_reads(source) == reads


# Observers get every request once; one that fails affects no stream and is reported


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


async def test_an_observer_that_fails_on_every_request_harms_no_stream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    observed: list[str] = []
    (tmp_path / "dragoman.toml").write_text("")
    config = ConfigSource(str(tmp_path / "dragoman.toml"), {}, tmp_path, tmp_path).read({"server.port": 0})
    observers = [break_down, lambda outcome: observed.append(outcome.request_id)]
    app = App(config, Keyring(None, Secret(KEY)), ProcessParts({}, observers))
    await app.start()
    try:
        streams = [await asyncio.to_thread(ask, app.server.port) for _ in range(5)]
        await wait_until_async(lambda: len(observed) == 5)
        scraped = await asyncio.to_thread(scrape, app.server.port)
    finally:
        await app.stop()
    assert all(stream.rstrip().endswith(b"data: [DONE]") for stream in streams)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 5
    assert all(
        f"{one} was not passed to an observer: ValueError at" in line
        for one, line in zip(observed, errors, strict=True)
    )
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
