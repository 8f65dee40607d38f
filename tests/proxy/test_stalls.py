"""An upstream that stops sending in mid-stream: the client gets an error, and the upstream is closed."""

import http.client
import logging
import time
from pathlib import Path

import pytest

from dragoman.proxy import pump, turn
from dragoman.proxy.step import Completed
from fakes.upstream import Answer, End, FakeUpstream
from gateway import KEY, Running, provider_section, running
from proxy.rigs import STREAM, Scene, play

STARTED = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_01","type":"message","role":"assistant",'
    b'"model":"m","content":[],"stop_reason":null,"usage":{"input_tokens":1,"output_tokens":1}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text",'
    b'"text":""}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta",'
    b'"text":"Half a"}}\n\n'
)
BODY = b'{"model":"up/m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"Go on."}]}'
IMPATIENT = "[server]\nidle_timeout_s = 1.0\n[retry]\nattempts = 1\n"


def ask(gateway: Running) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20)
    connection.request("POST", "/v1/messages", BODY, {"x-api-key": KEY, "content-type": "application/json"})
    body = connection.getresponse().read()
    connection.close()
    return body


def test_a_stalled_upstream_is_reported_and_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with FakeUpstream([Answer(STARTED, end=End.HANG)]) as fake:
        with (
            caplog.at_level(logging.ERROR),
            running(IMPATIENT + provider_section("messages", fake.url), tmp_path) as gateway,
        ):
            body = ask(gateway)
            until = time.monotonic() + 20
            while not fake.closed and time.monotonic() < until:
                time.sleep(0.01)
            assert fake.closed
        assert body.startswith(STARTED)
        assert body[len(STARTED) :].startswith(b"event: error\n")
    assert caplog.messages == []


def test_a_gateway_that_stops_while_an_upstream_lingers_sends_nothing_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = (
        STARTED + b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},'
        b'"usage":{"output_tokens":2}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
    )
    with FakeUpstream([Answer(whole, end=End.HANG)]) as fake, caplog.at_level(logging.ERROR):
        with running(IMPATIENT + provider_section("messages", fake.url), tmp_path) as gateway:
            assert ask(gateway) == whole
        assert caplog.messages == []


def test_a_translated_reply_that_came_at_once_ends_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "LINGER_S", 20.0)  # the client would wait so long for its end
    monkeypatch.setattr(turn, "LINGER_S", 0.05)
    began = time.monotonic()
    assert play(Scene("messages"), Answer(STREAM, end=End.HANG)).end == Completed()
    assert time.monotonic() - began < 10
