"""What is observed of a stream that passes: whether it has begun, is cut, and how it ended."""

import pytest

from dragoman.net.headers import Headers
from dragoman.proxy.decoding import make_source
from dragoman.proxy.replies.observer import TRUNCATED, StreamObserver
from dragoman.proxy.replies.reply import ReplyOrigin
from dragoman.proxy.reply_monitor import ReplyMonitor
from dragoman.proxy.step import Ask
from dragoman.translate.hub.failure import Kind
from dragoman.translate.hub.loss import Ledger
from narrowing import present
from proxy.in_memory import CHAT_STREAM, make_call, make_provider, prepare_for
from proxy.rigs import ERROR, HALF, STREAM, make_watch

CALL = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"t","type":"function",'
    b'"function":{"name":"f","arguments":"{\\"a"}}]}}]}\n\n'
)
STOP = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'


async def observe(*chunks: bytes) -> tuple[StreamObserver, ReplyMonitor]:
    call, watch = make_call("chat", CHAT_STREAM), make_watch()
    prepared = await prepare_for(call, make_provider())
    origin = ReplyOrigin(call, Ask(prepared.route, prepared.provider, 1), prepared, Headers([]), watch, prepared.why)
    observer = StreamObserver(origin, make_source(prepared, Ledger()))
    for chunk in chunks:
        observer.feed(chunk)
    return observer, watch


@pytest.mark.parametrize(("chunk", "is_cut"), [(b"", False), (STREAM, False), (STREAM[:-3], True)])
async def test_the_last_event_may_be_cut(chunk: bytes, is_cut: bool) -> None:
    observer, _ = await observe(chunk)
    assert observer.is_cut is is_cut


async def test_an_end_without_its_event_is_a_failure_unless_the_upstream_has_reported_one() -> None:
    for stream, kind in ((STREAM, None), (HALF, Kind.TRUNCATED), (HALF + ERROR, None)):
        observer, _ = await observe(stream)
        failure = observer.end()
        assert (None if failure is None else failure.kind) is kind


async def test_what_cannot_be_read_is_observed_no_further_but_for_its_end() -> None:
    observer, watch = await observe(HALF, b"data: {nonsense\n\n")
    assert observer.has_begun
    assert watch.failure is None
    assert observer.end() == TRUNCATED
    observer, _ = await observe(HALF, b"data: {nonsense\n\n", b"data: [DONE]\n\n")
    assert observer.ended_unseen


async def test_a_reply_that_ends_within_a_call_has_failed() -> None:
    _, watch = await observe(CALL, STOP)
    assert present(watch.failure).kind is Kind.CORRUPT
