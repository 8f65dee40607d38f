"""Write a reply as a Responses server would send it, from the vendor's reference."""

from collections.abc import Iterator

import msgspec

from scripting.replies import (
    Ending,
    Part,
    Refusal,
    ScriptedReply,
    Stop,
    Text,
    Thinking,
    Tokens,
    ToolCall,
    group_calls,
    interleave,
    pieces,
)

Json = dict[str, object]

INCOMPLETE = {Stop.CAP: "max_output_tokens", Stop.FILTERED: "content_filter"}
ERROR = {"type": "server_error", "code": "server_error", "message": "The engine overheated.", "param": None}


def encode_stream(scripted: ScriptedReply) -> bytes:
    out = []
    for number, event in enumerate(_events(scripted)):
        data = msgspec.json.encode({**event, "sequence_number": number})
        out.append(b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), data))
    return b"".join(out)


def encode_whole(scripted: ScriptedReply) -> bytes:
    return msgspec.json.encode(_response(scripted, [_item(place, part) for place, part in enumerate(scripted.parts)]))


def _response(scripted: ScriptedReply, output: list[Json] | None) -> Json:
    """The response as it stands: under way without output, else as it ended."""
    reason = INCOMPLETE.get(scripted.stop)
    ended = output is not None
    return {
        "id": "resp_fake1",
        "object": "response",
        "created_at": 1794700000,
        "status": "in_progress" if not ended else "incomplete" if reason else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if ended and reason else None,
        "instructions": None,
        "metadata": {},
        "model": "vendor-model",
        "output": output or [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": _usage(scripted.tokens) if ended else None,
    }


def _events(scripted: ScriptedReply) -> Iterator[Json]:
    yield {"type": "response.created", "response": _response(scripted, None)}
    yield {"type": "response.in_progress", "response": _response(scripted, None)}
    place = 0
    for run in group_calls(scripted.parts):
        match run[0]:
            case Text() as part:
                yield from _message(place, part, "output_text")
            case Refusal() as part:
                yield from _message(place, part, "refusal")
            case Thinking():
                yield from _reasoning(place, run[0])
            case ToolCall():
                yield from _calls(place, run)
        place += len(run)
    yield from _end(scripted)


def _message(place: int, part: Text | Refusal, kind: str) -> Iterator[Json]:
    text = part.text
    at = {"item_id": f"msg_{place}", "output_index": place, "content_index": 0}
    field = "text" if kind == "output_text" else "refusal"
    extra: dict[str, list[object]] = {"logprobs": []} if kind == "output_text" else {}
    yield _make_added_event(place, {**_item(place, part), "status": "in_progress", "content": []})
    yield {"type": "response.content_part.added", **at, "part": _part(part, "")}
    for piece in pieces(text, part.size):
        yield {"type": f"response.{kind}.delta", **at, "delta": piece, **extra}
    yield {"type": f"response.{kind}.done", **at, field: text, **extra}
    yield {"type": "response.content_part.done", **at, "part": _part(part, text)}
    yield _make_done_event(place, _item(place, part))


def _reasoning(place: int, part: Part) -> Iterator[Json]:
    assert isinstance(part, Thinking)
    at = {"item_id": f"rs_{place}", "output_index": place, "summary_index": 0}
    yield _make_added_event(place, {"id": f"rs_{place}", "type": "reasoning", "summary": []})
    if part.text:
        yield {"type": "response.reasoning_summary_part.added", **at, "part": {"type": "summary_text", "text": ""}}
        for piece in pieces(part.text):
            yield {"type": "response.reasoning_summary_text.delta", **at, "delta": piece}
        yield {"type": "response.reasoning_summary_text.done", **at, "text": part.text}
        done = {"type": "summary_text", "text": part.text}
        yield {"type": "response.reasoning_summary_part.done", **at, "part": done}
    yield _make_done_event(place, _item(place, part))


def _calls(first: int, run: list[Part]) -> Iterator[Json]:
    for place, call in enumerate(run, first):
        yield _make_added_event(place, {**_item(place, call), "status": "in_progress", "arguments": ""})
    for offset, piece in interleave(run):
        at = {"item_id": f"fc_{first + offset}", "output_index": first + offset}
        yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
    for place, call in enumerate(run, first):
        assert isinstance(call, ToolCall)
        at = {"item_id": f"fc_{place}", "output_index": place}
        yield {"type": "response.function_call_arguments.done", **at, "name": call.name, "arguments": call.arguments}
        yield _make_done_event(place, _item(place, call))


def _end(scripted: ScriptedReply) -> Iterator[Json]:
    match scripted.ending:
        case Ending.PROPER:
            ended = _response(scripted, [_item(place, part) for place, part in enumerate(scripted.parts)])
            yield {"type": f"response.{ended['status']}", "response": ended}
        case Ending.ERROR:
            yield {"type": "error", "error": ERROR}
            failed = {"code": "server_error", "message": ERROR["message"]}
            yield {
                "type": "response.failed",
                "response": {**_response(scripted, None), "status": "failed", "error": failed},
            }
        case Ending.NONE:
            return


def _item(place: int, part: Part) -> Json:
    match part:
        case Text(text) | Refusal(text):
            message = {"id": f"msg_{place}", "type": "message", "status": "completed", "role": "assistant"}
            return {**message, "content": [_part(part, text)]}
        case Thinking(text, seal):
            summary = [{"type": "summary_text", "text": text}] if text else []
            item: Json = {"id": f"rs_{place}", "type": "reasoning", "summary": summary}
            return {**item, "encrypted_content": seal} if seal else item
        case ToolCall(id, name, arguments):
            call = {"id": f"fc_{place}", "type": "function_call", "status": "completed"}
            return {**call, "call_id": id, "name": name, "arguments": arguments}


def _part(part: Part, text: str) -> Json:
    if isinstance(part, Refusal):
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _make_added_event(place: int, item: Json) -> Json:
    return {"type": "response.output_item.added", "output_index": place, "item": item}


def _make_done_event(place: int, item: Json) -> Json:
    return {"type": "response.output_item.done", "output_index": place, "item": item}


def _usage(tokens: Tokens) -> Json:
    return {
        "input_tokens": tokens.input,
        "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": tokens.written},
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.input + tokens.output,
    }
