"""A compatible server may use Gemini's protocol, for clients of any protocol."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fakes.upstream import Answer, FakeUpstream
from gateway import KEY, running

HEAD = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
CHAT = {"model": "up/m", "messages": [{"role": "user", "content": "x"}]}
CHAT_REPLY = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'
)
GEMINI_REPLY = b'{"candidates":[{"content":{"role":"model","parts":[{"text":"hi"}]},"finishReason":"STOP"}]}'
REPLIES = {"gemini": GEMINI_REPLY, "chat": CHAT_REPLY}
KEY_HEADERS = {"gemini": "x-goog-api-key", "chat": "authorization"}


def section(fake: FakeUpstream, protocol: str) -> str:
    head = f'[providers.up]\nkind = "openai-compatible"\nendpoint = "{fake.url}"\napi_key = "sk-up"\n'
    return f"{head}protocol = {protocol}\n"


@pytest.mark.parametrize(
    ("protocols", "used", "path"),
    [
        ('"gemini"', "gemini", "/v1/models/m:generateContent"),
        ('["gemini", "chat"]', "chat", "/v1/chat/completions"),  # the client's own is preferred
    ],
)
def test_a_compatible_server_is_used_with_the_protocols_of_its_section(
    tmp_path: Path, protocols: str, used: str, path: str
) -> None:
    answers = [Answer(REPLIES[used], content_type="application/json")]
    with FakeUpstream(answers) as fake, running(section(fake, protocols), tmp_path) as gateway:
        request = urllib.request.Request(f"{gateway.url}/v1/chat/completions", json.dumps(CHAT).encode(), HEAD)
        with urllib.request.urlopen(request, timeout=10) as reply:
            assert reply.headers["x-dragoman-route"] == "up/m"
            assert json.loads(reply.read())["choices"][0]["message"]["content"] == "hi"
    call = fake.calls[-1]
    assert call.path == path
    assert [name for name in KEY_HEADERS.values() if "sk-up" in call.headers.get(name, "")] == [KEY_HEADERS[used]]
