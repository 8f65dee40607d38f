"""anthropic-python in every way that it can hold a conversation with tools."""

from collections.abc import Callable

import anthropic
from anthropic import beta_tool
from note import KEY, PROMPT, SCHEMA, URL, drive, model, write_note

client = anthropic.Anthropic(base_url=URL, api_key=KEY, timeout=30)
TOOL = {"name": "write_note", "description": "Writes a note.", "input_schema": SCHEMA}


def whole(mode: str) -> str:
    return _loop(mode, lambda asked: client.messages.create(**asked))


def stream(mode: str) -> str:
    def ask(asked: dict):
        with client.messages.stream(**asked) as stream:
            return stream.get_final_message()

    return _loop(mode, ask)


def _loop(mode: str, ask: Callable) -> str:
    messages: list = [{"role": "user", "content": PROMPT}]
    asked = {"model": model(mode), "max_tokens": 2048, "system": "Be brief.", "tools": [TOOL]}
    while True:
        reply = ask({**asked, "thinking": {"type": "adaptive"}, "messages": messages})
        messages.append({"role": "assistant", "content": reply.content})
        uses = [block for block in reply.content if block.type == "tool_use"]
        if not uses:
            assert reply.stop_reason == "end_turn", reply
            return "".join(block.text for block in reply.content if block.type == "text")
        assert reply.stop_reason == "tool_use", reply
        results = [
            {"type": "tool_result", "tool_use_id": use.id, "content": write_note(mode, **use.input)} for use in uses
        ]
        messages.append({"role": "user", "content": results})


def runner(mode: str) -> str:
    last = _runner(mode).until_done()
    return "".join(block.text for block in last.content if block.type == "text")


def runner_stream(mode: str) -> str:
    text = ""
    for streamed in _runner(mode, stream=True):
        message = streamed.get_final_message()
        text = "".join(block.text for block in message.content if block.type == "text")
    return text


def _runner(mode: str, **more: object):
    @beta_tool(name="write_note")
    def write(title: str, text: str) -> str:
        """Writes a note.

        Args:
            title: its title
            text: what it says
        """
        return write_note(mode, title, text)

    return client.beta.messages.tool_runner(
        model=model(mode), max_tokens=2048, tools=[write], messages=[{"role": "user", "content": PROMPT}], **more
    )


WAYS = {"messages": whole, "messages-stream": stream, "runner": runner, "runner-stream": runner_stream}

drive(WAYS, lambda way, mode: WAYS[way](mode))
