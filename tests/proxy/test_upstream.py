"""A request is sent and its answer received, also for what an upstream keeps; failures come back as values."""

import logging
import re
import socket
from collections.abc import Callable, Coroutine

import msgspec
import pytest

from dragoman.net.client import ConnectionLost, InvalidResponse, SizeLimitExceeded, UpstreamTimeout
from dragoman.proxy import reply_bounds
from dragoman.proxy.prepared import Prepared
from dragoman.proxy.step import NoReply
from dragoman.proxy.upstream import connection_failure, receive, send
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.upstreams.provider import IncomingResponse
from fakes.raw import RawServer, Request
from fakes.upstream import Answer, End, FakeUpstream
from narrowing import expect, present
from outgoing import open_http
from proxy.in_memory import (
    CHAT,
    MESSAGES,
    make_call,
    make_provider,
    prepare_for,
    run,
)

LATE = Failure(Kind.TIMEOUT, "no data for so long")
KEY = b"sk-secret-0123456789"
STORED = b'{"id": "resp_1",  "output": []}'
JSON = "application/json"


async def send_to(
    url: str, *, protocol: str = "chat", timeout_s: float = 30.0, key: str = ""
) -> tuple[Prepared, IncomingResponse | NoReply]:
    async with open_http() as client:
        provider = make_provider(url=url, send=client.send, key=KEY)
        call = make_call(protocol, CHAT if protocol == "chat" else MESSAGES, key=key)
        prepared = await prepare_for(call, provider)
        return prepared, await send(prepared, timeout_s, lambda: LATE)


def refusal(answer: Answer, *, protocol: str = "chat", timeout_s: float = 30.0, key: str = "") -> NoReply:
    with FakeUpstream([answer]) as fake:
        _, end = run(send_to(fake.url, protocol=protocol, timeout_s=timeout_s, key=key))
    return expect(NoReply, end)


def error(status: int, message: str = "no", **fields: object) -> Answer:
    body = msgspec.json.encode({"error": {"message": message, "type": "t", **fields}})
    return Answer(body, status=status, content_type="application/json")


def test_an_answer_is_returned_once_its_head_has_come() -> None:
    with FakeUpstream([Answer(b"{}", end=End.HANG)]) as fake:
        _, answer = run(send_to(fake.url))
    assert not isinstance(answer, NoReply)
    assert answer.status == 200


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Kind.BAD_REQUEST),
        (401, Kind.CREDENTIAL),
        (404, Kind.NOT_FOUND),
        (429, Kind.RATE_LIMITED),
        (500, Kind.UPSTREAM),
        (503, Kind.OVERLOADED),
    ],
)
def test_an_error_is_read_into_a_failure(status: int, kind: Kind) -> None:
    end = refusal(error(status))
    assert (end.failure.kind, end.failure.status) == (kind, status)


def test_an_error_is_logged_without_its_message_when_more_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dragoman"):
        refusal(error(400, "odd"))
    assert caplog.messages == []
    with caplog.at_level(logging.DEBUG, "dragoman"):
        refusal(error(400, f"odd {KEY.decode()}", code="odd_field"))
    [line] = [line for line in caplog.messages if "HTTP 400" in line]
    assert re.fullmatch(r"provider \w+: HTTP 400 odd_field\. The request: \d+ bytes", line)


def test_an_error_in_the_clients_own_protocol_is_kept_as_it_came() -> None:
    answer = replace_headers(error(400, "odd"), ("x-vendor", "yes"), ("x-ratelimit-remaining-tokens", "5"))
    end = refusal(answer)
    assert end.error_reply is not None
    assert (end.error_reply.status, end.error_reply.body) == (400, answer.body)
    assert end.error_reply.headers.get(b"x-vendor") == b"yes"
    assert end.error_reply.headers.get(b"x-ratelimit-remaining-tokens") is None
    assert present(refusal(answer, key="environment").error_reply).headers.get(b"x-ratelimit-remaining-tokens") == b"5"


def replace_headers(answer: Answer, *headers: tuple[str, str]) -> Answer:
    return Answer(answer.body, answer.status, answer.content_type, headers)


@pytest.mark.parametrize(
    ("answer", "protocol"),
    [
        (error(400), "messages"),  # built for another protocol
        (error(401), "chat"),  # the gateway's own credential
        (error(403, "Your account is suspended."), "chat"),
        (Answer(b"<html>Bad gateway", status=502, content_type="text/html"), "chat"),
        (Answer(b'{"detail":"what"}', status=422, content_type="application/json"), "chat"),
    ],
)
def test_any_other_error_is_rendered_anew(answer: Answer, protocol: str) -> None:
    assert refusal(answer, protocol=protocol).error_reply is None


def test_a_repeated_secret_is_hidden_in_the_error() -> None:
    secret = KEY.decode()
    end = refusal(replace_headers(error(400, f"sent {secret}"), ("x-debug", secret)))
    assert secret not in repr(end.failure)
    assert end.error_reply is not None
    assert KEY not in end.error_reply.body
    assert end.error_reply.headers.get(b"x-debug") == b"***"


def test_what_an_error_advises_is_kept() -> None:
    end = refusal(replace_headers(error(429), ("retry-after", "7"), ("x-should-retry", "false")))
    assert (end.failure.retry_after, end.failure.should_retry) == (7.0, False)
    spent = (("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "60s"))
    assert refusal(replace_headers(error(429), *spent)).failure.resets_at is not None


@pytest.mark.parametrize("status", [301, 302, 307, 308, 304])
def test_a_redirect_is_not_followed(status: int) -> None:
    answer = Answer(b"", status=status, headers=(("location", "http://127.0.0.1:1/elsewhere"),), chunked=False)
    with FakeUpstream([answer]) as fake:
        _, end = run(send_to(fake.url))
        assert len(fake.calls) == 1
    assert isinstance(end, NoReply)
    assert (end.failure.kind, end.failure.status, end.failure.should_retry) == (Kind.UPSTREAM, status, False)


def test_a_head_that_does_not_come_is_late() -> None:
    assert refusal(Answer(headless=True, end=End.HANG), timeout_s=0.1) == NoReply(LATE)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(b'{"error":', status=500, end=End.HANG), Kind.TIMEOUT),
        (Answer(b'{"error":', status=500, end=End.CUT), Kind.LOST),
        (Answer(b'{"error":', status=500, end=End.RESET), Kind.LOST),
        (Answer(headless=True, end=End.CUT), Kind.LOST),
        (Answer(headless=True, end=End.RESET), Kind.LOST),
    ],
    ids=["no end", "cut", "reset", "cut before the head", "reset before the head"],
)
def test_an_answer_that_does_not_end_or_breaks_off_is_a_failure_of_its_provider(answer: Answer, kind: Kind) -> None:
    end = refusal(answer, timeout_s=1.0 if kind is Kind.TIMEOUT else 30.0)
    assert end.failure.kind is kind
    assert "'up'" in end.failure.message


def test_an_error_body_may_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_bounds, "MAX_ERROR_BYTES", 100)
    for status, kind in ((400, Kind.BAD_REQUEST), (500, Kind.UPSTREAM)):
        failure = refusal(Answer(b"x" * 200, status=status)).failure
        assert (failure.kind, failure.status) == (kind, status)


def test_a_closed_port_is_a_lost_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    _, end = run(send_to(f"http://127.0.0.1:{port}/v1"))
    assert isinstance(end, NoReply)
    assert (end.failure.kind, end.failure.retry_after) == (Kind.LOST, None)
    assert "'up'" in end.failure.message


async def test_what_is_no_http_is_corrupt() -> None:
    async with RawServer((Request(), b"220 mail.example ESMTP\r\n\r\n")) as server:
        _, end = await send_to(f"{server.url}/v1")
    assert expect(NoReply, end).failure.kind is Kind.CORRUPT


def test_a_connection_that_was_only_stale_is_no_reason_to_wait() -> None:
    prepared = run(prepare_for(make_call(), make_provider()))
    fault = ConnectionLost("127.0.0.1:9: closed", sent=True, received=False)
    assert connection_failure(prepared, fault).retry_after is None
    assert connection_failure(prepared, fault.as_stale()).retry_after == 0.0


async def fail(fault: Exception) -> bytes:
    raise fault


async def give(data: bytes) -> bytes:
    return data


BUSY = Failure(Kind.BUSY, "no room")


@pytest.mark.parametrize(
    ("coming", "kind"),
    [
        (lambda: fail(UpstreamTimeout("idle", "silent")), Kind.TIMEOUT),
        (lambda: fail(SizeLimitExceeded("much")), Kind.UPSTREAM),
        (lambda: fail(ConnectionLost("gone", sent=True, received=True)), Kind.LOST),
        (lambda: fail(InvalidResponse("odd", sent=True, received=True)), Kind.CORRUPT),
        (lambda: fail(RequestError(BUSY)), Kind.BUSY),
    ],
)
def test_what_goes_wrong_while_receiving_is_a_value(
    coming: Callable[[], Coroutine[object, object, bytes]], kind: Kind
) -> None:
    prepared = run(prepare_for(make_call(), make_provider()))
    assert expect(Failure, run(receive(prepared, coming(), lambda: LATE))).kind is kind


def test_what_comes_is_returned_and_a_bug_is_not_hidden() -> None:
    prepared = run(prepare_for(make_call(), make_provider()))
    assert run(receive(prepared, give(b"all"), lambda: LATE)) == b"all"
    with pytest.raises(ZeroDivisionError):
        run(receive(prepared, fail(ZeroDivisionError()), lambda: LATE))
