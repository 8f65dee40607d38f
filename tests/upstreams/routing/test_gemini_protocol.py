"""A compatible server may use Gemini's protocol, for clients of any protocol."""

from pathlib import Path

import pytest

from asking import ask
from fakes.upstream import FakeUpstream
from gateway import running
from scripting import write_reply

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
    answers = [write_reply(used, "hi", stream=False)]
    with FakeUpstream(answers) as fake, running(section(fake, protocols), tmp_path) as gateway:
        reply = ask(gateway, "chat", "up/m")
        assert reply.headers["x-dragoman-route"] == "up/m"
        assert reply.json["choices"][0]["message"]["content"] == "hi"
    call = fake.calls[-1]
    assert call.path == path
    assert [name for name in KEY_HEADERS.values() if "sk-up" in call.headers.get(name, "")] == [KEY_HEADERS[used]]
