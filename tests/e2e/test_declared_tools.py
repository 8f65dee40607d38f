"""Tools come back as they were declared: a custom tool that an upstream calls as a function is a custom call again."""

import json

import pytest

from fakes.service import json_answer
from rig import Rig
from scripting.replies import Text, ToolCall

PATCH = '*** Begin Patch\n+é "x" \\ 🙂\n'
FUNCTION = ToolCall("call_p", "apply_patch", json.dumps({"input": PATCH}))
RESPONSES_TOOL = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
CHAT_TOOL = {"type": "custom", "custom": {"name": "apply_patch", "description": "Edits files."}}
CHAT_FUNCTION = {"type": "function", "function": {"name": "apply_patch", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("upstream", ["chat", "messages"])
def test_a_responses_client_gets_its_custom_call_whole_and_streamed(rig: Rig, upstream: str) -> None:
    rig.play(upstream, [Text("So."), FUNCTION], stream=False)
    last = rig.ask("responses", upstream, tools=[RESPONSES_TOOL]).json["output"][-1]
    assert (last["type"], last["input"]) == ("custom_tool_call", PATCH)
    rig.play(upstream, [Text("So."), FUNCTION])
    events = rig.ask("responses", upstream, stream=True, tools=[RESPONSES_TOOL]).events
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == PATCH
    assert len(deltas) > 1
    assert not any("function_call" in event["type"] for event in events)


def test_a_chat_client_gets_its_custom_call_from_a_responses_upstream_that_calls_a_function(rig: Rig) -> None:
    rig.play("responses", [FUNCTION], stream=False)
    [call] = rig.ask("chat", "responses", tools=[CHAT_TOOL]).json["choices"][0]["message"]["tool_calls"]
    assert (call["type"], call["custom"]) == ("custom", {"name": "apply_patch", "input": PATCH})
    rig.play("responses", [FUNCTION])
    stream = rig.ask("chat", "responses", stream=True, tools=[CHAT_TOOL]).body
    assert b'"function"' not in stream
    assert b'"type":"custom"' in stream


def test_a_function_that_an_upstream_calls_as_a_custom_tool_is_a_function_call(rig: Rig) -> None:
    item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "apply_patch", "input": '{"a":1}'}
    rig.play("responses", json_answer({"id": "resp_1", "status": "completed", "output": [item]}))
    [call] = rig.ask("chat", "responses", tools=[CHAT_FUNCTION]).json["choices"][0]["message"]["tool_calls"]
    assert (call["type"], call["function"]) == ("function", {"name": "apply_patch", "arguments": '{"a":1}'})
