"""A recorded provider returns what the real one returns, and notes that with what it sent and received."""

import asyncio
from contextlib import suppress

import pytest
from msgspec.structs import replace

from dragoman.config.problems import ConfigError, Problem
from dragoman.flow.capture.format import CANCELLED, CLOSED, WHOLE, LookupName
from dragoman.flow.capture.recording_provider import credential_name, describe_error, record_provider
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.net.bodies import BodySink, read_chunks
from dragoman.net.client import (
    ConnectionLost,
    DialOptions,
    IncomingResponse,
    InvalidResponse,
    OutgoingRequest,
    UpstreamTimeout,
)
from dragoman.net.headers import Header, Headers
from dragoman.providers.provider import Address, Auth, Catalogue, Endpoint, ReplyRules, RequestRules, UnsignedRequest
from flow.capture.recordings import look_up, make_recording
from flow.in_memory import URL, make_pooled, make_provider, run

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
        return await read_chunks(self, limit, timeout_s, "up")

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


def test_lookups_are_noted_under_the_name_of_the_credential() -> None:
    provider = make_provider("up", key=KEY)
    assert credential_name(provider) == "up"
    assert [credential_name(member) for member in make_pooled(provider, 2).members] == ["up#0", "up#1"]


async def test_what_a_provider_returns_is_noted() -> None:
    async def find_protocols(model: str) -> tuple[str, ...]:
        return ("messages",)

    async def options(model: str) -> object:
        return {"profile": model}

    async def renew() -> bool:
        return True

    async def find_address(path: str) -> Address:
        return Address(f"https://moved.example{path}", ((b"x-target", b"Chat"),))

    async def authorize(request: UnsignedRequest) -> tuple[Header, ...]:
        return ((b"authorization", b"Bearer " + KEY),)

    def interpret(failure: Failure) -> Failure:
        return replace(failure, retry_after=7.0)

    recording = make_recording()
    provider = record_provider(
        make_provider(
            endpoint=replace(make_sender(Pieces()), find_protocols=find_protocols, find_address=find_address),
            auth=Auth(authorize, renew=renew),
            catalogue=Catalogue(context_window=lambda model: 1000),
            requests=RequestRules(options=options),
            replies=ReplyRules(interpret_failure=interpret),
        ),
        recording,
    )
    assert await provider.protocols_for("m") == ("messages",)
    assert await provider.requests.options("m") == {"profile": "m"}
    assert provider.endpoint.find_address is not None
    assert (await provider.endpoint.find_address("/chat")).url == "https://moved.example/chat"
    assert await provider.auth.authorize(UNSIGNED) == ((b"authorization", b"Bearer " + KEY),)
    assert provider.auth.renew is not None
    assert await provider.auth.renew()
    assert provider.replies.interpret_failure(Failure(Kind.RATE_LIMITED, "slow")).retry_after == 7.0
    assert (provider.catalogue.context_window("m"), provider.catalogue.context_window("m")) == (1000, 1000)
    expected: dict[LookupName, object] = {
        LookupName.PROTOCOLS: ["messages"],
        LookupName.OPTIONS: {"profile": "m"},
        LookupName.ADDRESS: {"url": "https://moved.example/chat", "headers": [["x-target", "Chat"]]},
        LookupName.AUTHORIZE: [["authorization", f"Bearer {KEY.decode()}"]],
        LookupName.RENEW: True,
        LookupName.RETRY_AFTER: 7.0,
        LookupName.CONTEXT_WINDOW: 1000,
    }
    for name, value in expected.items():
        assert look_up(recording, "up", name) == [{"value": value}]
    assert KEY in recording.secrets


def test_what_a_provider_does_not_have_is_not_recorded_either() -> None:
    provider = record_provider(make_provider(), make_recording())
    endpoint, auth = provider.endpoint, provider.auth
    assert (endpoint.find_protocols, endpoint.find_address, auth.renew) == (None, None, None)


async def test_a_credential_that_cannot_be_had_is_noted_with_the_reason() -> None:
    async def refuse(request: UnsignedRequest) -> tuple[Header, ...]:
        if request.protocol == "chat":
            raise RequestError(Failure(Kind.CREDENTIAL, "signed out"))
        raise ConfigError([Problem("configuration", None, "api_key", "it is empty")])

    recording = make_recording()
    provider = record_provider(make_provider(auth=Auth(refuse)), recording)
    with pytest.raises(RequestError):
        await provider.auth.authorize(UNSIGNED)
    with pytest.raises(ConfigError):
        await provider.auth.authorize(replace(UNSIGNED, protocol="messages"))
    refused, misconfigured = look_up(recording, "up", LookupName.AUTHORIZE)
    assert isinstance(refused, dict)
    assert "signed out" in str(refused["refused"])
    assert misconfigured == {"misconfigured": ["it is empty"]}
