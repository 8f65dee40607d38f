"""How long a reply is waited for, and how much is read: in size, in time, and by what all requests may hold."""

import math

import pytest

from dragoman.config.settings import ServerSettings
from dragoman.net.bodies import UNCOUNTED_BYTES, ByteBudget
from dragoman.net.client import (
    ConnectionLost,
    HttpClient,
    IncomingResponse,
    OutgoingRequest,
    SizeLimitExceeded,
    UpstreamTimeout,
)
from dragoman.proxy import reply_bounds
from dragoman.proxy.reply_bounds import (
    MAX_ERROR_BYTES,
    ReplyDeadline,
    Timeouts,
    charge_bytes,
    no_room_failure,
    read_error,
    read_reply,
    timeouts_for,
)
from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.upstreams.provider import FirstTokenWait
from fakes.upstream import Answer, End, FakeUpstream
from outgoing import open_http
from proxy.in_memory import make_call, make_request, run

SERVER = ServerSettings(first_token_timeout_s=300, token_timeout_s=900, idle_timeout_s=200)


@pytest.mark.parametrize(
    ("own_s", "limit_s", "first_token_s"),
    [
        (None, math.inf, 300),
        (None, 15.0, 15),  # the kind is more hurried than the server
        (None, 1000.0, 300),  # and never less
        (600.0, 15.0, 600),  # set in its section
        (40.0, math.inf, 40),
    ],
)
def test_which_timeout_holds_before_the_first_token(own_s: float | None, limit_s: float, first_token_s: float) -> None:
    assert timeouts_for(FirstTokenWait(own_s, limit_s), SERVER) == Timeouts(first_token_s, 900, 200)


def test_a_sign_of_life_extends_the_wait_but_not_beyond_the_time_for_a_token() -> None:
    wait = ReplyDeadline("up", Timeouts(first_token_s=10, token_s=25, idle_s=100), now=1000)
    assert wait.deadline == 1010
    wait.extend(1008, has_token=False)
    assert wait.deadline == 1018
    wait.extend(1017, has_token=False)
    assert wait.deadline == 1025
    wait.extend(1024, has_token=False)
    assert wait.deadline == 1025


def test_after_a_token_only_pauses_count() -> None:
    wait = ReplyDeadline("up", Timeouts(first_token_s=10, token_s=25, idle_s=100), now=1000)
    for now in (1005, 1080, 1170):
        wait.extend(now, has_token=True)
        assert wait.deadline == now + 100


def test_the_time_left_is_never_zero() -> None:
    wait = ReplyDeadline("up", Timeouts(10, 25, 100), now=1000)
    assert wait.seconds_left(1004) == 6
    assert wait.seconds_left(1010) == wait.seconds_left(2000) == 0.001


@pytest.mark.parametrize(
    ("signs", "has_token", "words"),
    [
        ((), False, ("for 10 s before its first token", "first_token_timeout_s")),
        ((1009, 1018, 1024), False, ("no token within 25 s", "token_timeout_s")),
        ((1009,), True, ("for 100 s", "idle_timeout_s")),
    ],
)
def test_the_failure_names_the_provider_the_time_and_the_setting(
    signs: tuple[float, ...], has_token: bool, words: tuple[str, ...]
) -> None:
    wait = ReplyDeadline("up", Timeouts(10, 25, 100), now=1000)
    for now in signs:
        wait.extend(now, has_token)
    failure = wait.failure()
    assert failure.kind is Kind.TIMEOUT
    assert "'up'" in failure.message
    assert all(word in failure.message for word in words)
    assert failure.retry_after is None


async def ask(fake: FakeUpstream, client: HttpClient) -> IncomingResponse:
    return await client.send(OutgoingRequest("POST", fake.url, ()), head_timeout_s=30)


def read(answer: Answer, budget: ByteBudget, *, silence_s: float = 30, total_s: float = 30) -> bytes:
    async def read_limited() -> bytes:
        async with open_http() as client:
            request = make_request(budget=budget)
            given = await ask(fake, client)
            return await read_reply(make_call(request=request), given, silence_s, total_s, "up")

    with FakeUpstream([answer]) as fake:
        return run(read_limited())


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
    request = make_request(budget=budget)
    charge_bytes(request.buffered, UNCOUNTED_BYTES)
    with pytest.raises(RequestError) as refused:
        charge_bytes(request.buffered, 1)
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
    monkeypatch.setattr(reply_bounds, "MAX_REPLY_BYTES", 5000)
    with pytest.raises(SizeLimitExceeded):
        read(Answer(b"x" * 6000, cut=1000), ByteBudget(1 << 20))


def test_an_error_is_short() -> None:
    async def read_limited(fake: FakeUpstream) -> None:
        async with open_http() as client:
            assert await read_error(await ask(fake, client), 30) == b"no"
            with pytest.raises(SizeLimitExceeded):
                await read_error(await ask(fake, client), 30)
            with pytest.raises(UpstreamTimeout):
                await read_error(await ask(fake, client), 0.1)

    with FakeUpstream([Answer(b"no"), Answer(b"x" * (MAX_ERROR_BYTES + 1)), Answer(b"x", end=End.HANG)]) as fake:
        run(read_limited(fake))
