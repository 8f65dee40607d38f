"""Send a request in any protocol through the official SDK, and return the reply that the SDK has read."""

from collections.abc import Callable
from dataclasses import dataclass

import anthropic
import msgspec
import openai
from openai.types.chat import ChatCompletionStreamOptionsParam
from openai.types.responses import Response

from wire_json import JsonObject

Each = Callable[[], None]


@dataclass(frozen=True)
class Question:
    prompt: str
    cap: int = 200
    tool: str = ""  # must be called
    schema: JsonObject | None = None  # of the tool's arguments, or else of the reply
    model: str = "smollm2"


@dataclass(frozen=True)
class SdkReply:
    text: str
    calls: tuple[tuple[str, str], ...]  # name, arguments
    stop: str
    input: int
    output: int


class Broken(Exception):
    """The reply ended in the protocol's own error, or without its terminal event."""


@dataclass(frozen=True)
class Sdks:
    anthropic: anthropic.Anthropic
    openai: openai.OpenAI

    @classmethod
    def at(cls, url: str, key: str) -> "Sdks":
        common: JsonObject = {"api_key": key, "max_retries": 0, "timeout": 180}
        return cls(anthropic.Anthropic(base_url=url, **common), openai.OpenAI(base_url=f"{url}/v1", **common))


def messages(sdks: Sdks, question: Question, each: Each | None) -> SdkReply:
    """`each` is called with every piece of a stream; without it the whole reply is requested."""
    request: JsonObject = {
        "model": question.model,
        "max_tokens": question.cap,
        "messages": [{"role": "user", "content": question.prompt}],
        "extra_body": {"temperature": 0},
    }
    if question.tool:
        request["tools"] = [{"name": question.tool, "input_schema": question.schema}]
        request["tool_choice"] = {"type": "any"}
    elif question.schema:
        request["output_config"] = {"format": {"type": "json_schema", "schema": question.schema}}
    if each is None:
        reply = sdks.anthropic.messages.create(**request)
    else:
        with sdks.anthropic.messages.stream(**request) as stream:
            for event in stream:
                if event.type == "content_block_delta":
                    each()
            reply = stream.get_final_message()
    if reply.stop_reason is None:
        raise Broken("no message_stop")
    text = "".join(block.text for block in reply.content if block.type == "text")
    used = [block for block in reply.content if block.type == "tool_use"]
    calls = tuple((block.name, msgspec.json.encode(block.input).decode()) for block in used)
    return SdkReply(text, calls, reply.stop_reason, reply.usage.input_tokens, reply.usage.output_tokens)


def responses(sdks: Sdks, question: Question, each: Each | None) -> SdkReply:
    request: JsonObject = {
        "model": question.model,
        "max_output_tokens": question.cap,
        "input": question.prompt,
        "temperature": 0,
    }
    if question.tool:
        request["tools"] = [{"type": "function", "name": question.tool, "parameters": question.schema, "strict": False}]
        request["tool_choice"] = {"type": "function", "name": question.tool}
    elif question.schema:
        request["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": question.schema}}
    reply: Response | None = None
    if each is None:
        reply = sdks.openai.responses.create(**request)
    else:
        for event in sdks.openai.responses.create(**request, stream=True):
            if event.type.endswith(".delta"):
                each()
            elif event.type in ("response.failed", "error"):
                raise Broken(str(event))
            elif event.type in ("response.completed", "response.incomplete"):
                reply = event.response
    if reply is None:
        raise Broken("no terminal event")
    assert reply.usage is not None
    calls = tuple((item.name, item.arguments) for item in reply.output if item.type == "function_call")
    stop = reply.incomplete_details.reason if reply.incomplete_details else reply.status
    return SdkReply(reply.output_text, calls, stop or "", reply.usage.input_tokens, reply.usage.output_tokens)


def chat(sdks: Sdks, question: Question, each: Each | None) -> SdkReply:
    request: JsonObject = {"model": question.model, "max_tokens": question.cap, "temperature": 0}
    request["messages"] = [{"role": "user", "content": question.prompt}]
    if question.tool:
        request["tools"] = [{"type": "function", "function": {"name": question.tool, "parameters": question.schema}}]
        request["tool_choice"] = {"type": "function", "function": {"name": question.tool}}
    elif question.schema:
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": question.schema}}
        request["response_format"] = form
    if each is not None:
        return _chunks(sdks, request, each)
    reply = sdks.openai.chat.completions.create(**request)
    choice = reply.choices[0]
    functions = [call.function for call in choice.message.tool_calls or () if call.type == "function"]
    calls = tuple((function.name, function.arguments) for function in functions)
    usage = reply.usage
    assert usage is not None
    text = choice.message.content or ""
    return SdkReply(text, calls, choice.finish_reason, usage.prompt_tokens, usage.completion_tokens)


def _chunks(sdks: Sdks, request: JsonObject, each: Each) -> SdkReply:
    text, stop, used = "", "", (0, 0)
    calls: dict[int, tuple[str, str]] = {}
    options: ChatCompletionStreamOptionsParam = {"include_usage": True}
    for chunk in sdks.openai.chat.completions.create(**request, stream=True, stream_options=options):
        if chunk.usage:
            used = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
        for choice in chunk.choices:
            if choice.delta.content or choice.delta.tool_calls:
                each()
            text += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                if call.function is None:
                    continue
                name, arguments = calls.get(call.index, ("", ""))
                calls[call.index] = (call.function.name or name, arguments + (call.function.arguments or ""))
            stop = choice.finish_reason or stop
    if not stop:
        raise Broken("no finish_reason")
    return SdkReply(text, tuple(calls.values()), stop, *used)


PROTOCOLS: dict[str, Callable[[Sdks, Question, Each | None], SdkReply]] = {
    "messages": messages,
    "responses": responses,
    "chat": chat,
}
