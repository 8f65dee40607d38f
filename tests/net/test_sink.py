"""A reply goes through the same phases wherever it goes, and what has no reader is dropped."""

from collections.abc import Sequence

import pytest

from dragoman.net.errors import ClientDisconnected, ResponseOrderError
from dragoman.net.headers import Header
from dragoman.net.sink import CollectorSink, ReplySink, SinkPhase
from dragoman.net.socket_sink import SocketSink
from proxy.in_memory import MemoryWire, make_sink

ID: Header = (b"x-request-id", b"req_1")


class Listener:
    def __init__(self) -> None:
        self.heads: list[tuple[int, Sequence[Header]]] = []
        self.body = b""

    def on_head(self, status: int, headers: Sequence[Header]) -> None:
        self.heads.append((status, headers))

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_end(self) -> None:
        return


def make_sinks() -> list[CollectorSink | SocketSink]:
    return [CollectorSink(), make_sink(MemoryWire())]


@pytest.fixture(params=[0, 1], ids=["collector", "socket"])
def sink(request: pytest.FixtureRequest) -> CollectorSink | SocketSink:
    chosen: int = request.param
    return make_sinks()[chosen]


def test_a_reply_is_open_then_begun_then_sent_then_ended(sink: ReplySink) -> None:
    phases = [sink.phase]
    sink.begin(200, [])
    phases.append(sink.phase)
    assert sink.write(b"one")
    phases.append(sink.phase)
    sink.end(b"two")
    assert [*phases, sink.phase] == [SinkPhase.OPEN, SinkPhase.BEGUN, SinkPhase.SENT, SinkPhase.ENDED]


def test_a_whole_reply_replaces_a_head_that_was_not_sent() -> None:
    sink = CollectorSink()
    sink.begin(200, [(b"content-type", b"text/event-stream")])
    sink.respond(503, [ID], b"no")
    assert (sink.status, sink.headers, sink.body, sink.phase) == (503, [ID], b"no", SinkPhase.ENDED)


def test_what_is_sent_in_the_wrong_order_is_refused(sink: ReplySink) -> None:
    with pytest.raises(ResponseOrderError):
        sink.write(b"x")
    with pytest.raises(ResponseOrderError):
        sink.end()
    sink.begin(200, [])
    with pytest.raises(ResponseOrderError):
        sink.begin(200, [])
    sink.write(b"x")
    with pytest.raises(ResponseOrderError):
        sink.respond(200, [], b"")


async def test_a_reply_that_was_cut_takes_no_more(sink: ReplySink) -> None:
    sink.begin(200, [])
    sink.write(b"half")
    sink.abort()
    assert not sink.write(b"more")
    sink.end(b"more")
    assert sink.phase is SinkPhase.ABORTED
    with pytest.raises(ClientDisconnected):
        await sink.send(b"more")


async def test_a_reply_without_a_reader_is_dropped_and_keeps_its_phase(sink: CollectorSink | SocketSink) -> None:
    sink.begin(200, [])
    sink.reader_gone = True
    sink.end(b"all")
    assert sink.phase is SinkPhase.BEGUN
    with pytest.raises(ClientDisconnected):
        sink.allow_leaving()


def test_whoever_waits_for_the_reader_to_leave_is_called_at_once_if_it_has(sink: CollectorSink | SocketSink) -> None:
    sink.reader_gone = True
    called: list[str] = []
    sink.on_reader_gone(lambda: called.append("gone"))
    sink.allow_leaving()
    assert called == ["gone"]


def test_a_listener_that_attaches_in_the_middle_gets_the_rest(sink: ReplySink) -> None:
    sink.begin(200, [])
    sink.write(b"one")
    sink.listener = listener = Listener()
    sink.write(b"two")
    sink.end(b"three")
    assert (listener.heads, listener.body) == ([], b"twothree")


def test_the_reader_and_the_listener_get_the_clients_own_id(sink: ReplySink) -> None:
    sink.echoed_id = b"mine"
    sink.listener = listener = Listener()
    sink.respond(200, [ID], b"{}")
    assert listener.heads == [(200, [(b"x-request-id", b"mine")])]
