"""Tools come back as they were declared: a custom tool that an upstream calls as a function is a custom call again."""

import json
from collections.abc import Iterator

import msgspec
import pytest

from fakes.upstream import Answer
from raw_http import post
from rig import ENCODERS, ONCE, PATHS, Rig, run_rig
from scripting.replies import ScriptedReply, Stop, Text, ToolCall

PATCH = '*** Begin Patch\n+é "x" \\ 🙂\n'
FUNCTION = ToolCall("call_p", "apply_patch", json.dumps({"input": PATCH}))
RESPONSES_TOOL = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
CHAT_TOOL = {"type": "custom", "custom": {"name": "apply_patch", "description": "Edits files."}}
CHAT_FUNCTION = {"type": "function", "function": {"name": "apply_patch", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("gateway"), ONCE) as shared:
        yield shared


def ask(rig: Rig, client: str, upstream: str, tool: object, *, stream: bool) -> bytes:
    fields: dict[str, object] = {"model": rig.model(upstream), "stream": stream, "tools": [tool]}
    if client == "responses":
        fields["input"] = "Hi"
    else:
        fields["messages"] = [{"role": "user", "content": "Hi"}]
    answered = post(rig.gateway.port, PATHS[client], msgspec.json.encode(fields))
    assert answered.status == 200, answered
    return answered.body


def events_of(stream: bytes) -> list[dict[str, object]]:
    lines = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: {")]
    return [msgspec.json.decode(line, type=dict[str, object]) for line in lines]


@pytest.mark.parametrize("upstream", ["chat", "messages"])
def test_a_responses_client_gets_its_custom_call_whole_and_streamed(rig: Rig, upstream: str) -> None:
    scripted = ScriptedReply((Text("So."), FUNCTION), Stop.TOOL)
    rig.play(upstream, Answer(ENCODERS[upstream].encode_whole(scripted), content_type="application/json"))
    output = msgspec.json.decode(ask(rig, "responses", upstream, RESPONSES_TOOL, stream=False))["output"]
    assert (output[-1]["type"], output[-1]["input"]) == ("custom_tool_call", PATCH)
    rig.play(upstream, Answer(ENCODERS[upstream].encode_stream(scripted)))
    events = events_of(ask(rig, "responses", upstream, RESPONSES_TOOL, stream=True))
    deltas = [str(event["delta"]) for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == PATCH
    assert len(deltas) > 1
    assert not any("function_call" in str(event["type"]) for event in events)


def test_a_chat_client_gets_its_custom_call_from_a_responses_upstream_that_calls_a_function(rig: Rig) -> None:
    scripted = ScriptedReply((FUNCTION,), Stop.TOOL)
    rig.play("responses", Answer(ENCODERS["responses"].encode_whole(scripted), content_type="application/json"))
    response = msgspec.json.decode(ask(rig, "chat", "responses", CHAT_TOOL, stream=False))
    [call] = response["choices"][0]["message"]["tool_calls"]
    assert (call["type"], call["custom"]) == ("custom", {"name": "apply_patch", "input": PATCH})
    rig.play("responses", Answer(ENCODERS["responses"].encode_stream(scripted)))
    stream = ask(rig, "chat", "responses", CHAT_TOOL, stream=True)
    assert b'"function"' not in stream
    assert b'"type":"custom"' in stream


def test_a_function_that_an_upstream_calls_as_a_custom_tool_is_a_function_call(rig: Rig) -> None:
    item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "apply_patch", "input": '{"a":1}'}
    body = {"id": "resp_1", "status": "completed", "output": [item]}
    rig.play("responses", Answer(msgspec.json.encode(body), content_type="application/json"))
    response = msgspec.json.decode(ask(rig, "chat", "responses", CHAT_FUNCTION, stream=False))
    [call] = response["choices"][0]["message"]["tool_calls"]
    assert (call["type"], call["function"]) == ("function", {"name": "apply_patch", "arguments": '{"a":1}'})
