"""One short reply in each vendor's format, whole and streamed, for tests to modify."""

import json

from surface.outside import sse
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


WHOLE = {
    "chat": json.dumps(chat({"content": "Hello"})).encode(),
    "messages": json.dumps(message({"type": "text", "text": "Hello"})).encode(),
    "responses": json.dumps(response(text_item("Hello"))).encode(),
}
STREAM = {
    "chat": sse(chunk({"role": "assistant", "content": "Hel"}), chunk({"content": "lo"}), chunk({}, "stop"), *CHAT_END),
    "messages": sse(
        {"type": "message_start", "message": message(stop_reason=None)},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": MESSAGES_USAGE},
        {"type": "message_stop"},
    ),
    "responses": sse(
        {"type": "response.created", "response": response(status="in_progress"), "sequence_number": 0},
        {"type": "response.output_item.done", "output_index": 0, "item": text_item("Hello"), "sequence_number": 1},
        {"type": "response.completed", "response": response(text_item("Hello")), "sequence_number": 2},
    ),
}
