"""The request bodies, replies and stream events of the benchmark by protocol, rendered once."""

from struct import pack
from zlib import crc32

import msgspec

EVENTS = 64
WORDS = "The river keeps its own slow ledger of stones, weather, bridges and names, and never closes a page. "
FIRST_WORD = "The "
LAST_WORDS = "And so it ends."
REPLY_TEXT = (WORDS * 7)[:660] + LAST_WORDS
PROMPT = "Tell me about the river, in as many words as it takes and no more. " * 3
SYSTEM = "You are a patient guide. Answer in plain prose, without lists, and say when you do not know."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
USAGE = {"prompt_tokens": 91, "completion_tokens": 62, "total_tokens": 153}
MESSAGES_USAGE = {"input_tokens": 91, "output_tokens": 62}
KIRO_USAGE = {"uncachedInputTokens": 91, "outputTokens": 62, "totalTokens": 153}
GEMINI_USAGE = {"promptTokenCount": 91, "candidatesTokenCount": 62, "totalTokenCount": 153}
MODEL = "bench"

encode = msgspec.json.encode


def request_body(protocol: str, model: str, stream: bool, store: bool = False) -> bytes:
    """What a client of the protocol asks: a system text, a turn, a tool; `store` is Responses alone."""
    fields: dict[str, object] = {"model": model, "stream": stream}
    match protocol:
        case "chat":
            turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]
            tool = {"name": "weather", "description": "The weather of a city.", "parameters": SCHEMA}
            fields |= {"messages": turns, "max_tokens": 512, "tools": [{"type": "function", "function": tool}]}
            if stream:
                fields["stream_options"] = {"include_usage": True}
        case "messages":
            tool = {"name": "weather", "description": "The weather of a city.", "input_schema": SCHEMA}
            turns = [{"role": "user", "content": PROMPT}]
            fields |= {"system": SYSTEM, "messages": turns, "max_tokens": 512, "tools": [tool]}
        case "responses":
            tool = {
                "type": "function",
                "name": "weather",
                "description": "The weather of a city.",
                "parameters": SCHEMA,
            }
            fields |= {"instructions": SYSTEM, "input": PROMPT, "max_output_tokens": 512, "tools": [tool]}
            fields["store"] = store
        case "gemini":
            tool = {"name": "weather", "description": "The weather of a city.", "parametersJsonSchema": SCHEMA}
            fields = {
                "contents": [{"role": "user", "parts": [{"text": PROMPT}]}],
                "systemInstruction": {"parts": [{"text": SYSTEM}]},
                "tools": [{"functionDeclarations": [tool]}],
                "generationConfig": {"maxOutputTokens": 512},
            }
        case "kiro":  # no client uses Kiro's protocol: this is for what copies bytes
            turn = {"userInputMessage": {"content": PROMPT, "modelId": model, "origin": "AI_EDITOR"}}
            fields = {"conversationState": {"chatTriggerType": "MANUAL", "currentMessage": turn}}
        case _:
            raise ValueError(f"no request is written for {protocol}")
    return encode(fields)


def whole_reply(protocol: str) -> bytes:
    """About 1 KB of JSON."""
    match protocol:
        case "chat":
            message: dict[str, object] = {
                "role": "assistant",
                "content": REPLY_TEXT,
                "refusal": None,
                "annotations": [],
            }
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
            fields = {"id": "chatcmpl-bench", "object": "chat.completion", "created": 1763190000, "model": MODEL}
            return encode(fields | {"choices": [choice], "usage": USAGE, "system_fingerprint": "fp_bench"})
        case "messages":
            fields = {"id": "msg_bench", "type": "message", "role": "assistant", "model": MODEL}
            fields |= {"content": [{"type": "text", "text": REPLY_TEXT}], "stop_reason": "end_turn"}
            return encode(fields | {"stop_sequence": None, "usage": MESSAGES_USAGE})
        case "gemini":
            return encode(_gemini_chunk(REPLY_TEXT, "STOP"))
        case _:
            raise ValueError(f"no upstream of the benchmark speaks {protocol}")


def stream_events(protocol: str) -> list[bytes]:
    """A reply as 64 events, of SSE or, for Kiro, of an AWS event stream."""
    match protocol:
        case "chat":
            return _chat_events()
        case "messages":
            return _messages_events()
        case "kiro":
            return _kiro_events()
        case "gemini":
            return _gemini_events()
        case _:
            raise ValueError(f"no upstream of the benchmark speaks {protocol}")


def _chat_events() -> list[bytes]:
    fields = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1763190000, "model": MODEL}

    def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return b"data: " + encode(fields | {"choices": [choice], "usage": None}) + b"\n\n"

    texts = [chunk({"content": text}) for text in _pieces(EVENTS - 4)]
    usage = b"data: " + encode(fields | {"choices": [], "usage": USAGE}) + b"\n\n"
    first = chunk({"role": "assistant", "content": ""})
    return [first, *texts, chunk({}, "stop"), usage, b"data: [DONE]\n\n"]


def _messages_events() -> list[bytes]:
    def event(fields: dict[str, object]) -> bytes:
        return b"event: %s\ndata: %s\n\n" % (str(fields["type"]).encode(), encode(fields))

    message: dict[str, object] = {
        "id": "msg_bench",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
    }
    message |= {"stop_reason": None, "stop_sequence": None, "usage": MESSAGES_USAGE | {"output_tokens": 1}}
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    return [
        event({"type": "message_start", "message": message}),
        event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        *(
            event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})
            for text in _pieces(EVENTS - 5)
        ),
        event({"type": "content_block_stop", "index": 0}),
        event({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 62}}),
        event({"type": "message_stop"}),
    ]


def _kiro_events() -> list[bytes]:
    return [
        *(_message("assistantResponseEvent", {"content": text, "modelId": MODEL}) for text in _pieces(EVENTS - 3)),
        _message("metadataEvent", {"stopReason": "END_TURN", "tokenUsage": KIRO_USAGE}),
        _message("contextUsageEvent", {"contextUsagePercentage": 2.0}),
        _message("meteringEvent", {"unit": "credit", "unitPlural": "credits", "usage": 0.01}),
    ]


def _gemini_events() -> list[bytes]:
    *texts, last = _pieces(EVENTS)
    chunks = [*(_gemini_chunk(text) for text in texts), _gemini_chunk(last, "STOP")]
    return [b"data: " + encode(chunk) + b"\r\n\r\n" for chunk in chunks]


def _gemini_chunk(text: str, finish: str | None = None) -> dict[str, object]:
    candidate: dict[str, object] = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "usageMetadata": GEMINI_USAGE, "modelVersion": MODEL, "responseId": "bench"}


def _message(name: str, fields: dict[str, object]) -> bytes:
    """One message of an event stream: lengths, their checksum, headers, payload, checksum of it all."""
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    block = b"".join(
        pack(">B", len(key)) + key.encode() + pack(">BH", 7, len(value)) + value.encode()
        for key, value in headers.items()
    )
    payload = encode(fields)
    prelude = pack(">II", 16 + len(block) + len(payload), len(block))
    message = prelude + pack(">I", crc32(prelude)) + block + payload
    return message + pack(">I", crc32(message))


def _pieces(count: int) -> list[str]:
    words = (WORDS * 8).split(" ")
    return [f"{word} " for word in words[: count - 1]] + [LAST_WORDS]
