"""Configured kinds and protocols that this version lacks are reported and harm nothing else."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fakes.upstream import Answer, FakeUpstream
from gateway import KEY, running

HEAD = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
CHAT = {"model": "up/m", "messages": [{"role": "user", "content": "x"}]}
REPLY = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'
)


def stanza(fake: FakeUpstream, protocol: str) -> str:
    return f'[providers.up]\nkind = "openai-compatible"\nendpoint = "{fake.url}"\nprotocol = {protocol}\n'


def refusal(url: str, body: object) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), HEAD), timeout=10)
    return refused.value.code, json.loads(refused.value.read())["error"]["message"]


def test_a_provider_without_a_known_protocol_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with FakeUpstream() as fake, running(stanza(fake, '"gemini"'), tmp_path) as gateway:
        code, message = refusal(f"{gateway.url}/v1/chat/completions", CHAT)
    assert (code, message) == (404, "The model 'up/m' does not exist here. No models are known.")
    assert "provider up: protocol gemini is not in this version yet" in caplog.text
    assert fake.calls == []


def test_a_provider_is_used_with_those_protocols_that_are_known(tmp_path: Path) -> None:
    answers = [Answer(REPLY, content_type="application/json")]
    with FakeUpstream(answers) as fake, running(stanza(fake, '["gemini", "chat"]'), tmp_path) as gateway:
        request = urllib.request.Request(f"{gateway.url}/v1/chat/completions", json.dumps(CHAT).encode(), HEAD)
        with urllib.request.urlopen(request, timeout=10) as reply:
            assert reply.headers["x-dragoman-route"] == "up/m"
    assert fake.calls[-1].path == "/v1/chat/completions"


@pytest.mark.parametrize("prefix", ["/v1", "/v1beta"])
@pytest.mark.parametrize("what", ["generateContent", "streamGenerateContent?alt=sse", "countTokens"])
def test_a_gemini_client_gets_an_error_that_says_so(tmp_path: Path, prefix: str, what: str) -> None:
    with running('[providers.echo]\nkind = "echo"\n', tmp_path) as gateway:
        code, message = refusal(f"{gateway.url}{prefix}/models/echo:{what}", {"contents": []})
    assert (code, message) == (404, "Gemini's protocol is not in this version yet.")
