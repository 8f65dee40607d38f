"""Echo fails on request: with a status, in the middle of a reply, or by sending no data."""

import asyncio

import pytest

from dragoman.hub.events import Delta, Failed
from dragoman.hub.failure import Kind
from dragoman.hub.request import Text
from dragoman.net.client import ConnectionLost, OutgoingRequest, SizeLimitExceeded, UpstreamTimeout
from dragoman.protocols.native import PROTOCOL
from dragoman.providers.echo import Echo, Finish, write_script
from echoing import events_of, make_counter, make_request, send_request
from narrowing import expect, present


@pytest.mark.parametrize(
    ("model", "status", "kind"),
    [
        ("error-400", 400, Kind.BAD_REQUEST),
        ("error-401", 401, Kind.CREDENTIAL),
        ("error-403", 403, Kind.FORBIDDEN),
        ("error-404", 404, Kind.NOT_FOUND),
        ("error-413", 413, Kind.TOO_LARGE),
        ("error-429", 429, Kind.RATE_LIMITED),
        ("error-500", 500, Kind.UPSTREAM),
        ("error-529", 529, Kind.OVERLOADED),
        ("error-context", 400, Kind.CONTEXT_TOO_LONG),
        ("no-such-model", 404, Kind.NOT_FOUND),
    ],
)
def test_errors_come_as_statuses_that_the_protocol_reads(model: str, status: int, kind: Kind) -> None:
    async def fetch_failure() -> tuple[int, dict[bytes, bytes], bytes]:
        answer = await send_request(make_request(Text("hi"), model=model, stream=True))
        return answer.status, dict(answer.headers), await answer.read(1 << 20, 1.0)

    found, headers, body = asyncio.run(fetch_failure())
    assert found == status
    failure = present(PROTOCOL.upstream).read_error(found, headers, body)
    assert failure.kind is kind
    assert (failure.retry_after == 7.0) is (model == "error-429")


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_fails_or_is_truncated_in_its_middle(stream: bool) -> None:
    mid = asyncio.run(events_of(make_request(Text("one two three four"), model="error-mid", stream=stream)))
    assert "".join(event.text for event in mid if isinstance(event, Delta)) == "one two three "
    assert expect(Failed, mid[-1]).failure.kind is Kind.OVERLOADED
    cut = asyncio.run(events_of(make_request(Text("one two three four"), model="error-cut", stream=stream)))
    assert expect(Failed, cut[-1]).failure.kind is Kind.TRUNCATED
    assert isinstance(cut[-2], Delta)


def test_a_stalled_reply_begins_and_then_sends_no_data() -> None:
    async def read_stalled() -> list[bytes]:
        answer = await send_request(make_request(Text("one two"), model="error-stall", stream=True))
        chunks = [await answer.chunk(1.0), await answer.chunk(1.0)]
        for _ in range(2):  # the silence goes on however often one asks
            with pytest.raises(UpstreamTimeout):
                await answer.chunk(0.005)
        return chunks

    assert b"one" in asyncio.run(read_stalled())[0]
    assert write_script(make_request(Text("x"), model="error-stall"), make_counter()).finish is Finish.SILENCE


def test_a_slow_piece_is_not_lost_after_a_timeout() -> None:
    async def patient() -> bytes:
        answer = await send_request(make_request(Text("one"), stream=True), word_s=0.02)
        with pytest.raises(UpstreamTimeout):
            await answer.chunk(0.001)
        return await answer.chunk(1.0)

    assert b'"one"' in asyncio.run(patient())


async def test_a_closed_or_oversized_response_fails_like_any_other() -> None:
    answer = await send_request(make_request(Text("one two three")))
    with pytest.raises(SizeLimitExceeded):
        await answer.read(10, 1.0)
    answer.close()
    with pytest.raises(ConnectionLost):
        await answer.chunk(1.0)


def test_an_unreadable_body_is_a_bad_request() -> None:
    answer = asyncio.run(Echo().send(OutgoingRequest("POST", "http://echo.invalid/replies", (), b"{")))
    assert answer.status == 400
