"""All bodies together have one budget, and every body of an upstream has its time."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from asking import Reply, make_body
from fakes.upstream import Answer, End
from raw_http import dial, read_answer, request_bytes
from rig import FEW_PAIRS, ONCE, PATHS, PROTOCOLS, Rig, run_rig
from scripting import write_reply
from waiting import wait_until

MEBIBYTE = 1 << 20
SMALL = ONCE + "[server]\nmax_buffered_mb = 2\n"
HURRIED = ONCE + "[server]\nfirst_token_timeout_s = 0.5\ntoken_timeout_s = 0.5\nidle_timeout_s = 0.5\n"
TRICKLE_S = 200.0  # what a trickled body takes: longer than any client waits
BUSY = {"chat": 503, "responses": 503, "messages": 529}

clients = pytest.mark.parametrize("client", PROTOCOLS)
pairs = pytest.mark.parametrize(("client", "upstream"), FEW_PAIRS)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("gateway"), SMALL) as shared:
        yield shared


def whole(upstream: str, size: int = 0) -> Answer:
    """A good reply, as long as JSON's white space makes it."""
    answer = write_reply(upstream, "The reply.", stream=False)
    return replace(answer, body=answer.body[:1] + b" " * size + answer.body[1:])


def count_held(rig: Rig) -> int:
    return rig.gateway.app.server._service.budget.held


def wait_until_free(rig: Rig) -> None:
    wait_until(lambda: count_held(rig) == 0)


def assert_busy(client: str, answer: Reply) -> None:
    assert answer.status == BUSY[client], answer.body[:300]
    assert answer.headers["retry-after"] == "1"
    assert "x-should-retry" not in answer.headers
    assert "server.max_buffered_mb" in answer.json["error"]["message"]


@clients
def test_a_request_above_the_memory_limit_gets_a_retry_time(rig: Rig, client: str) -> None:
    rig.play("chat", whole("chat"))
    assert_busy(client, rig.ask(client, "chat", "x" * 3 * MEBIBYTE))
    assert rig.fakes["chat"].calls == []
    wait_until_free(rig)
    assert rig.ask(client, "chat", "x" * MEBIBYTE).status == 200
    wait_until_free(rig)


@pairs
def test_a_reply_above_the_memory_limit_gets_a_retry_time_after_one_attempt(
    rig: Rig, client: str, upstream: str
) -> None:
    fake = rig.play(upstream, whole(upstream, 3 * MEBIBYTE))
    assert_busy(client, rig.ask(client, upstream))
    assert len(fake.calls) == 1
    wait_until_free(rig)
    rig.play(upstream, whole(upstream, MEBIBYTE))
    assert rig.ask(client, upstream).status == 200
    wait_until_free(rig)


def test_uploads_share_the_budget(rig: Rig) -> None:
    """One upload holds most of it; the next is refused at once, and passes when the first has ended."""
    rig.play("chat", whole("chat"))
    body = msgspec.json.encode(make_body("chat", "chat/m", "x" * (MEBIBYTE + MEBIBYTE // 2)))
    data = request_bytes(PATHS["chat"], body)
    with dial(rig.gateway.port) as sock:
        sock.sendall(data[:-1])
        wait_until(lambda: count_held(rig) >= MEBIBYTE)
        assert_busy("chat", rig.ask("chat", "chat", "x" * MEBIBYTE))
        sock.sendall(data[-1:])
        assert read_answer(sock).status == 200
    wait_until_free(rig)


def test_many_large_replies_at_once_stay_within_the_budget(rig: Rig) -> None:
    rig.play("messages", whole("messages", MEBIBYTE + MEBIBYTE // 2))
    with ThreadPoolExecutor(8) as pool:
        statuses = [reply.status for reply in pool.map(lambda _: rig.ask("chat", "messages"), range(8))]
    assert set(statuses) <= {200, 503}
    assert 200 in statuses
    wait_until_free(rig)


def test_trickled_replies_end_in_their_time(tmp_path: Path) -> None:
    with run_rig(tmp_path, HURRIED) as rig, ThreadPoolExecutor(len(FEW_PAIRS)) as pool:
        for upstream in PROTOCOLS:
            rig.play(upstream, trickle(200))
        replies = pool.map(lambda pair: rig.ask(*pair), FEW_PAIRS)
        for pair, reply in zip(FEW_PAIRS, replies, strict=True):
            assert reply.status == 504, (pair, reply.body)


def test_a_trickled_error_ends_in_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.proxy.reply_bounds.ERROR_BODY_S", 0.5)
    monkeypatch.setattr("dragoman.proxy.upstream.ERROR_BODY_S", 0.5)
    with run_rig(tmp_path) as rig, ThreadPoolExecutor(2) as pool:
        rig.play("messages", trickle(500))
        replies = pool.map(lambda stream: rig.ask("chat", "messages", stream=stream), (False, True))
        assert [reply.status for reply in replies] == [504, 504]


def trickle(status: int) -> Answer:
    body = b"{" + b" " * 1_999
    return Answer(body, status, "application/json", cut=1, pause_s=TRICKLE_S / len(body), end=End.HANG)
