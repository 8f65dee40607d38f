"""The server's side of Chat Completions: read requests, write replies as chunks or whole."""

from collections.abc import Iterator

import msgspec

from fakes.agent import AgentRequest, Complaint, Json, Reply, Tool, objects, pieces, schema_fields, text_of


def read_request(body: Json) -> AgentRequest:
    messages = objects(body.get("messages"))
    _check(messages)
    return AgentRequest(
        model=str(body["model"]),
        tools=tuple(_tool(tool) for tool in objects(body.get("tools"))),
        results=tuple(text_of(message.get("content")) for message in messages if message["role"] == "tool"),
        streams=bool(body.get("stream")),
        thinks=body.get("reasoning_effort") not in (None, "none"),
    )


def _check(messages: list[Json]) -> None:
    if not messages:
        raise Complaint("messages: there are none")
    owed: list[object] = []
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in owed:
                raise Complaint(f"messages with role 'tool' must follow their call: {message.get('tool_call_id')}")
            owed.remove(message["tool_call_id"])
            continue
        if owed:
            raise Complaint(f"tool_call_ids did not have response messages: {owed}")
        if message["role"] not in ("system", "developer", "user", "assistant"):
            raise Complaint(f"unknown role {message['role']!r}")
        owed = [call["id"] for call in objects(message.get("tool_calls"))]
        if message["role"] == "assistant" and not owed and message.get("content") is None:
            raise Complaint("an assistant message needs content or tool calls")
    if owed:
        raise Complaint(f"tool_call_ids did not have response messages: {owed}")


def _tool(tool: Json) -> Tool:
    inner = tool.get(str(tool["type"]))
    if tool["type"] not in ("function", "custom") or not isinstance(inner, dict) or len(str(inner["name"])) > 64:
        raise Complaint(f"tools: {tool}")
    return Tool(str(inner["name"]), tool["type"] == "custom", fields=schema_fields(inner.get("parameters")))


def stream(reply: Reply) -> bytes:
    chunks = [_chunk(reply, delta, finish) for delta, finish in _deltas(reply)]
    chunks.append({**_head(reply, "chat.completion.chunk"), "choices": [], "usage": _usage(reply)})
    return b"".join(b"data: %b\n\n" % msgspec.json.encode(chunk) for chunk in chunks) + b"data: [DONE]\n\n"


def whole(reply: Reply) -> bytes:
    message: Json = {"role": "assistant", "content": reply.text, "refusal": None, "annotations": []}
    if reply.call is not None:
        message["tool_calls"] = [_call(reply, reply.call.payload)]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(reply)}
    return msgspec.json.encode({**_head(reply, "chat.completion"), "choices": [choice], "usage": _usage(reply)})


def complaint(message: str) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return msgspec.json.encode({"error": error})


def _deltas(reply: Reply) -> Iterator[tuple[Json, str | None]]:
    yield {"role": "assistant", "content": "", "refusal": None}, None
    for piece in pieces(reply.thought):
        yield {"reasoning_content": piece}, None
    for piece in pieces(reply.text):
        yield {"content": piece}, None
    if reply.call is not None:
        yield {"tool_calls": [{"index": 0, **_call(reply, "")}]}, None
        kind, field = ("custom", "input") if reply.call.tool.freeform else ("function", "arguments")
        for piece in pieces(reply.call.payload):
            yield {"tool_calls": [{"index": 0, kind: {field: piece}}]}, None
    yield {}, _finish(reply)


def _call(reply: Reply, payload: str) -> Json:
    assert reply.call is not None
    kind, field = ("custom", "input") if reply.call.tool.freeform else ("function", "arguments")
    return {"id": reply.call.id, "type": kind, kind: {"name": reply.call.tool.name, field: payload}}


def _finish(reply: Reply) -> str:
    return "stop" if reply.call is None else "tool_calls"


def _head(reply: Reply, kind: str) -> Json:
    made = {"id": f"chatcmpl-fake{reply.number}", "object": kind, "created": 1794700000 + reply.number}
    return {**made, "model": reply.model, "service_tier": "default", "system_fingerprint": "fp_fake"}


def _chunk(reply: Reply, delta: Json, finish: str | None) -> Json:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {**_head(reply, "chat.completion.chunk"), "choices": [choice], "usage": None, "obfuscation": "xyz"}


def _usage(reply: Reply) -> Json:
    return {
        "prompt_tokens": reply.input_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": reply.input_tokens + reply.output_tokens,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": len(reply.thought) // 4, "audio_tokens": 0},
    }
