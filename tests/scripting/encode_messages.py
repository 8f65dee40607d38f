"""Write a reply as a Messages server would send it, from the vendor's reference."""

from collections.abc import Iterator

import msgspec

from scripting.replies import Ending, Part, Refusal, ScriptedReply, Stop, Text, Thinking, Tokens, ToolCall, pieces
from wire_json import JsonObject

REASON = {
    Stop.NATURAL: "end_turn",
    Stop.STOP_STRING: "stop_sequence",
    Stop.CAP: "max_tokens",
    Stop.CONTEXT_FULL: "model_context_window_exceeded",
    Stop.TOOL: "tool_use",
    Stop.FILTERED: "refusal",
    Stop.PAUSE: "pause_turn",
}
HEAD = {"id": "msg_01fake", "type": "message", "role": "assistant", "model": "vendor-model"}
ERROR = {"type": "api_error", "message": "The engine overheated."}


def encode_stream(scripted: ScriptedReply) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), msgspec.json.encode(event))
        for event in _events(scripted)
    )


def encode_whole(scripted: ScriptedReply) -> bytes:
    content = [_block(part) for part in scripted.parts]
    return msgspec.json.encode({**HEAD, "content": content, **_stop(scripted), "usage": _usage(scripted.tokens)})


def _events(scripted: ScriptedReply) -> Iterator[dict[str, object]]:
    begun = {**_usage(scripted.tokens), "output_tokens": 1}
    begun.pop("output_tokens_details")
    message: JsonObject = {**HEAD, "content": [], "stop_reason": None, "stop_sequence": None, "usage": begun}
    yield {"type": "message_start", "message": message}
    for index, part in enumerate(scripted.parts):
        yield {"type": "content_block_start", "index": index, "content_block": _empty(part)}
        if index == 0:
            yield {"type": "ping"}
        for delta in _deltas(part):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    match scripted.ending:
        case Ending.PROPER:
            usage = {
                "output_tokens": scripted.tokens.output,
                "output_tokens_details": {"thinking_tokens": scripted.tokens.reasoning},
            }
            yield {"type": "message_delta", "delta": _stop(scripted), "usage": usage}
            yield {"type": "message_stop"}
        case Ending.ERROR:
            yield {"type": "error", "error": ERROR, "request_id": "req_fake"}
        case Ending.NONE:
            return


def _block(part: Part) -> dict[str, object]:
    match part:
        case Text(text) | Refusal(text):
            return {"type": "text", "text": text, "citations": None}
        case Thinking("", seal):
            return {"type": "redacted_thinking", "data": seal}
        case Thinking(text, seal):
            return {"type": "thinking", "thinking": text, "signature": seal}
        case ToolCall(id, name, arguments):
            return {"type": "tool_use", "id": id, "name": name, "input": msgspec.json.decode(arguments or "{}")}


def _empty(part: Part) -> dict[str, object]:
    match part:
        case Text() | Refusal():
            return {"type": "text", "text": ""}
        case Thinking("", seal):
            return {"type": "redacted_thinking", "data": seal}
        case Thinking():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case ToolCall(id, name):
            return {"type": "tool_use", "id": id, "name": name, "input": {}}


def _deltas(part: Part) -> Iterator[JsonObject]:
    match part:
        case Text(text, size) | Refusal(text, size):
            yield from ({"type": "text_delta", "text": piece} for piece in pieces(text, size))
        case Thinking(text, seal) if text:
            yield from ({"type": "thinking_delta", "thinking": piece} for piece in pieces(text))
            if seal:
                yield {"type": "signature_delta", "signature": seal}
        case ToolCall(arguments=arguments, size=size):
            yield from ({"type": "input_json_delta", "partial_json": piece} for piece in pieces(arguments, size))


def _stop(scripted: ScriptedReply) -> dict[str, object]:
    stop: dict[str, object] = {"stop_reason": REASON[scripted.stop], "stop_sequence": scripted.sequence}
    if scripted.explanation:
        stop["stop_details"] = {"type": "refusal", "category": "cyber", "explanation": scripted.explanation}
    return stop


def _usage(tokens: Tokens) -> dict[str, object]:
    return {
        "input_tokens": tokens.input - tokens.cached - tokens.written,
        "cache_creation_input_tokens": tokens.written,
        "cache_read_input_tokens": tokens.cached,
        "output_tokens": tokens.output,
        "output_tokens_details": {"thinking_tokens": tokens.reasoning},
    }
