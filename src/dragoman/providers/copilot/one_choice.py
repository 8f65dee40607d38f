"""A whole Chat reply of Copilot comes in; it goes out as Chat means it: one choice, with all that was said.

Copilot translates Claude's replies into Chat, but not always to the end: text and calls may come as several choices,
and the newest models' replies as they are in Messages.
"""

from collections.abc import Sequence

import msgspec

Table = dict[str, object]

STOPS = {"max_tokens": "length", "tool_use": "tool_calls", "refusal": "content_filter"}

_body = msgspec.json.Decoder(Table)


class OneChoice:
    """Holds a body until its end; one that is in order leaves as it came."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def feed(self, item: bytes) -> Sequence[bytes]:
        self._held.append(item)
        return ()

    def finish(self) -> Sequence[bytes]:
        return (put_right(b"".join(self._held)),)


def put_right(body: bytes) -> bytes:
    if body.count(b'"message"') < 2 and b'"choices"' in body:
        return body
    try:
        reply = _body.decode(body)
    except (ValueError, RecursionError):
        return body
    choices, content = reply.get("choices"), reply.get("content")
    if isinstance(choices, list) and len(choices) > 1:
        return msgspec.json.encode({**reply, "choices": [_joined([one for one in choices if isinstance(one, dict)])]})
    if "choices" not in reply and reply.get("type") == "message" and isinstance(content, list):
        return msgspec.json.encode(_as_chat(reply, [block for block in content if isinstance(block, dict)]))
    return body


def _joined(choices: list[Table]) -> Table:
    """The first one's fields win; words and calls are of all."""
    messages: list[Table] = [told for choice in choices if isinstance(told := choice.get("message"), dict)]
    message: Table = {}
    for one in messages:
        message.update({key: value for key, value in one.items() if message.get(key) is None})
    texts = [text for one in messages if isinstance(text := one.get("content"), str)]
    calls = [call for one in messages for call in _list(one.get("tool_calls"))]
    message["content"] = "".join(texts) if texts else None
    if calls:
        message["tool_calls"] = calls
    stop = "tool_calls" if calls else choices[0].get("finish_reason")
    return {**choices[0], "index": 0, "message": message, "finish_reason": stop}


def _as_chat(reply: Table, blocks: list[Table]) -> Table:
    texts = [text for block in blocks if isinstance(text := block.get("text"), str)]
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    message: Table = {"role": "assistant", "content": "".join(texts) if texts else None}
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": STOPS.get(str(reply.get("stop_reason")), "stop")}
    head = {"id": reply.get("id"), "object": "chat.completion", "created": 0, "model": reply.get("model")}
    return {**head, "choices": [choice], "usage": _usage(reply.get("usage"))}


def _call(block: Table) -> Table:
    arguments = msgspec.json.encode(block.get("input") or {}).decode()
    return {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": arguments}}


def _usage(told: object) -> Table:
    """Messages counts what was cached apart, Chat within its prompt."""
    counts = told if isinstance(told, dict) else {}
    cached = _count(counts, "cache_read_input_tokens")
    given = _count(counts, "input_tokens") + cached + _count(counts, "cache_creation_input_tokens")
    said = _count(counts, "output_tokens")
    details = {"cached_tokens": cached}
    total = given + said
    return {
        "prompt_tokens": given,
        "completion_tokens": said,
        "total_tokens": total,
        "prompt_tokens_details": details,
    }


def _count(counts: Table, name: str) -> int:
    value = counts.get(name)
    return value if isinstance(value, int) else 0


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
