"""The server's side of OpenAI Responses: read requests, write replies as events or whole."""

from collections.abc import Iterator

import msgspec

from fakes.agent import (
    AgentRequest,
    Complaint,
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

OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}


def read_request(body: Json) -> AgentRequest:
    items = objects(body.get("input"))
    _check(items)
    offered = objects(body.get("tools"))
    for item in items:
        offered += objects(item.get("tools")) if item.get("type") == "additional_tools" else []
    return AgentRequest(
        model=str(body["model"]),
        tools=tuple(_tools(offered)),
        results=tuple(text_of(item.get("output")) for item in items if item.get("type") in OUTPUTS),
        streams=bool(body.get("stream")),
        thinks=bool(body.get("reasoning")),
    )


def _check(items: list[Json]) -> None:
    called: dict[object, object] = {}
    for item in items:
        kind = str(item.get("type", "message"))
        if kind in OUTPUTS.values():
            called[item["call_id"]] = kind
        if kind in OUTPUTS and called.pop(item["call_id"], None) != OUTPUTS[kind]:
            raise Complaint(f"No tool call found for {kind} with call_id {item['call_id']}.")
        if kind == "reasoning" and item.get("encrypted_content") is not None:
            check_seal("responses", item["encrypted_content"])
    if called:
        raise Complaint(f"No tool output found for function call {sorted(map(str, called))}.")


def _tools(offered: list[Json], namespace: str | None = None) -> Iterator[Tool]:
    for tool in offered:
        match tool["type"]:
            case "function" | "custom" as kind:
                fields = schema_fields(tool.get("parameters"))
                yield Tool(str(tool["name"]), kind == "custom", namespace, fields)
            case "namespace":
                yield from _tools(objects(tool["tools"]), str(tool["name"]))


def stream(reply: Reply) -> bytes:
    out = []
    for number, event in enumerate(_events(reply)):
        data = msgspec.json.encode({**event, "sequence_number": number})
        out.append(b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), data))
    return b"".join(out)


def whole(reply: Reply) -> bytes:
    return msgspec.json.encode(_response(reply, _items(reply)))


def complaint(message: str) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "param": "input", "code": None}
    return msgspec.json.encode({"error": error})


def _items(reply: Reply) -> list[Json]:
    items: list[Json] = []
    if reply.thought:
        summary = [{"type": "summary_text", "text": reply.thought}]
        sealed = {"summary": summary, "encrypted_content": seal("responses", reply.number)}
        items.append({"id": f"rs_fake{reply.number}", "type": "reasoning", **sealed})
    message = {"id": f"msg_fake{reply.number}", "type": "message", "status": "completed", "role": "assistant"}
    items.append({**message, "content": [_part(reply.text)]})
    if (call := reply.call) is not None:
        kind, field, prefix = _choose_spelling(call.tool)
        named: Json = {"call_id": call.id, "name": call.tool.name, field: call.payload}
        if call.tool.namespace is not None:
            named["namespace"] = call.tool.namespace
        items.append({"id": f"{prefix}_fake{reply.number}", "type": kind, "status": "completed", **named})
    return items


def _choose_spelling(tool: Tool) -> tuple[str, str, str]:
    return ("custom_tool_call", "input", "ctc") if tool.freeform else ("function_call", "arguments", "fc")


def _events(reply: Reply) -> Iterator[Json]:
    yield {"type": "response.created", "response": _response(reply, None)}
    yield {"type": "response.in_progress", "response": _response(reply, None)}
    items = _items(reply)
    for index, item in enumerate(items):
        at: Json = {"item_id": item["id"], "output_index": index}
        empty: Json = {"content": [], "arguments": "", "input": "", "summary": [], "status": "in_progress"}
        opened = {name: empty.get(name, value) for name, value in item.items() if name != "encrypted_content"}
        yield {"type": "response.output_item.added", "output_index": index, "item": opened}
        match item["type"]:
            case "message":
                yield from _message(reply.text, at)
            case "reasoning":
                yield from _reasoning(reply.thought, at)
            case _:
                yield from _call(item, at)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": _response(reply, items)}


def _message(text: str, at: Json) -> Iterator[Json]:
    at = {**at, "content_index": 0}
    yield {"type": "response.content_part.added", **at, "part": _part("")}
    for piece in pieces(text):
        yield {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": [], "obfuscation": "xyz"}
    yield {"type": "response.output_text.done", **at, "text": text, "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": _part(text)}


def _reasoning(text: str, at: Json) -> Iterator[Json]:
    at = {**at, "summary_index": 0}
    yield {"type": "response.reasoning_summary_part.added", **at, "part": {"type": "summary_text", "text": ""}}
    for piece in pieces(text):
        yield {"type": "response.reasoning_summary_text.delta", **at, "delta": piece}
    yield {"type": "response.reasoning_summary_text.done", **at, "text": text}
    yield {"type": "response.reasoning_summary_part.done", **at, "part": {"type": "summary_text", "text": text}}


def _call(item: Json, at: Json) -> Iterator[Json]:
    field = "arguments" if item["type"] == "function_call" else "input"
    kind = "function_call_arguments" if item["type"] == "function_call" else "custom_tool_call_input"
    payload = str(item[field])
    for piece in pieces(payload):
        yield {"type": f"response.{kind}.delta", **at, "delta": piece}
    yield {"type": f"response.{kind}.done", **at, field: payload, "name": item["name"]}


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _response(reply: Reply, output: list[Json] | None) -> Json:
    ended = output is not None
    return {
        "id": f"resp_fake{reply.number}",
        "object": "response",
        "created_at": 1794700000 + reply.number,
        "status": "completed" if ended else "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": reply.model,
        "output": output or [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": _usage(reply) if ended else None,
    }


def _usage(reply: Reply) -> Json:
    return {
        "input_tokens": reply.input_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": reply.output_tokens,
        "output_tokens_details": {"reasoning_tokens": len(reply.thought) // 4},
        "total_tokens": reply.input_tokens + reply.output_tokens,
    }
