"""A gateway that stops: streams in flight are finished, and others end with their protocol's error."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import anthropic
import openai
import pytest

from e2e.cases import CASES, request_for
from fakes.upstream import End, Gate
from gateway import KEY
from raw_http import get
from rig import FEW_PAIRS, ONCE, PROTOCOLS, Rig, run_rig
from scripting import write_reply
from scripting.replies import Ending, ScriptedReply, Text
from sdk_replies import Broke, Reply, ask_all, expect_for
from waiting import PATIENCE_S, wait_until

BEGUN = ScriptedReply((Text("It was a dark"),), ending=Ending.NONE)
IMPATIENT = ONCE + "[server]\ndrain_s = 1\n"
Replies = Future[list[tuple[Reply, dict[str, str]]]]


@contextmanager
def listening(rig: Rig, sent: dict[str, int]) -> Iterator[Replies]:
    """Listen with the SDKs of a few pairs, and go on once every upstream has sent so many bytes to each of them."""
    requests = [(client, request_for(client, rig.model(upstream))) for client, upstream in FEW_PAIRS]
    with ThreadPoolExecutor(1) as pool:
        replies = pool.submit(ask_all, rig.gateway.url, KEY, requests)
        for upstream, size in sent.items():
            listeners = sum(of == upstream for _, of in FEW_PAIRS)
            wait_until(lambda: rig.fakes[upstream].sent == listeners * size)  # noqa: B023
        yield replies


def test_streams_in_flight_end_well(tmp_path: Path) -> None:
    scripted = CASES["text"].scripted
    answered = threading.Event()
    with run_rig(tmp_path) as rig:
        half: dict[str, int] = {}
        for upstream in PROTOCOLS:
            half[upstream] = size = len(write_reply(upstream, scripted).body) // 2
            rig.play(upstream, write_reply(upstream, scripted, cut=size, gate=Gate(answered, at=size)))
        with listening(rig, half) as replies:
            stopping = rig.gateway.stop_soon(accept_s=PATIENCE_S)
            assert get(rig.port, "/ready").status == 503
            answered.set()
            stopping.result(timeout=PATIENCE_S)
            for (client, upstream), (reply, _) in zip(FEW_PAIRS, replies.result(PATIENCE_S), strict=True):
                assert reply == expect_for(client, upstream, scripted), (client, upstream)
        with pytest.raises(ConnectionRefusedError):
            get(rig.port, "/health")


def test_streams_that_are_stopped_get_the_reason(tmp_path: Path) -> None:
    with run_rig(tmp_path, IMPATIENT) as rig:
        answers = {upstream: write_reply(upstream, BEGUN, end=End.HANG) for upstream in PROTOCOLS}
        for upstream, answer in answers.items():
            rig.play(upstream, answer)
        with listening(rig, {upstream: len(answer.body) for upstream, answer in answers.items()}) as replies:
            rig.gateway.stop_soon().result(timeout=PATIENCE_S)
            for (client, upstream), (reply, _) in zip(FEW_PAIRS, replies.result(PATIENCE_S), strict=True):
                assert isinstance(reply, Broke), (client, upstream, reply)
                assert isinstance(reply.error, anthropic.APIStatusError if client == "messages" else openai.APIError)
                assert "shutting down" in str(reply.error), (client, upstream)
                assert reply.text == "It was a dark", (client, upstream)
        wait_until(lambda: [len(rig.fakes[upstream].closed) for upstream in PROTOCOLS] == [2, 2, 2])
        outcomes = rig.gateway.outcomes
        assert [(outcome.outcome, outcome.stream) for outcome in outcomes] == [("shutdown", True)] * len(FEW_PAIRS)
        assert all(outcome.usage is not None for outcome in outcomes)


def test_whole_replies_that_are_cut_off_are_503_recorded_as_a_shutdown(tmp_path: Path) -> None:
    with run_rig(tmp_path, IMPATIENT) as rig, ThreadPoolExecutor(len(PROTOCOLS)) as pool:
        rig.play("messages", write_reply("messages", BEGUN, stream=False, headless=True, end=End.HANG))
        replies = [pool.submit(rig.ask, client, "messages") for client in PROTOCOLS]
        wait_until(lambda: len(rig.calls("messages")) == len(PROTOCOLS))
        rig.gateway.stop_soon().result(timeout=PATIENCE_S)
        for client, reply in zip(PROTOCOLS, replies, strict=True):
            assert reply.result(PATIENCE_S).status == 503, client
            assert "shutting down" in reply.result().json["error"]["message"], client
        for outcome in rig.gateway.outcomes:
            assert (outcome.outcome, [step.why for step in outcome.failed_attempts]) == ("shutdown", ["shutdown"])
        assert len(rig.gateway.outcomes) == len(PROTOCOLS)
