"""anthropic-python in every way that it can hold a conversation with tools."""

from collections.abc import Callable

import anthropic
from anthropic import beta_tool
from anthropic.types import Message
from note import KEY, PROMPT, SCHEMA, URL, Json, drive, model, write_note

client = anthropic.Anthropic(base_url=URL, api_key=KEY, timeout=30)
TOOL: Json = {"name": "write_note", "description": "Writes a note.", "input_schema": SCHEMA}


def whole(mode: str) -> str:
    return _loop(mode, lambda request: client.messages.create(**request))


def stream(mode: str) -> str:
    def ask(request: Json) -> Message:
        with client.messages.stream(**request) as stream:
            return stream.get_final_message()

    return _loop(mode, ask)


def _loop(mode: str, ask: Callable[[Json], Message]) -> str:
    messages: list[Json] = [{"role": "user", "content": PROMPT}]
    request: Json = {"model": model(mode), "max_tokens": 2048, "system": "Be brief.", "tools": [TOOL]}
    while True:
        reply = ask({**request, "thinking": {"type": "adaptive"}, "messages": messages})
        messages.append({"role": "assistant", "content": reply.content})
        uses = [block for block in reply.content if block.type == "tool_use"]
        if not uses:
            assert reply.stop_reason == "end_turn", reply
            return "".join(block.text for block in reply.content if block.type == "text")
        assert reply.stop_reason == "tool_use", reply
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": _write(mode, use.input)} for use in uses]
        messages.append({"role": "user", "content": results})


def _write(mode: str, given: Json) -> str:
    return write_note(mode, **given)


def runner(mode: str) -> str:
    last = client.beta.messages.tool_runner(**_make_request(mode)).until_done()
    return "".join(block.text for block in last.content if block.type == "text")


def runner_stream(mode: str) -> str:
    text = ""
    for streamed in client.beta.messages.tool_runner(**_make_request(mode), stream=True):
        message = streamed.get_final_message()
        text = "".join(block.text for block in message.content if block.type == "text")
    return text


def _make_request(mode: str) -> Json:
    @beta_tool(name="write_note")
    def write(title: str, text: str) -> str:
        """Writes a note.

        Args:
            title: its title
            text: its text
        """
        return write_note(mode, title, text)

    question = {"role": "user", "content": PROMPT}
    return {"model": model(mode), "max_tokens": 2048, "tools": [write], "messages": [question]}


WAYS = {"messages": whole, "messages-stream": stream, "runner": runner, "runner-stream": runner_stream}

drive(WAYS, lambda way, mode: WAYS[way](mode))
