"""All bodies together have one budget, and every body of an upstream has its time."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from e2e.cases import CASES
from fakes.upstream import Answer, End
from raw_http import Answered, dial, post, read_answer, request_bytes
from rig import CROSSED, ENCODERS, ONCE, PATHS, PROTOCOLS, Rig, run_rig

MEBIBYTE = 1 << 20
SMALL = ONCE + "[server]\nmax_buffered_mb = 2\n"
HURRIED = ONCE + "[server]\nfirst_token_timeout_s = 1\ntoken_timeout_s = 1\nidle_timeout_s = 1\n"
TRICKLE_S = 200.0  # what a trickled body takes
BUSY = {"chat": 503, "responses": 503, "messages": 529}

clients = pytest.mark.parametrize("client", PROTOCOLS)
pairs = pytest.mark.parametrize(("client", "upstream"), CROSSED + [(name, name) for name in PROTOCOLS])


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("gateway"), SMALL) as shared:
        yield shared


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A rig whose upstreams take too long."""
    with run_rig(tmp_path_factory.mktemp("hurried"), HURRIED) as shared:
        yield shared


def body_of(client: str, model: str, size: int = 10) -> bytes:
    user = [{"role": "user", "content": "x" * size}]
    response = {"input": user} if client == "responses" else {"messages": user}
    return msgspec.json.encode({"model": model, "max_tokens": 9, **response})


def whole(upstream: str, size: int = 0) -> Answer:
    """A good reply, as long as JSON's white space makes it."""
    body = ENCODERS[upstream].encode_whole(CASES["text"].scripted)
    return Answer(body[:1] + b" " * size + body[1:], content_type="application/json")


def count_held(rig: Rig) -> int:
    return rig.gateway.app.server._service.budget.held


def wait_until_free(rig: Rig) -> None:
    patience = time.monotonic() + 60.0
    while count_held(rig):
        assert time.monotonic() < patience
        time.sleep(0.01)


def assert_busy(client: str, answer: Answered) -> None:
    assert answer.status == BUSY[client], answer.body[:300]
    assert answer.get("retry-after") == "1"
    assert answer.get("x-should-retry") is None
    assert "server.max_buffered_mb" in msgspec.json.decode(answer.body)["error"]["message"]


@clients
def test_a_request_above_the_memory_limit_gets_a_retry_time(rig: Rig, client: str) -> None:
    rig.play("chat", whole("chat"))
    assert_busy(client, post(rig.gateway.port, PATHS[client], body_of(client, "chat/m", 3 * MEBIBYTE)))
    assert rig.fakes["chat"].calls == []
    wait_until_free(rig)
    assert post(rig.gateway.port, PATHS[client], body_of(client, "chat/m", MEBIBYTE)).status == 200
    wait_until_free(rig)


@pairs
def test_a_reply_above_the_memory_limit_gets_a_retry_time_after_one_attempt(
    rig: Rig, client: str, upstream: str
) -> None:
    fake = rig.play(upstream, whole(upstream, 3 * MEBIBYTE))
    assert_busy(client, post(rig.gateway.port, PATHS[client], body_of(client, rig.model(upstream))))
    assert len(fake.calls) == 1
    wait_until_free(rig)
    rig.play(upstream, whole(upstream, MEBIBYTE))
    assert post(rig.gateway.port, PATHS[client], body_of(client, rig.model(upstream))).status == 200
    wait_until_free(rig)


def test_uploads_share_the_budget(rig: Rig) -> None:
    """One upload holds most of it; the next is refused at once, and passes when the first has ended."""
    rig.play("chat", whole("chat"))
    data = request_bytes(PATHS["chat"], body_of("chat", "chat/m", MEBIBYTE + MEBIBYTE // 2))
    with dial(rig.gateway.port) as sock:
        sock.sendall(data[:-1])
        while count_held(rig) < MEBIBYTE:
            time.sleep(0.01)
        assert_busy("chat", post(rig.gateway.port, PATHS["chat"], body_of("chat", "chat/m", MEBIBYTE)))
        sock.sendall(data[-1:])
        assert read_answer(sock).status == 200
    wait_until_free(rig)


def test_many_large_replies_at_once_stay_within_the_budget(rig: Rig) -> None:
    rig.play("messages", whole("messages", MEBIBYTE + MEBIBYTE // 2))
    with ThreadPoolExecutor(8) as pool:
        request = [pool.submit(post, rig.gateway.port, PATHS["chat"], body_of("chat", "messages/m")) for _ in range(8)]
        statuses = [answer.result().status for answer in request]
    assert set(statuses) <= {200, 503}
    assert 200 in statuses
    wait_until_free(rig)


@pairs
def test_a_trickled_reply_ends_in_its_time(hurried: Rig, client: str, upstream: str) -> None:
    hurried.play(upstream, trickle(200))
    began = time.monotonic()
    answer = post(hurried.gateway.port, PATHS[client], body_of(client, hurried.model(upstream)))
    assert answer.status == 504, answer.body
    assert time.monotonic() - began < TRICKLE_S / 2


@pytest.mark.parametrize("streamed", [False, True])
def test_a_trickled_error_ends_in_its_time(tmp_path: Path, streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.flow.reply_bounds.ERROR_BODY_S", 1.0)
    monkeypatch.setattr("dragoman.flow.upstream.ERROR_BODY_S", 1.0)
    settings = ONCE + "[server]\nfirst_token_timeout_s = 300\nidle_timeout_s = 300\n"
    with run_rig(tmp_path, settings) as rig:
        rig.play("messages", trickle(500))
        began = time.monotonic()
        body = body_of("chat", "messages/m")[:-1] + (b',"stream":true}' if streamed else b"}")
        assert post(rig.gateway.port, PATHS["chat"], body).status == 504
        assert time.monotonic() - began < TRICKLE_S / 2


def trickle(status: int) -> Answer:
    body = b"{" + b" " * 1_999
    return Answer(body, status, "application/json", cut=1, pause_s=TRICKLE_S / len(body), end=End.HANG)
