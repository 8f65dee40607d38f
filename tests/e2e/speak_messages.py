"""Write a reply as a Messages server would send it, from the vendor's reference."""

from collections.abc import Iterator

import msgspec

from e2e.meaning import CallTool, Ending, Meant, Part, Refuse, Say, Stop, Think, Tokens, pieces
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


def stream(meant: Meant) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), msgspec.json.encode(event))
        for event in _events(meant)
    )


def whole(meant: Meant) -> bytes:
    content = [_block(part) for part in meant.parts]
    return msgspec.json.encode({**HEAD, "content": content, **_stop(meant), "usage": _usage(meant.tokens)})


def _events(meant: Meant) -> Iterator[dict[str, object]]:
    begun = {**_usage(meant.tokens), "output_tokens": 1}
    begun.pop("output_tokens_details")
    message: JsonObject = {**HEAD, "content": [], "stop_reason": None, "stop_sequence": None, "usage": begun}
    yield {"type": "message_start", "message": message}
    for index, part in enumerate(meant.parts):
        yield {"type": "content_block_start", "index": index, "content_block": _empty(part)}
        if index == 0:
            yield {"type": "ping"}
        for delta in _deltas(part):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    match meant.ending:
        case Ending.PROPER:
            usage = {
                "output_tokens": meant.tokens.output,
                "output_tokens_details": {"thinking_tokens": meant.tokens.reasoning},
            }
            yield {"type": "message_delta", "delta": _stop(meant), "usage": usage}
            yield {"type": "message_stop"}
        case Ending.ERROR:
            yield {"type": "error", "error": ERROR, "request_id": "req_fake"}
        case Ending.NONE:
            return


def _block(part: Part) -> dict[str, object]:
    match part:
        case Say(text) | Refuse(text):
            return {"type": "text", "text": text, "citations": None}
        case Think("", seal):
            return {"type": "redacted_thinking", "data": seal}
        case Think(text, seal):
            return {"type": "thinking", "thinking": text, "signature": seal}
        case CallTool(id, name, arguments):
            return {"type": "tool_use", "id": id, "name": name, "input": msgspec.json.decode(arguments or "{}")}


def _empty(part: Part) -> dict[str, object]:
    match part:
        case Say() | Refuse():
            return {"type": "text", "text": ""}
        case Think("", seal):
            return {"type": "redacted_thinking", "data": seal}
        case Think():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case CallTool(id, name):
            return {"type": "tool_use", "id": id, "name": name, "input": {}}


def _deltas(part: Part) -> Iterator[JsonObject]:
    match part:
        case Say(text) | Refuse(text):
            yield from ({"type": "text_delta", "text": piece} for piece in pieces(text))
        case Think(text, seal) if text:
            yield from ({"type": "thinking_delta", "thinking": piece} for piece in pieces(text))
            if seal:
                yield {"type": "signature_delta", "signature": seal}
        case CallTool(arguments=arguments):
            yield from ({"type": "input_json_delta", "partial_json": piece} for piece in pieces(arguments))


def _stop(meant: Meant) -> dict[str, object]:
    stop: dict[str, object] = {"stop_reason": REASON[meant.stop], "stop_sequence": meant.sequence}
    if meant.explanation:
        stop["stop_details"] = {"type": "refusal", "category": "cyber", "explanation": meant.explanation}
    return stop


def _usage(tokens: Tokens) -> dict[str, object]:
    return {
        "input_tokens": tokens.input - tokens.cached - tokens.written,
        "cache_creation_input_tokens": tokens.written,
        "cache_read_input_tokens": tokens.cached,
        "output_tokens": tokens.output,
        "output_tokens_details": {"thinking_tokens": tokens.reasoning},
    }
