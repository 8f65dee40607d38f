"""Tool calls that a Messages client cannot read are errors in either mode, never a call with a broken input."""

import json

import pytest

from fakes.upstream import Answer
from grammar_messages import fold_broken
from rig import Rig
from scripting import JSON
from surface.reading import read_reply
from surface.vendor_events import CHAT_END, chat, chunk, response, sse

BROKEN = '{"a": oops}'


def chat_call(arguments: str, finish: str) -> Answer:
    opened = {"index": 0, "id": "t0", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return Answer(sse(chunk({"role": "assistant", "content": "Let me."}), chunk({"tool_calls": [opened]}),
                      chunk({}, finish), *CHAT_END))  # fmt: skip


def responses_call(arguments: str) -> Answer:
    item = {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "weather", "arguments": arguments}
    return Answer(
        sse(
            {"type": "response.created", "response": response(status="in_progress")},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": response(item)},
        )
    )


@pytest.mark.parametrize("upstream", ["chat", "responses"])
def test_broken_arguments_are_an_error_event(gate: Rig, upstream: str) -> None:
    answer = chat_call(BROKEN, "tool_calls") if upstream == "chat" else responses_call(BROKEN)
    gate.play(upstream, answer)
    received = gate.ask("messages", upstream, stream=True)
    assert received.status == 200
    _, error = fold_broken(received.body)
    assert error["type"] == "api_error"
    assert "'weather'" in error["message"]


def test_broken_arguments_in_a_whole_reply_are_a_502(gate: Rig) -> None:
    call = {"id": "t0", "type": "function", "function": {"name": "weather", "arguments": BROKEN}}
    body = json.dumps(chat({"tool_calls": [call]}, "tool_calls")).encode()
    gate.play("chat", Answer(body, content_type=JSON))
    assert gate.ask("messages", "chat").status == 502


def test_arguments_cut_at_the_limit_are_passed_on(gate: Rig) -> None:
    received = read_reply(gate, "messages", "chat", chat_call('{"a": "unfin', "length"))
    assert received["stop"] == "max_tokens"
    assert received["content"][1]["input"] == '{"a": "unfin'


@pytest.mark.parametrize("arguments", ["", " ", "{}", '{"a":1}'])
def test_whole_arguments_are_read(gate: Rig, arguments: str) -> None:
    received = read_reply(gate, "messages", "chat", chat_call(arguments, "tool_calls"))
    assert received["stop"] == "tool_use"
    assert received["content"][1]["input"] == json.loads(arguments.strip() or "{}")


@pytest.mark.parametrize(("arguments", "sent"), [(BROKEN, BROKEN), (" ", "{}"), ("", "{}")])
def test_a_responses_client_gets_the_arguments_as_text(gate: Rig, arguments: str, sent: str) -> None:
    received = read_reply(gate, "responses", "chat", chat_call(arguments, "tool_calls"))
    assert received["output"][-1]["arguments"] == sent
