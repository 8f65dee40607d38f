"""Replies with tool calls that no client could run, as each upstream would write them, streamed and whole."""

from dataclasses import dataclass

import msgspec

from scripting import encode_chat, encode_messages, encode_responses
from scripting.replies import ScriptedReply, Stop, Text, ToolCall

ENCODERS = {"chat": encode_chat, "responses": encode_responses, "messages": encode_messages}


@dataclass(frozen=True)
class BrokenCall:
    streamed: bytes
    whole: bytes | None = None  # None: a whole reply cannot be broken like this


def _make_call(name: str, arguments: str, upstream: str) -> BrokenCall:
    scripted = ScriptedReply((Text("Let me look."), ToolCall("call_a", name, arguments)), Stop.TOOL)
    encoder = ENCODERS[upstream]
    return BrokenCall(encoder.encode_stream(scripted), encoder.encode_whole(scripted))


def _messages_calling(name: str, arguments: str) -> BrokenCall:
    """As `_calling`; a whole Messages reply has the input as JSON, so only one that is no object can be written."""
    scripted = ScriptedReply((Text("Let me look."), ToolCall("call_a", name, '{"a":1}')), Stop.TOOL)
    streamed = encode_messages.encode_stream(
        ScriptedReply((Text("Let me look."), ToolCall("call_a", name, arguments)), Stop.TOOL)
    )
    whole = encode_messages.encode_whole(scripted)
    try:
        msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return BrokenCall(streamed)
    return BrokenCall(streamed, whole.replace(b'{"a":1}', arguments.encode()))


def _messages_unclosed() -> BrokenCall:
    body = encode_messages.encode_stream(ScriptedReply((ToolCall("call_a", "weather", ""),), Stop.TOOL))
    events = [
        event for event in body.split(b"\n\n") if b"content_block_stop" not in event and b"input_json" not in event
    ]
    assert len(events) < body.count(b"\n\n") + 1
    return BrokenCall(b"\n\n".join(events))


def _responses_unclosed(name: str = "weather") -> BrokenCall:
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_a", "name": name, "arguments": ""}
    events = [
        {"type": "response.created", "response": {"id": "resp_1", "model": "vendor-model", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": []}},
    ]
    return BrokenCall(b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in events))


BROKEN: dict[tuple[str, str], BrokenCall] = {
    ("chat", "arguments that break off"): _make_call("weather", '{"city":"Z', "chat"),
    ("chat", "arguments that are a list"): _make_call("weather", "[1]", "chat"),
    ("chat", "arguments that are text"): _make_call("weather", "city=Bonn", "chat"),
    ("chat", "no name"): _make_call("", "{}", "chat"),
    ("responses", "arguments that break off"): _make_call("weather", '{"city":"Z', "responses"),
    ("responses", "arguments that are a list"): _make_call("weather", "[1]", "responses"),
    ("responses", "no name"): _make_call("", "{}", "responses"),
    ("responses", "never finished"): _responses_unclosed(),
    ("responses", "never named nor finished"): _responses_unclosed(""),
    ("messages", "arguments that break off"): _messages_calling("weather", '{"city":"Z'),
    ("messages", "arguments that are a list"): _messages_calling("weather", "[1]"),
    ("messages", "arguments that are a number"): _messages_calling("weather", "7"),
    ("messages", "no name"): _messages_calling("", "{}"),
    ("messages", "never closed"): _messages_unclosed(),
}
