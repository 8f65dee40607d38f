"""The stages and the encoder of one client's reply, over as many turns as it takes."""

import msgspec
import pytest

from dragoman.proxy.client_encoding import ClientEncoding, EventCollector, ReplyShape
from dragoman.proxy.continue_elsewhere import Continuation
from dragoman.proxy.reply_monitor import ReplyMonitor
from dragoman.translate.hub.events import (
    CallBlock,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    Opened,
    Started,
    Stop,
    UsageReported,
)
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import ReplyContext, Stage
from dragoman.translate.hub.usage import Usage
from dragoman.translate.protocols import PROTOCOLS
from narrowing import expect, present
from proxy.in_memory import CHAT_STREAM
from replies import END, START, call, text

BROKEN = Failure(Kind.LOST, "the connection broke")


class Encoding(ClientEncoding):
    """Keeps the events that reach the encoder, and counts how often one was made."""

    def __init__(self, *, serial: bool = False, joins: bool = False) -> None:
        self.made: list[Ledger] = []
        self.trips: list[str] = []
        self.collector = EventCollector()
        super().__init__(self._make, self.trips.append, ReplyShape(serial, joins))

    def _make(self, ledger: Ledger) -> Stage[Event, bytes]:
        self.made.append(ledger)
        self.collector = EventCollector()
        return self.collector

    def push(self, *events: Event) -> None:
        given = list(events)
        for stage in self.stages:
            given = [out for event in given for out in stage.feed(event)]
        for event in given:
            self.encoder.feed(event)

    @property
    def events(self) -> list[Event]:
        return self.collector.events


def begin(encoding: ClientEncoding, continuation: Continuation | None = None) -> ReplyMonitor:
    watch = ReplyMonitor(lambda: 0.0)
    encoding.begin_turn(Ledger(), continuation, watch)
    return watch


def test_a_turn_that_failed_before_its_first_token_is_forgotten() -> None:
    encoding = Encoding()
    begin(encoding)
    encoding.push(START)
    begin(encoding)
    encoding.push(START, *text(0, "Hi"), END)
    encoding.finish()
    assert encoding.events == [START, *text(0, "Hi"), END]
    assert len(encoding.made) == 2
    assert encoding.trips == []


def test_the_grammar_guard_stands_in_front_of_the_encoder() -> None:
    encoding = Encoding()
    watch = begin(encoding)
    encoding.push(START, Delta(7, "of no block"))
    assert len(encoding.trips) == 1
    assert isinstance(encoding.events[-1], Failed)
    assert present(watch.failure).kind is Kind.BUG


def test_calls_that_no_client_could_run_are_failures() -> None:
    encoding = Encoding()
    watch = begin(encoding)
    encoding.push(START, *call(0, "f", '{"a":'), Ended(Stop.TOOL))
    assert isinstance(encoding.events[-1], Failed)
    assert present(watch.failure).kind is Kind.CORRUPT


def test_blocks_are_put_in_a_row_for_clients_that_cannot_read_them_interleaved() -> None:
    interleaved: list[Event] = [
        START,
        Opened(0, CallBlock("a", "f")),
        Opened(1, CallBlock("b", "g")),
        *(Delta(0, "{}"), Delta(1, "{}"), Closed(0), Closed(1)),
        Ended(Stop.TOOL),
    ]
    for serial in (False, True):
        encoding = Encoding(serial=serial)
        begin(encoding)
        encoding.push(*interleaved)
        encoding.finish()
        assert (encoding.events == interleaved) is not serial
        places = [event.block for event in encoding.events if isinstance(event, Opened | Delta | Closed)]
        assert (places == sorted(places)) is serial


def test_what_the_stages_hold_comes_out_at_the_end() -> None:
    encoding = Encoding()
    begin(encoding)
    encoding.push(START, *text(0, "Hi"))
    encoding.finish()
    assert expect(Failed, encoding.events[-1]).failure.kind is Kind.TRUNCATED


def test_a_failure_ends_the_reply() -> None:
    encoding = Encoding()
    begin(encoding)
    encoding.push(START, *text(0, "Hi"))
    encoding.fail(BROKEN)
    assert encoding.events[-1] == Failed(BROKEN)


def chat_encoding() -> ClientEncoding:
    client = PROTOCOLS["chat"].client
    assert client is not None
    encoder, request = client.encoder, client.parse(CHAT_STREAM, Ledger())
    context = ReplyContext(request, "m", 1_763_190_000, lambda prefix: prefix + "1", lambda: 1_763_190_001)
    return ClientEncoding(lambda ledger: encoder(context, ledger), lambda trip: None, ReplyShape())


def test_an_error_can_be_the_whole_reply() -> None:
    encoding = chat_encoding()
    sent = encoding.fail_alone(BROKEN).joined
    assert msgspec.json.decode(sent.partition(b"data: ")[2].partition(b"\n")[0])["error"]["message"]


def test_a_request_that_cannot_be_parsed_has_no_encoder() -> None:
    def make(ledger: Ledger) -> Stage[Event, bytes]:
        raise RequestError(Failure(Kind.BAD_REQUEST, "no"))

    encoding = ClientEncoding(make, lambda trip: None, ReplyShape())
    with pytest.raises(RequestError):
        encoding.fail_alone(BROKEN)


# Replies that another upstream continues


def test_only_where_turns_may_be_joined_is_there_text_to_continue() -> None:
    for joins, text_so_far in ((False, None), (True, "Half a")):
        encoding = Encoding(joins=joins)
        begin(encoding)
        encoding.push(START, *text(0, "Half a")[:-1])
        assert encoding.text_to_continue == text_so_far


def test_a_reply_cannot_be_continued_after_a_call() -> None:
    encoding = Encoding(joins=True)
    begin(encoding)
    encoding.push(START, *text(0, "I look."), *call(1, "f", "{}"))
    assert encoding.text_to_continue is None


def test_another_turn_continues_the_same_reply_with_the_same_encoder() -> None:
    encoding = Encoding(joins=True)
    begin(encoding)
    encoding.push(START, *text(0, "Half a")[:-1])
    assert encoding.used_before is None
    encoding.interrupt(Usage(input=10, output=2))
    continuation = Continuation("Half a", BROKEN)
    watch = begin(encoding, continuation)
    ledger = Ledger()
    encoding.accept_continuation(ledger)
    assert encoding.used_before == Usage(input=10, output=2)
    more = [
        Started("another", "n"),
        *text(0, f"{continuation.marker} loaf"),
        UsageReported(Usage(input=20, output=3)),
        END,
    ]
    encoding.push(*more)
    encoding.finish()
    text_so_far = "".join(event.text for event in encoding.events if isinstance(event, Delta))
    assert text_so_far == "Half a loaf"
    assert [event for event in encoding.events if isinstance(event, Started)] == [START]
    assert UsageReported(Usage(input=30, output=5)) in encoding.events
    assert len(encoding.made) == 1
    assert encoding.trips == []
    assert watch.failure is None


def test_failures_are_reported_to_the_watch_of_the_current_turn() -> None:
    encoding = Encoding(joins=True)
    first = begin(encoding)
    encoding.push(START, *text(0, "Half a")[:-1])
    encoding.interrupt(Usage())
    second = begin(encoding, Continuation("Half a", BROKEN))
    encoding.push(Delta(7, "of no block"), Closed(7))
    assert first.failure is None
    assert second.failure is not None
