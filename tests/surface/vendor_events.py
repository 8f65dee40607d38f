"""Events and whole replies of each vendor, to be altered one by one where a test needs what no vendor should send."""

import json

from fakes.upstream import Answer
from scripting import JSON
from wire_json import JsonObject

CHAT_USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 30},
    "completion_tokens_details": {"reasoning_tokens": 5},
}
MESSAGES_USAGE = {
    "input_tokens": 70,
    "cache_read_input_tokens": 30,
    "cache_creation_input_tokens": 0,
    "output_tokens": 20,
    "service_tier": "standard",
}
RESPONSES_USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 0},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 120,
}


def chunk(delta: JsonObject, finish: str | None = None, **fields: object) -> JsonObject:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**head, "choices": [choice], **fields}


CHAT_END = ({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
             "usage": CHAT_USAGE}, "[DONE]")  # fmt: skip


def chat(message: JsonObject, finish: str = "stop", **fields: object) -> JsonObject:
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
    return {**head, "choices": [choice], "usage": CHAT_USAGE, **fields}


def message(*content: JsonObject, stop: str = "end_turn", **fields: object) -> JsonObject:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": list(content),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": MESSAGES_USAGE,
        **fields,
    }


def response(*output: JsonObject, status: str = "completed", **fields: object) -> JsonObject:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": "m",
        "output": list(output),
        "usage": RESPONSES_USAGE if status != "in_progress" else None,
        "error": None,
        "incomplete_details": None,
        **fields,
    }


def text_item(text: str) -> JsonObject:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def write_whole(reply: JsonObject) -> Answer:
    return Answer(json.dumps(reply).encode(), content_type=JSON)


def sse(*events: JsonObject | str) -> bytes:
    """Events as their vendor writes them; those that have a type are named by it."""
    return b"".join(_block(event) for event in events)


def _block(event: JsonObject | str) -> bytes:
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


ROLE = chunk({"role": "assistant", "content": ""})
STARTED = {"type": "message_start", "message": message(stop_reason=None)}
CREATED = {"type": "response.created", "response": response(status="in_progress"), "sequence_number": 0}
STOPPED = {"type": "message_stop"}


def make_call_chunk(*pieces: JsonObject) -> JsonObject:
    return chunk({"tool_calls": list(pieces)})


def piece(index: int | None = None, arguments: object = None, **fields: str) -> JsonObject:
    """One entry of a delta's tool_calls."""
    function = {key: value for key, value in (("name", fields.pop("name", None)), ("arguments", arguments)) if value}
    place = {} if index is None else {"index": index}
    return {**place, **fields, "function": function}


def block(index: int, content: JsonObject, *deltas: JsonObject) -> list[JsonObject]:
    return [
        {"type": "content_block_start", "index": index, "content_block": content},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text(index: int, *pieces: str) -> list[JsonObject]:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def make_message_end(stop: str = "end_turn", **fields: object) -> JsonObject:
    delta = {"stop_reason": stop, "stop_sequence": None, **fields}
    return {"type": "message_delta", "delta": delta, "usage": MESSAGES_USAGE}


def stream_chat(*chunks: JsonObject, finish: str = "stop") -> Answer:
    return Answer(sse(ROLE, *chunks, chunk({}, finish), *CHAT_END))


def stream_messages(*events: JsonObject, stop: str = "end_turn") -> Answer:
    return Answer(sse(STARTED, *events, make_message_end(stop), STOPPED))
