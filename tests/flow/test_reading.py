"""Bodies of upstreams are read to their end: bounded in size, in time, and by what all requests may hold."""

import pytest

from dragoman.flow import reading
from dragoman.flow.reading import MAX_ERROR_BYTES, charge_bytes, no_room_failure, read_error, read_reply
from dragoman.hub.failure import Kind, RequestError
from dragoman.net.bodies import UNCOUNTED_BYTES, ByteBudget
from dragoman.net.client import (
    ConnectionLost,
    HttpClient,
    IncomingResponse,
    OutgoingRequest,
    SizeLimitExceeded,
    UpstreamTimeout,
)
from fakes.upstream import Answer, End, FakeUpstream
from flow.in_memory import MemoryWire, make_call, make_exchange, run


async def ask(fake: FakeUpstream, client: HttpClient) -> IncomingResponse:
    return await client.send(OutgoingRequest("POST", fake.url, ()), head_timeout_s=30)


def read(answer: Answer, budget: ByteBudget, *, silence_s: float = 30, total_s: float = 30) -> bytes:
    async def reads() -> bytes:
        client = HttpClient()
        exchange = make_exchange(MemoryWire(), budget=budget)
        try:
            given = await ask(fake, client)
            return await read_reply(make_call(exchange=exchange), given, silence_s, total_s, "up")
        finally:
            await client.close()

    with FakeUpstream([answer]) as fake:
        return run(reads())


def test_a_body_is_counted_in_what_the_request_holds() -> None:
    budget = ByteBudget(1 << 30)
    body = b"x" * (UNCOUNTED_BYTES + 500)
    assert read(Answer(body, cut=1000), budget) == body
    assert budget.held == 500


def test_a_body_for_which_there_is_no_room_is_refused() -> None:
    with pytest.raises(RequestError) as refused:
        read(Answer(b"x" * (3 * UNCOUNTED_BYTES)), ByteBudget(UNCOUNTED_BYTES))
    assert refused.value.failure == no_room_failure()


def test_no_room_is_a_reason_to_come_back_soon() -> None:
    budget = ByteBudget(0)
    exchange = make_exchange(MemoryWire(), budget=budget)
    charge_bytes(exchange.buffered, UNCOUNTED_BYTES)
    with pytest.raises(RequestError) as refused:
        charge_bytes(exchange.buffered, 1)
    assert refused.value.failure.kind is Kind.BUSY
    assert refused.value.failure.retry_after == 1.0
    assert "server.max_buffered_mb" in refused.value.failure.message


def test_a_body_that_stops_arriving_times_out() -> None:
    with pytest.raises(UpstreamTimeout):
        read(Answer(b"x", end=End.HANG), ByteBudget(1 << 20), silence_s=0.1)


def test_a_body_that_does_not_end_times_out() -> None:
    endless = Answer(b"x" * 200, cut=1, pause_s=0.02)
    with pytest.raises(UpstreamTimeout):
        read(endless, ByteBudget(1 << 20), total_s=0.2)


def test_a_body_that_breaks_off_is_lost() -> None:
    with pytest.raises(ConnectionLost):
        read(Answer(b"xx", end=End.CUT), ByteBudget(1 << 20))


def test_a_body_that_is_too_large_is_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_REPLY_BYTES", 5000)
    with pytest.raises(SizeLimitExceeded):
        read(Answer(b"x" * 6000, cut=1000), ByteBudget(1 << 20))


def test_an_error_is_short() -> None:
    async def reads(fake: FakeUpstream) -> None:
        client = HttpClient()
        try:
            assert await read_error(await ask(fake, client), 30) == b"no"
            with pytest.raises(SizeLimitExceeded):
                await read_error(await ask(fake, client), 30)
            with pytest.raises(UpstreamTimeout):
                await read_error(await ask(fake, client), 0.1)
        finally:
            await client.close()

    with FakeUpstream([Answer(b"no"), Answer(b"x" * (MAX_ERROR_BYTES + 1)), Answer(b"x", end=End.HANG)]) as fake:
        run(reads(fake))
