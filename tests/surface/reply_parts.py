"""Short ways to play a vendor's stream event by event, and to inspect the client's reply."""

import json

from fakes.upstream import Answer
from surface.outside import GRAMMARS, sse
from surface.vendor_replies import CHAT_END, MESSAGES_USAGE, chunk, message, response
from wire_json import JsonObject

ROLE = chunk({"role": "assistant", "content": ""})
STARTED = {"type": "message_start", "message": message(stop_reason=None)}
CREATED = {"type": "response.created", "response": response(status="in_progress"), "sequence_number": 0}
STOPPED = {"type": "message_stop"}
TOOL_ENDS = {"chat": "tool_calls", "messages": "tool_use", "responses": "completed"}


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


def chat(*chunks: JsonObject, finish: str = "stop") -> Answer:
    return Answer(sse(ROLE, *chunks, chunk({}, finish), *CHAT_END))


def messages(*events: JsonObject, stop: str = "end_turn") -> Answer:
    return Answer(sse(STARTED, *events, make_message_end(stop), STOPPED))


def calls_in(client: str, reply: JsonObject) -> list[tuple[str, str, object]]:
    """Id, name and arguments of every call, in order."""
    match client:
        case "chat":
            found = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in reply["calls"]]
        case "responses":
            items = [item for item in reply["output"] if item["type"] == "function_call"]
            found = [(item["call_id"], item["name"], item["arguments"]) for item in items]
        case _:
            blocks = [part for part in reply["content"] if part["type"] == "tool_use"]
            return [(part["id"], part["name"], part["input"]) for part in blocks]
    return [(id, name, json.loads(arguments)) for id, name, arguments in found]


def text_in(client: str, reply: JsonObject) -> str | None:
    match client:
        case "chat":
            text: str | None = reply["content"]
            return text
        case "responses":
            parts = [part for item in reply["output"] if item["type"] == "message" for part in item["content"]]
        case _:
            parts = [part for part in reply["content"] if part["type"] == "text"]
    return "".join(part["text"] for part in parts) or None


def read_broken_text(client: str, body: bytes) -> str:
    """Return the text of a stream before its error; raises Illegal if it ends otherwise."""
    text: str = GRAMMARS[client].fold_broken(body)[0]
    return text


def end_in(client: str, reply: JsonObject) -> str:
    ended: str = reply[{"chat": "finish", "messages": "stop", "responses": "status"}[client]]
    return ended
