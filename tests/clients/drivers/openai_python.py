"""openai-python in every way that it can hold a conversation with tools."""

from collections.abc import Callable
from typing import Any

import openai
import pydantic
from note import KEY, PROMPT, SCHEMA, URL, Json, drive, model, write_note
from openai.types.chat import ChatCompletionMessageToolCallUnion
from openai.types.responses import Response

client = openai.OpenAI(base_url=URL + "/v1", api_key=KEY, timeout=30)


class WriteNote(pydantic.BaseModel):
    """Writes a note."""

    model_config = pydantic.ConfigDict(title="write_note")
    title: str
    text: str


FUNCTION: Json = {"name": "write_note", "description": "Writes a note.", "parameters": SCHEMA}


def chat(mode: str) -> str:
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
    tools: list[Any] = [{"type": "function", "function": FUNCTION}]
    while True:
        message = client.chat.completions.create(model=model(mode), messages=messages, tools=tools).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content or ""
        messages += [_chat_result(mode, call) for call in message.tool_calls]


def chat_stream(mode: str) -> str:
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    tools: list[Any] = [openai.pydantic_function_tool(WriteNote, name="write_note")]
    while True:
        with client.chat.completions.stream(model=model(mode), messages=messages, tools=tools) as stream:
            message = stream.get_final_completion().choices[0].message
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed": True}))
        if not message.tool_calls:
            return message.content or ""
        messages += [_chat_result(mode, call) for call in message.tool_calls]


def _chat_result(mode: str, call: ChatCompletionMessageToolCallUnion) -> Json:
    assert call.type == "function"
    given = pydantic.TypeAdapter(dict[str, str]).validate_json(call.function.arguments)
    return {"role": "tool", "tool_call_id": call.id, "content": write_note(mode, **given)}


def responses(mode: str) -> str:
    return _responses(mode, lambda request: client.responses.create(**request))


def responses_stream(mode: str) -> str:
    def ask(request: Json) -> Response:
        with client.responses.stream(**request) as stream:
            return stream.get_final_response()

    return _responses(mode, ask)


def _responses(mode: str, ask: Callable[[Json], Response]) -> str:
    items: list[Json] = [{"role": "user", "content": PROMPT}]
    request: Json = {
        "model": model(mode),
        "instructions": "Be brief.",
        "tools": [{"type": "function", "strict": True, **FUNCTION}],
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"},
    }
    while True:
        reply = ask({**request, "input": items})
        items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in reply.output]
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            return reply.output_text
        for call in calls:
            given = pydantic.TypeAdapter(dict[str, str]).validate_json(call.arguments)
            output = write_note(mode, **given)
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})


WAYS = {"chat": chat, "chat-stream": chat_stream, "responses": responses, "responses-stream": responses_stream}

drive(WAYS, lambda way, mode: WAYS[way](mode))
