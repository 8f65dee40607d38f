"""Answers about a model that does not exist come a second later once a client repeats the request too often."""

import asyncio
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from dragoman.net.bodies import ByteBudget
from dragoman.net.http_request import HttpRequest
from dragoman.net.request_head import RequestHead
from dragoman.server.unknown_models import FREE, MAX_COUNTED, MAX_WAITING, RepeatCounter, UnknownModelDelay
from dragoman.tenancy.keys import KeyId
from dragoman.translate.hub.failure import UNKNOWN_MODEL, Failure, Kind, RequestError
from gateway import Running, running
from proxy.in_memory import run
from raw_http import Answered, post
from tables import each_row

ECHO = '[providers.echo]\nkind = "echo"\n'
BODY_BYTES = 200_000
# Paths of every protocol, and of requests that only count or are relayed.
PATHS = {
    "/v1/chat/completions": '{"model":"MODEL","messages":[{"role":"user","content":"TEXT"}]}',
    "/v1/messages": '{"model":"MODEL","max_tokens":9,"messages":[{"role":"user","content":"TEXT"}]}',
    "/v1/messages/count_tokens": '{"model":"MODEL","messages":[{"role":"user","content":"TEXT"}]}',
    "/v1/responses": '{"model":"MODEL","input":"TEXT"}',
    "/v1/embeddings": '{"model":"MODEL","input":"TEXT"}',
    "/v1beta/models/MODEL:generateContent": '{"contents":[{"parts":[{"text":"TEXT"}]}]}',
    "/v1beta/models/MODEL:streamGenerateContent?alt=sse": '{"contents":[{"parts":[{"text":"TEXT"}]}]}',
}


@each_row(
    ("times", "delayed"),
    [
        ([0.0] * 20, []),
        ([0.0] * 22, [20, 21]),
        ([i * 0.499 for i in range(21)], [20]),  # the first of them 9.98 s before
        ([i * 0.5 for i in range(100)], []),  # 20 in 10 s, and no more
        ([0.0] * 20 + [9.99], [20]),
        ([0.0] * 20 + [10.0], []),
        # A client that repeats at once, and waits a second for each delayed answer
        ([0.0] * 20 + [float(i) for i in range(1, 11)] + [10.0] * 10 + [10.5], [*range(20, 29), 40]),
    ],
)
def test_more_than_20_in_10_seconds_are_delayed(times: list[float], delayed: list[int]) -> None:
    counter = RepeatCounter()
    assert [number for number, now in enumerate(times) if counter.add("key", "model", now)] == delayed


def test_each_key_and_each_model_is_counted_by_itself() -> None:
    counter = RepeatCounter()
    for _ in range(FREE):
        assert not any(counter.add(key, model, 0.0) for key in ("a", "b") for model in ("m", "n"))
    assert counter.add("a", "m", 0.0)
    assert not counter.add("a", "other", 0.0)


def test_no_more_pairs_than_the_limit_are_counted() -> None:
    counter = RepeatCounter()
    for number in range(3 * MAX_COUNTED):
        counter.add("key", f"model {number}", 0.0)
    assert len(counter) == MAX_COUNTED


class Parsed:
    """What the frames of a request refer to."""


def make_refusal(parsed: Parsed | None = None) -> RequestError:
    """Return a refusal as it leaves the handler: with the traceback of frames that hold the request."""
    try:
        try:
            held = parsed
            raise RequestError(Failure(Kind.NOT_FOUND, "The model 'x' does not exist here.", code=UNKNOWN_MODEL))
        except RequestError as refused:
            del parsed, held
            raise refused.as_observed() from None
    except RequestError as observed:
        return observed


def make_request(budget: ByteBudget) -> HttpRequest:
    head = RequestHead(
        fields=[], method="POST", path="/v1/chat/completions", raw_path=b"/v1/chat/completions", query=""
    )
    request = HttpRequest(head, None, budget)
    request.buffered.hold(BODY_BYTES)
    request.set_body(b" " * BODY_BYTES)
    return request


def find_key(request: HttpRequest) -> KeyId | None:
    return None


async def exhaust(delay: UnknownModelDelay) -> None:
    for _ in range(FREE):
        await delay.hold_back(make_refusal(), make_request(ByteBudget(10**9)), find_key)


def test_a_delayed_answer_holds_no_body_and_at_most_50_wait() -> None:
    async def check() -> None:
        gate = asyncio.Event()
        waits: list[float] = []

        async def sleep(seconds: float) -> None:
            waits.append(seconds)
            await gate.wait()

        delay, budget = UnknownModelDelay(lambda: 0.0, sleep), ByteBudget(10**9)
        await exhaust(delay)
        assert waits == []
        parsed = Parsed()
        alive = weakref.ref(parsed)
        request = make_request(budget)
        held = [asyncio.create_task(delay.hold_back(make_refusal(parsed), request, find_key))]
        del parsed
        await asyncio.sleep(0)
        assert (waits, alive(), budget.held) == ([1.0], None, 0)
        assert await request.body() == b""
        for _ in range(MAX_WAITING - 1):
            held.append(asyncio.create_task(delay.hold_back(make_refusal(), make_request(budget), find_key)))
        await asyncio.sleep(0)
        await delay.hold_back(make_refusal(), make_request(ByteBudget(10**9)), find_key)  # the 51st: at once
        assert (delay.waiting, len(waits)) == (MAX_WAITING, MAX_WAITING)
        held.pop().cancel()
        await asyncio.sleep(0)
        assert delay.waiting == MAX_WAITING - 1
        gate.set()
        await asyncio.gather(*held)
        assert delay.waiting == 0

    run(check())


@pytest.mark.parametrize(
    "failure", [Failure(Kind.NOT_FOUND, "There is nothing at /v1/x."), Failure(Kind.BAD_REQUEST, "No.")]
)
def test_other_refusals_are_never_delayed(failure: Failure) -> None:
    async def fail(_: float) -> None:
        raise AssertionError("it waits")

    async def check() -> None:
        delay = UnknownModelDelay(lambda: 0.0, fail)
        for _ in range(2 * FREE):
            await delay.hold_back(RequestError(failure), make_request(ByteBudget(10**9)), find_key)

    run(check())


def find_key_of_lane(key: str, request: HttpRequest) -> KeyId:
    return KeyId(key)


def test_requests_over_a_websocket_are_delayed_by_their_key() -> None:
    async def check() -> list[float]:
        waits: list[float] = []

        async def sleep(seconds: float) -> None:
            waits.append(seconds)

        delay = UnknownModelDelay(lambda: 0.0, sleep)
        for key in [*["a"] * FREE, "b", "a"]:
            of_lane = partial(find_key_of_lane, key)
            await delay.hold_back(make_refusal(), make_request(ByteBudget(10**9)), of_lane)
        return waits

    assert run(check()) == [1.0]


class Gate:
    """Stands for the second that passes; opened by the test."""

    def __init__(self, gateway: Running) -> None:
        self._loop = gateway.loop
        self._opened = asyncio.Event()
        self.arrived = threading.Semaphore(0)

    async def wait(self, seconds: float) -> None:
        self.arrived.release()
        await self._opened.wait()

    def open(self) -> None:
        self._loop.call_soon_threadsafe(self._opened.set)


def ask(gateway: Running, path: str, model: str, key: str, size: int = 10) -> Answered:
    body = PATHS[path].replace("MODEL", model).replace("TEXT", "x" * size)
    return post(gateway.port, path.replace("MODEL", model), body.encode(), key=key)


def test_the_gateway_delays_repeated_requests_for_an_unknown_model_on_every_path(tmp_path: Path) -> None:
    with running(ECHO, tmp_path, stored=("one", "two")) as gateway, ThreadPoolExecutor(len(PATHS)) as clients:
        gate = Gate(gateway)
        gateway.app.site.unknown_models = UnknownModelDelay(lambda: 0.0, gate.wait)
        one, two = gateway.keys["one"], gateway.keys["two"]
        for number in range(FREE):
            assert ask(gateway, list(PATHS)[number % len(PATHS)], "no-such-model", one).status == 404
        held = [clients.submit(ask, gateway, path, "no-such-model", one, BODY_BYTES) for path in PATHS]
        for _ in held:
            assert gate.arrived.acquire(timeout=60)
        assert not any(answer.done() for answer in held)
        assert gateway.app.server._service.budget.held == 0
        assert gateway.app.site.under_way == 0
        assert ask(gateway, "/v1/messages", "no-such-model", two).status == 404
        assert ask(gateway, "/v1/messages", "another-model", one).status == 404
        assert ask(gateway, "/v1/messages", "echo", one).status == 200
        gate.open()
        for answer in held:
            assert (answer.result(60).status, b"no-such-model" in answer.result().body) == (404, True)
