"""A name that no provider lists is an unknown model (404), even if some provider's list cannot be read."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from asking import send
from dragoman.operate.captures.replay.difference import compare_captures
from dragoman.operate.captures.replay.rerun import rerun
from dragoman.proxy.capture.files import CaptureBounds, CaptureDirectory, load_capture
from dragoman.server.handler import replay_site
from fakes.upstream import Answer, FakeUpstream
from gateway import Running, provider_section, running
from narrowing import expect
from rig import ONCE
from scripting import write_reply
from wire_json import JsonObject

TURN = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, JsonObject] = {
    "/v1/chat/completions": {"messages": TURN},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": TURN, "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": TURN},
}
SECRET_ECHO = b'{"error":{"message":"bad key sk-fake-upstream"}}'


def post(gateway: Running, path: str, model: str) -> tuple[int, JsonObject]:
    reply = send(gateway, "POST", path, {**BODIES[path], "model": model})
    return reply.status, expect(dict, reply.json)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses connections for as long as the test runs: it is bound, but not listening."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize("path", BODIES)
def test_an_unknown_model_is_404_and_names_the_provider_that_could_not_be_reached(
    tmp_path: Path, closed_port: int, path: str
) -> None:
    dead = provider_section("chat", f"http://127.0.0.1:{closed_port}/v1", "dead")
    with (
        FakeUpstream(models=("qwen3-coder",)) as fake,
        running(provider_section("chat", fake.url) + dead, tmp_path) as gateway,
    ):
        status, body = post(gateway, path, "qwen3-codr")
    assert status == 404
    assert body["error"].get("code", body["error"].get("type")) in ("model_not_found", "not_found_error")
    message = body["error"]["message"]
    assert "The model 'qwen3-codr' does not exist here." in message
    assert f"These model lists could not be read: 'dead' (cannot connect to 127.0.0.1:{closed_port}" in message
    assert "request dead/qwen3-codr" in message
    assert fake.calls == [], "a provider whose list lacks the model got a request for it"


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_a_provider_that_refuses_to_list_is_named_and_gets_no_request(tmp_path: Path, status: int) -> None:
    page = Answer(SECRET_ECHO, status=status, content_type="application/json")
    with (
        FakeUpstream(pages={"/v1/models": page}) as fake,
        running(provider_section("chat", fake.url), tmp_path) as gateway,
    ):
        answered, body = post(gateway, "/v1/chat/completions", "gpt-9")
    assert answered == 404
    assert f"These model lists could not be read: 'up' (HTTP {status})." in body["error"]["message"]
    assert "sk-fake" not in json.dumps(body)
    assert fake.calls == []


NOT_PERMITTED = b'{"error":{"message":"Missing scopes: api.model.read.","type":"invalid_request_error"}}'


@pytest.mark.parametrize(
    "page",
    [
        Answer(b"", status=404),
        Answer(b"", status=405),
        Answer(b"", status=501),
        Answer(b"<html>"),
        Answer(NOT_PERMITTED, status=403, content_type="application/json"),
    ],
    ids=["404", "405", "501", "another page", "a key that may not list"],
)
def test_a_provider_without_a_model_list_may_serve_any_name(tmp_path: Path, page: Answer) -> None:
    answers = [write_reply("chat", "hi", stream=False)]
    with (
        FakeUpstream(answers, pages={"/v1/models": page}) as fake,
        running(provider_section("chat", fake.url), tmp_path) as gateway,
    ):
        status, _ = post(gateway, "/v1/chat/completions", "gpt-9")
    assert status == 200
    assert fake.calls[-1].json["model"] == "gpt-9"


def test_an_explicit_provider_and_model_needs_no_list(tmp_path: Path, closed_port: int) -> None:
    with running(ONCE + provider_section("chat", f"http://127.0.0.1:{closed_port}/v1", "dead"), tmp_path) as gateway:
        status, body = post(gateway, "/v1/chat/completions", "dead/gpt-9")
    assert status == 502
    assert "cannot connect" in body["error"]["message"]


def test_a_captured_error_replays_the_same(tmp_path: Path, closed_port: int) -> None:
    debug = f'[debug]\ncapture = "all"\ndirectory = "{tmp_path}/captures"\n'
    dead = provider_section("chat", f"http://127.0.0.1:{closed_port}/v1", "dead")
    with running(debug + dead, tmp_path) as gateway:
        assert post(gateway, "/v1/messages", "gpt-9")[0] == 404
    [file] = CaptureDirectory(tmp_path / "captures", CaptureBounds(10, 1 << 30, 86_400.0)).files()
    capture = load_capture(file)
    assert [change for part in compare_captures(capture, rerun(capture, replay_site)) for change in part.changes] == []
