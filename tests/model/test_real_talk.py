"""A conversation with instructions, split texts, a call and its result reaches a server that is easily upset."""

from collections.abc import Callable

import pytest
from anthropic.types import MessageParam, TextBlockParam
from openai.types.chat import ChatCompletionMessageFunctionToolCallParam, ChatCompletionMessageParam
from openai.types.responses import ResponseInputParam

from model.sdk_requests import Sdks
from wire_json import JsonObject

CAP = 24
LOOK = {"type": "object", "properties": {"city": {"type": "string"}}}


def messages(sdks: Sdks) -> str:
    marked: TextBlockParam = {"type": "text", "text": "Look it up:", "cache_control": {"type": "ephemeral"}}
    talk: list[MessageParam] = [
        {"role": "user", "content": [marked, {"type": "text", "text": "how is the weather in Paris?"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}]},
    ]
    request: JsonObject = {
        "system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}],
        "tools": [{"name": "look", "input_schema": LOOK}],
    }
    reply = sdks.anthropic.messages.create(model="smollm2", max_tokens=CAP, messages=talk, **request)
    return "".join(block.text for block in reply.content if block.type == "text")


def responses(sdks: Sdks) -> str:
    talk: ResponseInputParam = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "The weather in Paris?"}]},
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
    ]
    request: JsonObject = {"tools": [{"type": "function", "name": "look", "parameters": None, "strict": False}]}
    return str(sdks.openai.responses.create(model="smollm2", max_output_tokens=CAP, input=talk, **request).output_text)


def chat(sdks: Sdks) -> str:
    call: ChatCompletionMessageFunctionToolCallParam = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "look", "arguments": "{}"},
    }
    talk: list[ChatCompletionMessageParam] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "The weather"}, {"type": "text", "text": "in Paris?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    request: JsonObject = {"tools": [{"type": "function", "function": {"name": "look"}}]}
    reply = sdks.openai.chat.completions.create(model="smollm2", max_completion_tokens=CAP, messages=talk, **request)
    assert reply.usage is not None
    assert reply.usage.completion_tokens <= CAP, "the newer cap is heard as well"
    return str(reply.choices[0].message.content)


@pytest.mark.parametrize("talk", [messages, responses, chat])
def test_a_conversation_with_a_call_is_understood(
    sdks: Sdks, talk: Callable[[Sdks], str], show: Callable[[object], None]
) -> None:
    answer = talk(sdks)
    show(answer)
    assert answer.strip()
