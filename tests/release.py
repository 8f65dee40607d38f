"""What a request must not leave behind: its objects, found among all that there are while the collector is off."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from dragoman.net.client import OutgoingRequest
from dragoman.net.http_request import HttpRequest
from dragoman.net.socket_sink import SocketSink
from dragoman.net.websocket import WebSocket
from dragoman.proxy.answer import ActiveCall
from dragoman.proxy.call import Call
from dragoman.proxy.capture.recording import Recording
from dragoman.proxy.prompt_caching import PlannedCache
from dragoman.proxy.rejected_reasoning import CallReasoning
from dragoman.proxy.relay import RelayedCall
from dragoman.proxy.request_record import RequestRecord
from dragoman.proxy.turn import UpstreamTurn
from dragoman.server.websocket import ResponsesSocket
from dragoman.state.background import ActiveRun
from dragoman.state.parked_run import ParkedRun
from dragoman.state.stored_call import StoredCall
from dragoman.tenancy.limiter import Lease
from dragoman.tenancy.waiting_lines import Place
from dragoman.upstreams.rejections.sent import Sent
from waiting import wait_until

RELEASED = (
    *(HttpRequest, SocketSink, OutgoingRequest, Call, RelayedCall, RequestRecord, ActiveCall, UpstreamTurn),
    *(ParkedRun, ActiveRun, StoredCall, Recording, ResponsesSocket, WebSocket, Lease, Place),
    *(PlannedCache, CallReasoning, Sent),
)


def find_left(kept: tuple[type, ...] = ()) -> list[object]:
    """Return what is left, other than what a test expects to be kept."""
    return [item for item in gc.get_objects() if type(item) in RELEASED and type(item) not in kept]


def describe(item: object) -> str:
    """Say what is left, and what refers to it."""
    holders = [holder for holder in gc.get_referrers(item) if not isinstance(holder, FrameType | list)]
    frames = [holder for holder in gc.get_referrers(item) if isinstance(holder, FrameType)]
    places = [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in frames]
    return f"{item!r:.80} is held by {[f'{holder!r:.160}' for holder in holders]} {places}"


@contextmanager
def expect_release(row: object, kept: tuple[type, ...] = ()) -> Iterator[None]:
    """Fail where what is done inside leaves a request behind."""
    yield
    with suppress(AssertionError):
        wait_until(lambda: not find_left(kept), 30)
    left = "\n".join([describe(item) for item in find_left(kept)])
    gc.collect()  # so that only this row fails
    gc.freeze()
    assert not left, f"{row}:\n{left}"


@contextmanager
def collector_off() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what is there already is neither looked through nor found
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
