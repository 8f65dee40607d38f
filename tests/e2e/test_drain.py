"""A gateway that stops: streams in flight are finished, and others end with their protocol's error."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import anthropic
import msgspec
import openai
import pytest

from e2e.cases import CASES, request_for
from fakes.upstream import Answer, End, Gate
from raw_http import dial, get, read_answer, request_bytes
from rig import ENCODERS, FEW_PAIRS, ONCE, PATHS, PROTOCOLS, Rig, run_rig
from scripting.replies import Ending, ScriptedReply, Text
from sdk_replies import STREAMS, Broke, Halted, SdkReply, expect_for

few_pairs = pytest.mark.parametrize(("client", "upstream"), FEW_PAIRS)
PATIENCE_S = 60.0
BEGUN = ScriptedReply((Text("It was a dark"),), ending=Ending.NONE)


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Rig]:
    with run_rig(tmp_path, ONCE + "[server]\ndrain_s = 2\n") as shared:
        yield shared


class Listener(threading.Thread):
    """An SDK that listens to a stream while the gateway is stopped."""

    def __init__(self, rig: Rig, client: str, upstream: str) -> None:
        super().__init__(daemon=True)
        self._rig, self._client, self._upstream = rig, client, upstream
        self.reply: SdkReply | Broke | Halted | None = None

    def run(self) -> None:
        self.reply = STREAMS[self._client][0](self._rig.sdk, request_for(self._client, self._rig.model(self._upstream)))

    def begin(self) -> None:
        """Returns once the upstream has begun to encoder."""
        fake = self._rig.fakes[self._upstream]
        fake.sent = 0
        self.start()
        until = time.monotonic() + PATIENCE_S
        while not fake.sent:
            assert time.monotonic() < until
            time.sleep(0.005)

    def end(self) -> SdkReply | Broke | Halted | None:
        self.join(PATIENCE_S)
        assert not self.is_alive()
        return self.reply


@few_pairs
def test_a_stream_in_flight_ends_well(tmp_path: Path, client: str, upstream: str) -> None:
    scripted = CASES["text"].scripted
    body = ENCODERS[upstream].encode_stream(scripted)
    with run_rig(tmp_path) as rig:
        answered = threading.Event()
        rig.play(upstream, Answer(body, cut=len(body) // 4, pause_s=0.02, gate=Gate(answered, at=len(body) - 1)))
        listener = Listener(rig, client, upstream)
        listener.begin()
        stopping = rig.gateway.stop_soon(accept_s=PATIENCE_S)
        assert get(rig.gateway.port, "/ready").status == 503
        answered.set()
        stopping.result(timeout=PATIENCE_S)
        assert listener.end() == expect_for(client, upstream, scripted)
        with pytest.raises(ConnectionRefusedError):
            get(rig.gateway.port, "/health")


@few_pairs
def test_a_stream_that_is_stopped_gets_the_reason(impatient: Rig, client: str, upstream: str) -> None:
    fake = impatient.play(upstream, Answer(ENCODERS[upstream].encode_stream(BEGUN), end=End.HANG))
    listener = Listener(impatient, client, upstream)
    listener.begin()
    impatient.gateway.stop_soon().result(timeout=PATIENCE_S)
    reply = listener.end()
    assert isinstance(reply, Broke), reply
    assert isinstance(reply.error, anthropic.APIStatusError if client == "messages" else openai.APIError)
    assert "shutting down" in str(reply.error)
    assert reply.text == "It was a dark"
    soon = time.monotonic() + PATIENCE_S
    while not fake.closed and time.monotonic() < soon:
        time.sleep(0.01)
    assert len(fake.closed) == 1
    [outcome] = impatient.gateway.outcomes
    assert (outcome.outcome, outcome.stream) == ("shutdown", True)
    assert outcome.usage is not None


@pytest.mark.parametrize("client", PROTOCOLS)
def test_a_whole_reply_that_is_cut_off_is_a_503_recorded_as_a_shutdown(impatient: Rig, client: str) -> None:
    fake = impatient.play("messages", Answer(b"", end=End.HANG))
    body = msgspec.json.encode(request_for(client, impatient.model("messages")) | {"stream": False})
    with dial(impatient.gateway.port) as sock:
        sock.sendall(request_bytes(PATHS[client], body))
        until = time.monotonic() + PATIENCE_S
        while not fake.calls and time.monotonic() < until:
            time.sleep(0.005)
        impatient.gateway.stop_soon().result(timeout=PATIENCE_S)
        answer = read_answer(sock)
    assert answer.status == 503
    assert "shutting down" in msgspec.json.decode(answer.body)["error"]["message"]
    [outcome] = impatient.gateway.outcomes
    assert (outcome.outcome, [step.why for step in outcome.failed_attempts]) == ("shutdown", ["shutdown"])
