"""A recorded provider behaves as the real one does, and notes what it sent and received."""

import asyncio
from contextlib import suppress

import pytest

from dragoman.net.bodies import BodyBounds, BodySink, read_chunks
from dragoman.net.client import (
    ConnectionLost,
    DialOptions,
    IncomingResponse,
    InvalidResponse,
    OutgoingRequest,
    UpstreamTimeout,
)
from dragoman.net.headers import Header, Headers
from dragoman.proxy.capture.format import CANCELLED, CLOSED, WHOLE
from dragoman.proxy.capture.recording_provider import describe_error, record_provider
from dragoman.upstreams.provider import Auth, Endpoint, UnsignedRequest
from proxy.capture.recordings import make_recording
from proxy.in_memory import URL, make_pooled, make_provider, run

UNSIGNED = UnsignedRequest("chat", "POST", f"{URL}/chat/completions", ((b"x", b"y"),), body=b"{}")
OUT = OutgoingRequest("POST", f"{URL}/chat/completions", ((b"x", b"y"),), b"{}")
KEY = b"sk-secret-0123456789"


class Pieces:
    """A response whose body comes in these pieces; None: the connection breaks."""

    status = 200
    headers = Headers([(b"content-type", b"application/json")])

    def __init__(self, *pieces: bytes | None) -> None:
        self._pieces = list(pieces)
        self.closed = False

    async def chunk(self, timeout_s: float) -> bytes:
        piece = self._pieces.pop(0) if self._pieces else b""
        if piece is None:
            raise ConnectionLost("reset", sent=True, received=True)
        return piece

    def take_whole(self) -> bytes | None:
        return None  # read by chunks

    async def stream_to(self, sink: BodySink, timeout_s: float) -> bool:
        while data := await self.chunk(timeout_s):
            sink(data)
        return True

    async def read(self, limit: int, timeout_s: float) -> bytes:
        return await read_chunks(self, BodyBounds(limit, timeout_s), "up")

    def close(self) -> None:
        self.closed = True


def make_sender(response: Pieces | Exception) -> Endpoint:
    async def send(out: OutgoingRequest, dial: DialOptions, *, head_timeout_s: float) -> IncomingResponse:
        if isinstance(response, Exception):
            raise response
        return response

    return Endpoint(URL, ("chat",), send)


def exchange_once(response: Pieces | Exception, how: str) -> tuple[str, str, tuple[bytes, ...]]:
    """Return the error, the end and the chunks that were noted of one upstream request."""
    recording = make_recording()
    provider = record_provider(make_provider(endpoint=make_sender(response)), recording)
    taken: list[bytes] = []

    def take(data: bytes) -> None:
        taken.append(data)

    async def scenario() -> None:
        found = await provider.send(OUT, 1.0)
        if how == "stream":
            await found.stream_to(take, 1.0)
        elif how == "read":
            taken.append(await found.read(1000, 1.0))
        found.close()

    with suppress(ConnectionLost):
        run(scenario())
    [noted] = recording.make_capture().upstream_requests
    assert (noted.method, noted.url, noted.body) == (OUT.method, OUT.url, OUT.body)
    if noted.response is None:
        return noted.error, "", ()
    chunks = tuple(chunk.data for chunk in noted.response.chunks)
    assert b"".join(taken) in (b"".join(chunks), b"")
    return noted.error, noted.response.end, chunks


@pytest.mark.parametrize("how", ["stream", "read"])
def test_every_chunk_of_a_response_is_noted_and_passed_on(how: str) -> None:
    assert exchange_once(Pieces(b"one", b"two"), how) == ("", WHOLE, (b"one", b"two"))


@pytest.mark.parametrize("how", ["stream", "read"])
def test_a_response_that_breaks_off_is_noted_with_the_error(how: str) -> None:
    assert exchange_once(Pieces(b"one", None), how) == ("", "Lost: reset", (b"one",))


def test_a_response_that_is_closed_before_its_end_is_noted_so() -> None:
    assert exchange_once(Pieces(b"one"), "close") == ("", CLOSED, ())


def test_a_request_without_a_response_is_noted_with_the_error() -> None:
    lost = ConnectionLost("nothing listens", sent=False, received=False)
    assert exchange_once(lost, "read") == ("Lost: nothing listens", "", ())


async def test_a_request_that_is_cancelled_is_noted_so() -> None:
    recording = make_recording()

    async def wait(out: OutgoingRequest, dial: DialOptions, *, head_timeout_s: float) -> IncomingResponse:
        await asyncio.sleep(60)
        raise AssertionError

    provider = record_provider(make_provider(send=wait), recording)
    task = asyncio.create_task(provider.send(OUT, 1.0))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    [noted] = recording.make_capture().upstream_requests
    assert noted.error == CANCELLED


def test_errors_keep_the_names_that_captures_use_for_them() -> None:
    assert describe_error(InvalidResponse("bad chunk", sent=True, received=True)) == "Corrupt: bad chunk"
    assert describe_error(UpstreamTimeout("first", "slow")) == "TimedOut first: slow"


async def test_a_request_is_noted_with_its_route_and_its_credential_is_a_secret() -> None:
    async def authorize(request: UnsignedRequest) -> tuple[Header, ...]:
        return ((b"authorization", b"Bearer " + KEY),)

    recording = make_recording()
    plain = make_provider("up", endpoint=make_sender(Pieces()), auth=Auth(authorize))
    for provider in (plain, *make_pooled(plain, 2).members):
        recorded = record_provider(provider, recording)
        assert await recorded.requests.options("m") is None
        assert await recorded.auth.authorize(UNSIGNED) == ((b"authorization", b"Bearer " + KEY),)
        await recorded.send(OUT, 1.0)
    assert [(noted.route, noted.protocol) for noted in recording.make_capture().upstream_requests] == [
        ("up/m", "chat")
    ] * 3
    assert KEY in recording.secrets
