"""From this step on a client that leaves cancels its call, unless the upstream runs it in the background."""

import pytest

from dragoman.net.errors import ClientDisconnected
from dragoman.net.sink import CollectorSink
from dragoman.proxy.steps.allow_leaving import allow_leaving
from dragoman.state.context import Context
from dragoman.state.stored_call import ParsedBody, StoredCall, Terms
from proxy.in_memory import MemoryWire, make_sink


def make_state(*, background: bool) -> StoredCall:
    terms = Terms("t", keeps=True, retention_s=0)
    return StoredCall(None, terms, ParsedBody({"background": background}, 0), Context((), (), None, None))


@pytest.mark.parametrize("state", [None, make_state(background=False)])
def test_a_client_that_has_left_by_now_ends_its_call(state: StoredCall | None) -> None:
    sink = CollectorSink()
    sink.reader_gone = True
    with pytest.raises(ClientDisconnected):
        allow_leaving(state, sink)


def test_a_response_that_its_upstream_runs_does_not_end_with_its_client() -> None:
    sink, cancelled = make_sink(MemoryWire()), []
    allow_leaving(make_state(background=True), sink)
    sink.lose_reader(lambda: cancelled.append("task"), in_body=False)
    assert cancelled == []


def test_a_client_that_leaves_later_cancels_the_task() -> None:
    sink, cancelled = make_sink(MemoryWire()), []
    sink.lose_reader(lambda: cancelled.append("too early"), in_body=False)
    sink.reader_gone = False
    allow_leaving(None, sink)
    sink.lose_reader(lambda: cancelled.append("task"), in_body=False)
    assert cancelled == ["task"]
