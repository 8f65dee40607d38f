"""A chat with function tools, on models whose Chat endpoint refuses them: their Responses endpoint answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from asking import PATHS, Reply
from fakes.upstream import Answer, ReceivedRequest
from gateway import provider_section
from rig import Rig, run_rig
from scripting import write_error, write_reply
from wire_json import Json

CHAT, RESPONSES = PATHS["chat"], PATHS["responses"]
TOOLS: Json = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
REFUSED = write_error(
    400,
    "Function tools with reasoning_effort are not supported for new-model in /v1/chat/completions. "
    "Please use /v1/responses instead.",
)


def answer(request: ReceivedRequest) -> Answer:
    if request.path == CHAT and b'"tools"' in request.body and b"new-model" in request.body:
        return REFUSED
    protocol = {CHAT: "chat", RESPONSES: "responses"}[request.path]
    return write_reply(protocol, "Hello", stream=bool(request.json.get("stream")))


@contextmanager
def endpoints(directory: Path, kind: str = "openai", protocol: str = "") -> Iterator[Rig]:
    """One upstream as this kind, with both endpoints unless its provider names one."""
    with run_rig(directory, upstreams=["openai"]) as rig:
        fake = rig.fakes["openai"]
        fake.choose = answer
        section = provider_section("openai", fake.url, "openai").replace('kind = "openai"', f'kind = "{kind}"')
        rig.gateway.adopt(f"{section}{protocol}\n")
        yield rig


def ask(rig: Rig, model: str, *, stream: bool = False, **more: Json) -> tuple[Reply, list[str]]:
    """Return the reply, and the paths at which the upstream was asked."""
    fake = rig.fakes["openai"]
    fake.requests.clear()
    user = {"role": "user", "content": "Hi"}
    request = {"model": f"openai/{model}", "messages": [user], "stream": stream, **more}
    reply = rig.send("POST", CHAT, request)
    return reply, [request.path for request in fake.calls]


def assert_answers(rig: Rig, model: str, paths: list[str], *, stream: bool, **more: Json) -> None:
    reply, used = ask(rig, model, stream=stream, **more)
    assert reply.status == 200, reply.body
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in reply.events if event["choices"])
    assert (text if stream else reply.json["choices"][0]["message"]["content"]) == "Hello"
    assert used == paths


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_model_with_a_known_limit_uses_the_other_endpoint_at_once(tmp_path: Path, stream: bool) -> None:
    with endpoints(tmp_path) as rig:
        assert_answers(rig, "gpt-5.4", [RESPONSES], stream=stream, tools=TOOLS)
        assert_answers(rig, "gpt-5.4", [CHAT], stream=stream)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", ["openai", "openai-compatible"])
def test_a_refused_endpoint_is_not_tried_again_for_that_model(tmp_path: Path, kind: str, stream: bool) -> None:
    both = 'protocol = ["chat", "responses"]' if kind == "openai-compatible" else ""
    with endpoints(tmp_path, kind, both) as rig:
        assert_answers(rig, "new-model", [CHAT, RESPONSES], stream=stream, tools=TOOLS)
        assert_answers(rig, "new-model", [RESPONSES], stream=stream, tools=TOOLS)
        assert_answers(rig, "new-model", [CHAT], stream=stream)
        assert_answers(rig, "other-model", [CHAT], stream=stream, tools=TOOLS)


def test_without_another_endpoint_the_rejection_is_passed_on(tmp_path: Path) -> None:
    with endpoints(tmp_path, protocol='protocol = "chat"') as rig:
        reply, used = ask(rig, "new-model", tools=TOOLS)
        assert (reply.status, used) == (400, [CHAT])
        assert "Please use /v1/responses" in reply.json["error"]["message"]
