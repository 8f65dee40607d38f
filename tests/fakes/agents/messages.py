"""The server's side of Anthropic Messages: read requests, write replies as events or whole."""

from collections.abc import Iterator

import msgspec

from fakes.agent import (
    AgentRequest,
    Complaint,
    Declined,
    Json,
    Reply,
    Tool,
    check_seal,
    objects,
    pieces,
    schema_fields,
    seal,
    text_of,
)


def read_request(body: Json) -> AgentRequest:
    if not isinstance(body.get("max_tokens"), int):
        raise Complaint("max_tokens: Field required")
    if "thread" in body:
        raise Declined(_no_threads())
    turns = _turns(body)
    _check(turns)
    thinking = body.get("thinking")
    return AgentRequest(
        model=str(body["model"]),
        tools=tuple(
            Tool(str(tool["name"]), fields=schema_fields(tool.get("input_schema")))
            for tool in objects(body.get("tools"))
        ),
        results=tuple(
            text_of(block.get("content")) for _, blocks in turns for block in blocks if block["type"] == "tool_result"
        ),
        streams=bool(body.get("stream")),
        thinks=isinstance(thinking, dict) and thinking.get("type") in ("adaptive", "enabled"),
    )


def _turns(body: Json) -> list[tuple[str, list[Json]]]:
    """The turns as the server sees them: neighbours of one role are one."""
    turns: list[tuple[str, list[Json]]] = []
    for message in objects(body.get("messages")):
        role, content = str(message["role"]), message["content"]
        text: Json = {"type": "text", "text": content}
        blocks = [text] if isinstance(content, str) else objects(content)
        if turns and turns[-1][0] == role:
            turns[-1] = (role, turns[-1][1] + blocks)
        else:
            turns.append((role, blocks))
    return turns


def _check(turns: list[tuple[str, list[Json]]]) -> None:
    if not turns or turns[0][0] != "user":
        raise Complaint("messages: first message must use the user role")
    owed: set[object] = set()
    for role, blocks in turns:
        if role not in ("user", "assistant", "system"):
            raise Complaint(f"messages: unexpected role {role!r}")
        if any(block["type"] == "text" and not block["text"] for block in blocks):
            raise Complaint("messages: text content blocks must be non-empty")
        given = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        if role != "system" and given != owed:
            raise Complaint(f"tool_use ids {sorted(map(str, owed))} answered by {sorted(map(str, given))}")
        if role != "system":
            owed = {block["id"] for block in blocks if block["type"] == "tool_use"}
        for block in blocks:
            if block["type"] == "thinking":
                check_seal("messages", block.get("signature"))
    if owed:
        raise Complaint(f"tool_use ids were found without tool_result blocks: {owed}")


def stream(reply: Reply) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), msgspec.json.encode(event))
        for event in _events(reply)
    )


def whole(reply: Reply) -> bytes:
    content = [block for block, _ in _blocks(reply)]
    usage = {**_make_first_usage(reply), "output_tokens": reply.output_tokens}
    return msgspec.json.encode({**_message(reply), "content": content, **_stop(reply), "usage": usage})


def complaint(message: str) -> bytes:
    error = {"type": "invalid_request_error", "message": message, "details": None}
    return msgspec.json.encode({"type": "error", "error": error, "request_id": "req_fake"})


def _no_threads() -> bytes:
    """As an endpoint answers that keeps no conversations; the SDK then sends the whole history."""
    details = {"error_code": "thread_unsupported_request"}
    error = {"type": "invalid_request_error", "message": "Threads are not supported here.", "details": details}
    return msgspec.json.encode({"type": "error", "error": error, "request_id": "req_fake"})


def _blocks(reply: Reply) -> Iterator[tuple[Json, list[Json]]]:
    """Each block whole, and the deltas that it is streamed in."""
    if reply.thought:
        signature = seal("messages", reply.number)
        deltas: list[Json] = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(reply.thought)]
        deltas.append({"type": "signature_delta", "signature": signature})
        yield {"type": "thinking", "thinking": reply.thought, "signature": signature}, deltas
    yield {"type": "text", "text": reply.text}, [{"type": "text_delta", "text": piece} for piece in pieces(reply.text)]
    if (call := reply.call) is not None:
        use = {"type": "tool_use", "id": f"toolu_{call.id}", "name": call.tool.name}
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces(call.payload))]
        yield {**use, "input": msgspec.json.decode(call.payload)}, deltas


def _events(reply: Reply) -> Iterator[Json]:
    begun = {
        **_message(reply),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _make_first_usage(reply),
    }
    yield {"type": "message_start", "message": begun}
    empty: Json = {"text": "", "thinking": "", "signature": "", "input": {}}
    for index, (block, deltas) in enumerate(_blocks(reply)):
        opened = {name: empty.get(name, value) if name != "type" else value for name, value in block.items()}
        yield {"type": "content_block_start", "index": index, "content_block": opened}
        if index == 0:
            yield {"type": "ping"}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": _stop(reply), "usage": {"output_tokens": reply.output_tokens}}
    yield {"type": "message_stop"}


def _message(reply: Reply) -> Json:
    return {"id": f"msg_01fake{reply.number}", "type": "message", "role": "assistant", "model": reply.model}


def _stop(reply: Reply) -> Json:
    return {"stop_reason": "end_turn" if reply.call is None else "tool_use", "stop_sequence": None}


def _make_first_usage(reply: Reply) -> Json:
    caches = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": reply.input_tokens, **caches, "output_tokens": 1, "service_tier": "standard"}
