"""A chat with function tools, on models whose Chat endpoint refuses them: their Responses endpoint answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import KEY, running
from scripting import encode_chat, encode_responses, write_error
from scripting.replies import ScriptedReply, Text
from sdk_replies import Sdk
from wire_json import Json

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
TOOLS: Json = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
MESSAGES: Json = [{"role": "user", "content": "Hi"}]
REFUSED = write_error(
    400,
    "Function tools with reasoning_effort are not supported for new-model in /v1/chat/completions. "
    "Please use /v1/responses instead.",
)


@dataclass
class Endpoints:
    upstream: FakeUpstream
    sdk: Sdk

    def take_used(self) -> list[str]:
        paths = [request.path for request in self.upstream.calls]
        self.upstream.requests.clear()
        return paths


def answer(request: ReceivedRequest) -> Answer:
    if request.path == CHAT and b'"tools"' in request.body and b"new-model" in request.body:
        return REFUSED
    encoder, scripted = {CHAT: encode_chat, RESPONSES: encode_responses}[request.path], ScriptedReply((Text("Hello"),))
    if request.json.get("stream"):
        return Answer(encoder.encode_stream(scripted))
    return Answer(encoder.encode_whole(scripted), content_type="application/json")


@contextmanager
def endpoints(directory: Path, kind: str) -> Iterator[Endpoints]:
    with FakeUpstream(choose=answer) as upstream:
        toml = f'[providers.up]\nkind = "{kind}"\nendpoint = "{upstream.url}"\napi_key = "sk-fake-1"\n'
        if kind == "openai-compatible":
            toml += 'protocol = ["chat", "responses"]\n'
        with running(toml, directory) as gateway:
            gateway.settle()
            sdk = Sdk(gateway.url, KEY)
            try:
                yield Endpoints(upstream, sdk)
            finally:
                sdk.close()


def ask_for_text(rig: Endpoints, model: str, stream: bool, **more: Json) -> str:
    reply: Json = rig.sdk.openai.chat.completions.create(model=model, messages=MESSAGES, stream=stream, **more)
    if not stream:
        return str(reply.choices[0].message.content)
    return "".join(chunk.choices[0].delta.content or "" for chunk in reply if chunk.choices)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_model_with_a_known_limit_uses_the_other_endpoint_at_once(tmp_path: Path, stream: bool) -> None:
    with endpoints(tmp_path, "openai") as rig:
        assert ask_for_text(rig, "up/gpt-5.4", stream, tools=TOOLS) == "Hello"
        assert rig.take_used() == [RESPONSES]
        assert ask_for_text(rig, "up/gpt-5.4", stream) == "Hello"
        assert rig.take_used() == [CHAT]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", ["openai", "openai-compatible"])
def test_a_refused_endpoint_is_not_tried_again_for_that_model(tmp_path: Path, kind: str, stream: bool) -> None:
    with endpoints(tmp_path, kind) as rig:
        assert ask_for_text(rig, "up/new-model", stream, tools=TOOLS) == "Hello"
        assert rig.take_used() == [CHAT, RESPONSES]
        assert ask_for_text(rig, "up/new-model", stream, tools=TOOLS) == "Hello"
        assert rig.take_used() == [RESPONSES]
        assert ask_for_text(rig, "up/new-model", stream) == "Hello", "without tools, as before"
        assert ask_for_text(rig, "up/other-model", stream, tools=TOOLS) == "Hello", "another model, as before"
        assert rig.take_used() == [CHAT, CHAT]


def test_without_another_endpoint_the_rejection_is_passed_on(tmp_path: Path) -> None:
    with FakeUpstream(choose=answer) as upstream:
        toml = (
            f'[providers.up]\nkind = "openai"\nprotocol = "chat"\nendpoint = "{upstream.url}"\napi_key = "sk-fake-1"\n'
        )
        with running(toml, tmp_path) as gateway:
            sdk = Sdk(gateway.url, KEY)
            try:
                with pytest.raises(openai.BadRequestError, match="Please use /v1/responses"):
                    sdk.openai.chat.completions.create(model="up/new-model", messages=MESSAGES, tools=TOOLS)
            finally:
                sdk.close()
        assert len(upstream.calls) == 1
