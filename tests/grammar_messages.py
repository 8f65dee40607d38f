"""The grammar of a Messages stream, from the protocol alone: fold the bytes into a message."""

import json

from grammar_sse import Illegal, blocks, read, require
from wire_json import JsonObject

DELTAS = {
    "text": {"text_delta", "citations_delta"},
    "tool_use": {"input_json_delta"},
    "server_tool_use": {"input_json_delta"},
    "mcp_tool_use": {"input_json_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "redacted_thinking": set(),
    "web_search_tool_result": set(),
    "code_execution_tool_result": set(),
    "mcp_tool_result": set(),
}
STOPS = {
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
}
EVENTS = {
    "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
    "message_stop", "ping", "error",
}  # fmt: skip


def fold(body: bytes) -> JsonObject:
    found = _events(body)
    require([event["type"] for event in found[-2:]] == ["message_delta", "message_stop"], f"the end: {found[-2:]}")
    folding = _Folding(found[0])
    for event in found[1:-2]:
        folding.take(event)
    return folding.end(found[-2])


def fold_broken(body: bytes) -> tuple[str, JsonObject]:
    """A stream that ends in an error: the text before it, and the error."""
    found = _events(body)
    check_error(found[-1])
    if len(found) == 1:
        return "", found[-1]["error"]
    folding = _Folding(found[0])
    for event in found[1:-1]:
        require(event["type"] not in ("message_delta", "message_stop"), f"{event['type']} before an error")
        folding.take(event)
    return "".join(block.get("text", "") for block in folding.content), found[-1]["error"]


def check_error(body: JsonObject) -> None:
    require(body["type"] == "error", f"no error: {body}")
    error = body["error"]
    require(isinstance(error["type"], str) and isinstance(error["message"], str) and bool(error["message"]), f"{error}")


def _events(body: bytes) -> list[JsonObject]:
    found = []
    for name, data in blocks(body):
        require(name in EVENTS, f"an event named {name}")
        event = read(data)
        require(event["type"] == name, f"{name} is {event['type']}")
        if name != "ping":
            found.append(event)
    return found


class _Folding:
    def __init__(self, start: JsonObject) -> None:
        require(start["type"] == "message_start", f"the first event is {start['type']}")
        message = start["message"]
        require(message["type"] == "message" and message["role"] == "assistant", f"message: {message}")
        require(isinstance(message["id"], str) and message["id"].startswith("msg_"), f"id {message['id']}")
        require(message["content"] == [] and message["stop_reason"] is None, f"message: {message}")
        require(message["stop_sequence"] is None, "stop_sequence")
        check_usage(message["usage"])
        self.message = message
        self.content: list[JsonObject] = []
        self.arguments = ""
        self.kinds: list[str] = []
        self.open = False

    def take(self, event: JsonObject) -> None:
        match event["type"]:
            case "content_block_start":
                self._start(event)
            case "content_block_delta":
                self._delta(event)
            case "content_block_stop":
                self._stop(event)
            case kind:
                raise Illegal(f"{kind} among the blocks")

    def _start(self, event: JsonObject) -> None:
        require(not self.open, "a block begins within another")
        require(event["index"] == len(self.content), f"index {event['index']} after {len(self.content)} blocks")
        block = event["content_block"]
        require(block["type"] in DELTAS, f"a block of type {block['type']}")
        match block["type"]:
            case "text":
                require(block["text"] == "", f"{block}")
            case "thinking":
                require(block["thinking"] == "" and block["signature"] == "", f"{block}")
            case "redacted_thinking":
                require(bool(block["data"]), f"{block}")
            case "tool_use" | "server_tool_use":
                require(block["input"] == {} and bool(block["id"]) and bool(block["name"]), f"{block}")
        self.content.append(dict(block))
        self.arguments = ""
        self.kinds = []
        self.open = True

    def _delta(self, event: JsonObject) -> None:
        require(self.open and event["index"] == len(self.content) - 1, f"a delta of another block: {event}")
        block, delta = self.content[-1], event["delta"]
        kind = delta["type"]
        require(kind in DELTAS[block["type"]], f"{kind} in a block of {block['type']}")
        require("signature_delta" not in self.kinds, f"{kind} after the signature")
        self.kinds.append(kind)
        match kind:
            case "text_delta":
                require(bool(delta["text"]), "an empty text_delta")
                block["text"] += delta["text"]
            case "thinking_delta":
                block["thinking"] += delta["thinking"]
            case "signature_delta":
                block["signature"] = delta["signature"]
            case "citations_delta":
                block["citations"] = [*(block["citations"] or ()), delta["citation"]]
            case "input_json_delta":
                self.arguments += delta["partial_json"]

    def _stop(self, event: JsonObject) -> None:
        require(self.open and event["index"] == len(self.content) - 1, f"another block stops: {event}")
        self.open = False
        block = self.content[-1]
        require(block["type"] != "text" or bool(block["text"]), "a text block without text")
        if self.arguments:
            block["input"] = self.arguments

    def end(self, delta: JsonObject) -> JsonObject:
        require(not self.open, "message_delta within a block")
        changes = delta["delta"]
        require(changes["stop_reason"] in STOPS, f"stop_reason {changes['stop_reason']}")
        check_usage(delta["usage"])
        for block in self.content:
            if isinstance(block.get("input"), str):
                block["input"] = _object(block["input"], changes["stop_reason"])
        return assemble(self.message, self.content, changes, {**self.message["usage"], **delta["usage"]})


def _object(text: str, stop: str) -> object:
    try:
        value = json.loads(text)
    except ValueError:
        require(
            stop in ("max_tokens", "model_context_window_exceeded", "refusal"),
            f"broken arguments: {text[:100]}",
        )
        return text
    require(isinstance(value, dict), f"arguments are no object: {text[:100]}")
    return value


def assemble(message: JsonObject, content: list[JsonObject], ending: JsonObject, usage: JsonObject) -> JsonObject:
    calls = any(block["type"] == "tool_use" for block in content)
    require((ending["stop_reason"] == "tool_use") <= calls, "tool_use without a call")
    require(not (ending["stop_reason"] == "end_turn" and calls), "a call, but end_turn")
    require((ending["stop_reason"] == "stop_sequence") or ending["stop_sequence"] is None, "a stop_sequence not hit")
    return {
        "model": message["model"],
        "content": [_plain(block) for block in content],
        "stop": ending["stop_reason"],
        "sequence": ending["stop_sequence"],
        "details": ending.get("stop_details"),
        "usage": usage,
    }


def _plain(block: JsonObject) -> JsonObject:
    """What is minted again for each reply is not compared."""
    hidden = {"id", "tool_use_id"} if block["type"] != "tool_use" else set()
    return {key: value for key, value in block.items() if key not in hidden}


def check_usage(usage: JsonObject) -> None:
    for field in ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"):
        require(isinstance(usage[field], int) and usage[field] >= 0, f"{field}: {usage}")


def whole(body: bytes) -> JsonObject:
    message = read(body.decode())
    require(message["type"] == "message" and message["role"] == "assistant", "type or role")
    require(message["id"].startswith("msg_"), f"id {message['id']}")
    require(message["stop_reason"] in STOPS, f"stop_reason {message['stop_reason']}")
    check_usage(message["usage"])
    for block in message["content"]:
        require(block["type"] in DELTAS, f"a block of type {block['type']}")
        require(block["type"] != "text" or bool(block["text"]), "a text block without text")
        require(block["type"] != "tool_use" or isinstance(block["input"], dict), "input is no object")
    return assemble(message, message["content"], message, message["usage"])


__all__ = ["Illegal", "check_error", "fold", "fold_broken", "whole"]
