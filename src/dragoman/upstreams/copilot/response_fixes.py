"""Corrections of Copilot's responses.

Copilot translates Claude's replies into Chat, but not always completely: text and calls may come as several choices,
and the newest models' replies in the shape of Messages. A reply that calls tools may finish with `stop`, at which
clients do not run them. In a Responses stream it gives an item a new id in every event, so that clients which assemble
items by id see several.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from dragoman.translate.framing.sse import DataRewriter

Table = dict[str, object]

CALLS = b'"tool_calls"'
STOP = b'"stop"'
STOPS = {"max_tokens": "length", "tool_use": "tool_calls", "refusal": "content_filter"}

_body = msgspec.json.Decoder(Table)


class ChoiceMerger(Struct, eq=False):
    """Buffers a whole body and merges its choices; a correct body passes unchanged."""

    _held: list[bytes] = []

    def feed(self, item: bytes) -> Sequence[bytes]:
        self._held.append(item)
        return ()

    def finish(self) -> Sequence[bytes]:
        return (fix_body(b"".join(self._held)),)


def fix_body(body: bytes) -> bytes:
    finishes_calls = CALLS in body and STOP in body
    if body.count(b'"message"') < 2 and b'"choices"' in body and not finishes_calls:
        return body
    try:
        reply = _body.decode(body)
    except (ValueError, RecursionError):
        return body
    choices, content = reply.get("choices"), reply.get("content")
    if isinstance(choices, list) and (len(choices) > 1 or _stops_with_calls(choices)):
        return msgspec.json.encode(
            {**reply, "choices": [_merge_choices([one for one in choices if isinstance(one, dict)])]}
        )
    if "choices" not in reply and reply.get("type") == "message" and isinstance(content, list):
        return msgspec.json.encode(_convert_message(reply, [block for block in content if isinstance(block, dict)]))
    return body


def _stops_with_calls(choices: list[object]) -> bool:
    return any(
        isinstance(choice, dict)
        and choice.get("finish_reason") == "stop"
        and isinstance(message := choice.get("message"), dict)
        and bool(message.get("tool_calls"))
        for choice in choices
    )


def _merge_choices(choices: list[Table]) -> Table:
    """Merge choices: fields of the first take precedence, text and calls are joined."""
    messages: list[Table] = [one for choice in choices if isinstance(one := choice.get("message"), dict)]
    message: Table = {}
    for one in messages:
        message.update({key: value for key, value in one.items() if message.get(key) is None})
    texts = [text for one in messages if isinstance(text := one.get("content"), str)]
    calls = [call for one in messages for call in _read_list(one.get("tool_calls"))]
    message["content"] = "".join(texts) if texts else None
    if calls:
        message["tool_calls"] = calls
    stop = "tool_calls" if calls else choices[0].get("finish_reason")
    return {**choices[0], "index": 0, "message": message, "finish_reason": stop}


def _convert_message(reply: Table, blocks: list[Table]) -> Table:
    texts = [text for block in blocks if isinstance(text := block.get("text"), str)]
    calls = [_convert_call(block) for block in blocks if block.get("type") == "tool_use"]
    message: Table = {"role": "assistant", "content": "".join(texts) if texts else None}
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": STOPS.get(str(reply.get("stop_reason")), "stop")}
    head = {"id": reply.get("id"), "object": "chat.completion", "created": 0, "model": reply.get("model")}
    return {**head, "choices": [choice], "usage": _convert_usage(reply.get("usage"))}


def _convert_call(block: Table) -> Table:
    arguments = msgspec.json.encode(block.get("input") or {}).decode()
    return {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": arguments}}


def _convert_usage(usage: object) -> Table:
    """Convert usage: Messages counts cached tokens separately, Chat within the prompt."""
    counts = usage if isinstance(usage, dict) else {}
    cached = _read_count(counts, "cache_read_input_tokens")
    prompt = _read_count(counts, "input_tokens") + cached + _read_count(counts, "cache_creation_input_tokens")
    completion = _read_count(counts, "output_tokens")
    details = {"cached_tokens": cached}
    total = prompt + completion
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": total,
        "prompt_tokens_details": details,
    }


def _read_count(counts: Table, name: str) -> int:
    value = counts.get(name)
    return value if isinstance(value, int) else 0


def _read_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


class CallFinisher(Struct, eq=False):
    """Gives a Chat stream of one choice that called tools the finish reason for it."""

    _called: bool = False

    def rewrite(self, data: bytes) -> bytes:
        if (STOP if self._called else CALLS) not in data:
            return data
        try:
            event = _body.decode(data)
        except (ValueError, RecursionError):
            return data
        stopped = False
        for choice in _read_list(event.get("choices")):
            if not isinstance(choice, dict):
                continue
            delta = choice.get("delta")
            self._called = self._called or (isinstance(delta, dict) and bool(delta.get("tool_calls")))
            if self._called and choice.get("finish_reason") == "stop":
                choice["finish_reason"] = "tool_calls"
                stopped = True
        return msgspec.json.encode(event) if stopped else data


def finish_calls() -> DataRewriter:
    return DataRewriter(CallFinisher().rewrite)


class IdStabilizer(Struct, eq=False):
    """Gives every item the first id that its output_index was seen with."""

    _ids: dict[int, str] = {}

    def rewrite(self, data: bytes) -> bytes:
        if b'"output_index"' not in data and b'"output"' not in data:
            return data
        try:
            event = _body.decode(data)
        except (ValueError, RecursionError):
            return data
        return msgspec.json.encode(event) if self._fix_event(event) else data

    def _fix_event(self, event: Table) -> bool:
        """Correct an event; return whether anything changed."""
        index = event.get("output_index")
        if isinstance(index, int):
            item = event.get("item")
            changed = self._fix_id(event, "item_id", index)
            return (isinstance(item, dict) and self._fix_id(item, "id", index)) or changed
        response = event.get("response")
        output = response.get("output") if isinstance(response, dict) else None
        items = enumerate(output) if isinstance(output, list) else ()
        changes = [isinstance(item, dict) and self._fix_id(item, "id", place) for place, item in items]
        return True in changes

    def _fix_id(self, table: Table, key: str, index: int) -> bool:
        id_ = table.get(key)
        if not isinstance(id_, str):
            return False
        first = self._ids.setdefault(index, id_)
        table[key] = first
        return first != id_


def stabilize_ids() -> DataRewriter:
    return DataRewriter(IdStabilizer().rewrite)
