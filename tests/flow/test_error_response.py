"""A failure before the first byte is a real HTTP error in the client's own shape."""

import time

import msgspec
import pytest

from dragoman.flow.error_response import AllTargetsFailed, respond_with_failure, should_retry
from dragoman.flow.step import ErrorReply
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.net.headers import Header, Headers
from dragoman.protocols import PROTOCOLS
from flow.in_memory import ClientReply, MemoryWire, make_exchange


def refuse(refused: RequestError, protocol: str = "chat") -> ClientReply:
    wire = MemoryWire()
    client = PROTOCOLS[protocol].client
    assert client is not None
    respond_with_failure(make_exchange(wire), client, refused, "req_1")
    assert wire.ended
    assert len(wire.writes) == 1
    return wire.reply


@pytest.mark.parametrize(("protocol", "id_name"), [("chat", b"x-request-id"), ("messages", b"request-id")])
def test_a_failure_is_rendered_in_the_clients_protocol(protocol: str, id_name: bytes) -> None:
    reply = refuse(RequestError(Failure(Kind.NOT_FOUND, "The model 'x' does not exist here.")), protocol)
    assert reply.status == 404
    assert reply.headers.get(b"content-type") == b"application/json"
    assert reply.headers.get(id_name) == b"req_1"
    assert msgspec.json.decode(reply.body)["error"]["message"] == "The model 'x' does not exist here."


OWN: tuple[Header, ...] = (
    (b"content-type", b"application/json; charset=utf-8"),
    (b"retry-after", b"60"),
    (b"retry-after-ms", b"60000"),
    (b"set-cookie", b"a=b"),
    (b"x-vendor", b"yes"),
)


def test_the_upstreams_own_error_passes_as_it_came() -> None:
    error = ErrorReply(418, Headers(list(OWN)), b'{"error":  {"message": "teapot"}}')
    reply = refuse(AllTargetsFailed(Failure(Kind.UPSTREAM, "teapot"), error))
    assert (reply.status, reply.body) == (418, error.body)
    assert reply.headers.get(b"x-vendor") == b"yes"
    assert reply.headers.get(b"retry-after") == b"60"
    assert reply.headers.get(b"set-cookie") is None
    assert reply.headers.get(b"x-request-id") == b"req_1"


def test_the_gateways_retry_time_replaces_the_upstreams() -> None:
    error = ErrorReply(429, Headers(list(OWN)), b'{"error":{"message":"slow"}}')
    reply = refuse(AllTargetsFailed(Failure(Kind.RATE_LIMITED, "slow", retry_after=30.0), error))
    advice = [value for name, value in reply.headers if name.startswith(b"retry-after")]
    assert advice == [b"30"]


def test_without_an_own_error_the_failure_is_rendered() -> None:
    reply = refuse(AllTargetsFailed(Failure(Kind.TIMEOUT, "no data for 15 s"), None))
    assert reply.status == 504
    assert b"no data for 15 s" in reply.body


def test_a_reply_that_has_begun_is_broken_off() -> None:
    wire = MemoryWire()
    exchange = make_exchange(wire)
    exchange.start(200, [])
    exchange.write(b"data: {}\n\n")
    written = wire.written
    client = PROTOCOLS["chat"].client
    assert client is not None
    respond_with_failure(exchange, client, RequestError(Failure(Kind.BUG, "oh")), "req_1")
    assert wire.dropped
    assert wire.written == written


@pytest.mark.parametrize(
    ("wait", "fields"),
    [
        (None, []),
        (7.0, [(b"retry-after", b"7")]),
        (0.25, [(b"retry-after", b"1"), (b"retry-after-ms", b"250")]),
        (6.4, [(b"retry-after", b"7"), (b"retry-after-ms", b"6400")]),
    ],
)
def test_the_retry_time_is_sent_in_seconds_and_where_needed_in_milliseconds(
    wait: float | None, fields: list[Header]
) -> None:
    reply = refuse(RequestError(Failure(Kind.RATE_LIMITED, "slow", retry_after=wait)))
    assert [field for field in reply.headers if field[0].startswith(b"retry-after")] == fields


def test_a_time_that_the_upstream_named_is_sent_in_seconds() -> None:
    reply = refuse(RequestError(Failure(Kind.QUOTA, "used up", resets_at=time.time() + 1000)))
    advice = [(name, value) for name, value in reply.headers if name.startswith(b"retry-after")]
    assert [name for name, _ in advice] == [b"retry-after"]
    assert 900 < int(advice[0][1]) <= 1000
    passed = refuse(RequestError(Failure(Kind.QUOTA, "used up", resets_at=time.time() - 1000)))
    assert passed.headers.get(b"retry-after") == b"0"


# contract.md, "x-should-retry"
NEVER = {Kind.AUTH, Kind.CREDENTIAL}
NOT_BY_DEFAULT = {Kind.QUOTA, Kind.FORBIDDEN}


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("advice", [None, True, False])
def test_whether_a_client_should_retry(kind: Kind, advice: bool | None) -> None:
    expected = False if kind in NEVER or (advice is None and kind in NOT_BY_DEFAULT) else advice
    failure = Failure(kind, "no", should_retry=advice)
    assert should_retry(failure) is expected
    header = refuse(RequestError(failure)).headers.get(b"x-should-retry")
    assert header == {None: None, True: b"true", False: b"false"}[expected]
