"""A model's name never leads to another path of an upstream that has the model in its URL."""

from pathlib import Path

import pytest

from rig import run_rig
from tables import each_row

NAMES = ("../x", "a/../../cachedContents", "%2e%2e/x", "a//b", "..\\x")


@pytest.mark.parametrize("client", ["chat", "gemini"])  # translated, and passed unchanged
def test_a_name_with_dots_is_refused_before_anything_is_sent(tmp_path: Path, client: str) -> None:
    settings = '[[models]]\nname = "any-*"\nto = ["gemini/*"]\n'
    with run_rig(tmp_path, settings, upstreams=("gemini",)) as rig:
        fake = rig.play("gemini", "Hello")

        @each_row("name", NAMES)
        def check(name: str) -> None:
            body: dict[str, object] = {"messages": [{"role": "user", "content": "Hi"}], "model": f"gemini/{name}"}
            path = "/v1/chat/completions"
            if client == "gemini":
                quoted = name.replace("%", "%25").replace("/", "%2F").replace("\\", "%5C")
                body, path = (
                    {"contents": [{"parts": [{"text": "Hi"}]}]},
                    f"/v1beta/models/gemini%2F{quoted}:generateContent",
                )
            reply = rig.send("POST", path, body)
            assert reply.status == 400, reply.body
            assert b"cannot be part of a URL" in reply.body
            assert fake.calls == []

        check()
        counted = rig.send(
            "POST",
            "/v1/messages/count_tokens",
            {"model": "gemini/../x", "messages": [{"role": "user", "content": "Hi"}]},
        )
        assert counted.status == 400, counted.body
        assert fake.calls == []
