"""Write a reply as a Chat Completions server would send it, from the vendor's reference."""

from collections.abc import Iterator

import msgspec

from e2e.meaning import CallTool, Ending, Meant, Part, Refuse, Say, Stop, Think, Tokens, pieces, runs, woven

FINISH = {
    Stop.NATURAL: "stop",
    Stop.CAP: "length",
    Stop.TOOL: "tool_calls",
    Stop.FILTERED: "content_filter",
}
HEAD = {"id": "chatcmpl-fake1", "created": 1794700000, "model": "vendor-model"}
ERROR = {"message": "The engine overheated.", "type": "server_error", "param": None, "code": "server_error"}


def stream(meant: Meant) -> bytes:
    return b"".join(b"data: %b\n\n" % (data if isinstance(data, bytes) else _json(data)) for data in _data(meant))


def whole(meant: Meant) -> bytes:
    message: dict[str, object] = {"role": "assistant", "content": None, "refusal": None}
    message.update({name: "".join(texts) or None for name, texts in _texts(meant).items()})
    details = [_detail(place, part) for place, part in enumerate(meant.of(Think)) if part.seal]
    if details:
        message["reasoning_details"] = details
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in meant.of(CallTool)
    ]
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": FINISH[meant.stop]}
    return _json({**HEAD, "object": "chat.completion", "choices": [choice], "usage": _usage(meant.tokens)})


def _texts(meant: Meant) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {"content": [], "refusal": [], "reasoning_content": []}
    for part in meant.parts:
        match part:
            case Say(text):
                texts["content"].append(text)
            case Refuse(text):
                texts["refusal"].append(text)
            case Think(text):
                texts["reasoning_content"].append(text)
    return texts


def _data(meant: Meant) -> Iterator[dict[str, object] | bytes]:
    yield _chunk({"role": "assistant", "content": ""})
    calls = thoughts = 0
    for run in runs(meant.parts):
        match run[0]:
            case Say(text):
                yield from (_chunk({"content": piece}) for piece in pieces(text))
            case Refuse(text):
                yield from (_chunk({"refusal": piece}) for piece in pieces(text))
            case Think(text, seal) as thought:
                yield from (_chunk({"reasoning_content": piece}) for piece in pieces(text))
                if seal:
                    yield _chunk({"reasoning_details": [_detail(thoughts, thought)]})
                thoughts += 1
            case CallTool():
                yield from _calls(run, calls)
                calls += len(run)
    yield from _end(meant)


def _calls(run: list[Part], first: int) -> Iterator[dict[str, object]]:
    for place, call in enumerate(run):
        assert isinstance(call, CallTool)
        opened = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        yield _chunk({"tool_calls": [{"index": first + place, **opened}]})
    for place, piece in woven(run):
        yield _chunk({"tool_calls": [{"index": first + place, "function": {"arguments": piece}}]})


def _end(meant: Meant) -> Iterator[dict[str, object] | bytes]:
    match meant.ending:
        case Ending.PROPER:
            yield _chunk({}, FINISH[meant.stop])
            yield {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": _usage(meant.tokens)}
            yield b"[DONE]"
        case Ending.ERROR:
            yield {"error": ERROR}
        case Ending.NONE:
            return


def _chunk(delta: dict[str, object], finish: str | None = None) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {**HEAD, "object": "chat.completion.chunk", "choices": [choice], "usage": None}


def _detail(index: int, thought: Part) -> dict[str, object]:
    assert isinstance(thought, Think)
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
