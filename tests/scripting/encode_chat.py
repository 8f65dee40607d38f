"""Write a reply as a Chat Completions server would send it, from the vendor's reference."""

from collections.abc import Iterator

import msgspec

from scripting.replies import (
    Ending,
    Part,
    Refusal,
    ScriptedReply,
    Stop,
    Text,
    Thinking,
    Tokens,
    ToolCall,
    group_calls,
    interleave,
    pieces,
)

FINISH = {
    Stop.NATURAL: "stop",
    Stop.CAP: "length",
    Stop.TOOL: "tool_calls",
    Stop.FILTERED: "content_filter",
}
HEAD = {"id": "chatcmpl-fake1", "created": 1794700000, "model": "vendor-model"}
ERROR = {"message": "The engine overheated.", "type": "server_error", "param": None, "code": "server_error"}


def encode_stream(scripted: ScriptedReply) -> bytes:
    return b"".join(b"data: %b\n\n" % (data if isinstance(data, bytes) else _json(data)) for data in _data(scripted))


def encode_whole(scripted: ScriptedReply) -> bytes:
    message: dict[str, object] = {"role": "assistant", "content": None, "refusal": None}
    message.update({name: "".join(texts) or None for name, texts in _texts(scripted).items()})
    details = [_detail(place, part) for place, part in enumerate(scripted.parts_of(Thinking)) if part.seal]
    if details:
        message["reasoning_details"] = details
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in scripted.parts_of(ToolCall)
    ]
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": FINISH[scripted.stop]}
    return _json({**HEAD, "object": "chat.completion", "choices": [choice], "usage": _usage(scripted.tokens)})


def _texts(scripted: ScriptedReply) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {"content": [], "refusal": [], "reasoning_content": []}
    for part in scripted.parts:
        match part:
            case Text(text):
                texts["content"].append(text)
            case Refusal(text):
                texts["refusal"].append(text)
            case Thinking(text):
                texts["reasoning_content"].append(text)
    return texts


def _data(scripted: ScriptedReply) -> Iterator[dict[str, object] | bytes]:
    yield _chunk({"role": "assistant", "content": ""})
    calls = thoughts = 0
    for run in group_calls(scripted.parts):
        match run[0]:
            case Text(text, size):
                yield from (_chunk({"content": piece}) for piece in pieces(text, size))
            case Refusal(text):
                yield from (_chunk({"refusal": piece}) for piece in pieces(text))
            case Thinking(text, seal) as thought:
                yield from (_chunk({"reasoning_content": piece}) for piece in pieces(text))
                if seal:
                    yield _chunk({"reasoning_details": [_detail(thoughts, thought)]})
                thoughts += 1
            case ToolCall():
                yield from _calls(run, calls)
                calls += len(run)
    yield from _end(scripted)


def _calls(run: list[Part], first: int) -> Iterator[dict[str, object]]:
    for place, call in enumerate(run):
        assert isinstance(call, ToolCall)
        opened = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        yield _chunk({"tool_calls": [{"index": first + place, **opened}]})
    for place, piece in interleave(run):
        yield _chunk({"tool_calls": [{"index": first + place, "function": {"arguments": piece}}]})


def _end(scripted: ScriptedReply) -> Iterator[dict[str, object] | bytes]:
    match scripted.ending:
        case Ending.PROPER:
            yield _chunk({}, FINISH[scripted.stop])
            yield {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": _usage(scripted.tokens)}
            yield b"[DONE]"
        case Ending.ERROR:
            yield {"error": ERROR}
        case Ending.NONE:
            return


def _chunk(delta: dict[str, object], finish: str | None = None) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {**HEAD, "object": "chat.completion.chunk", "choices": [choice], "usage": None}


def _detail(index: int, thought: Part) -> dict[str, object]:
    assert isinstance(thought, Thinking)
    if not thought.text:
        return {"type": "reasoning.encrypted", "data": thought.seal, "format": "fake-v1", "index": index}
    signed = {"text": thought.text, "signature": thought.seal, "format": "fake-v1"}
    return {"type": "reasoning.text", **signed, "index": index}


def _usage(tokens: Tokens) -> dict[str, object]:
    return {
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "total_tokens": tokens.input + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": tokens.written},
        "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
    }


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)
