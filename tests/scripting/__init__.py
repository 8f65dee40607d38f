"""Write what an upstream sends: a reply independent of any protocol, as the bytes of each vendor."""

from collections.abc import Sequence
from types import ModuleType
from typing import Unpack

import msgspec

from fakes.upstream import Answer, Delivery
from scripting import encode_chat, encode_gemini, encode_kiro, encode_messages, encode_responses
from scripting.replies import Part, ScriptedReply, Stop, Text, ToolCall

ENCODERS: dict[str, ModuleType] = {
    "chat": encode_chat,
    "responses": encode_responses,
    "messages": encode_messages,
    "gemini": encode_gemini,
}
JSON = "application/json"
ERROR_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
Scripted = ScriptedReply | Sequence[Part] | str


def make_reply(scripted: Scripted) -> ScriptedReply:
    """Return a reply of one text, or of these parts; one with a tool call stops for it."""
    if isinstance(scripted, ScriptedReply):
        return scripted
    parts = (Text(scripted),) if isinstance(scripted, str) else tuple(scripted)
    return ScriptedReply(parts, Stop.TOOL if any(isinstance(part, ToolCall) for part in parts) else Stop.NATURAL)


def write_reply(protocol: str, scripted: Scripted, *, stream: bool = True, **delivery: Unpack[Delivery]) -> Answer:
    """Return the answer of an upstream of this protocol; Kiro streams always."""
    reply = make_reply(scripted)
    if protocol == "kiro":
        return Answer(encode_kiro.encode_stream(reply), content_type=encode_kiro.EVENT_STREAM, **delivery)
    encoder = ENCODERS[protocol]
    if stream:
        return Answer(encoder.encode_stream(reply), **delivery)
    return Answer(encoder.encode_whole(reply), content_type=JSON, **delivery)


def write_error(status: int, message: str, code: str | None = None, **headers: str) -> Answer:
    """Return a refusal that OpenAI's and Anthropic's clients both read; header names are written with underscores."""
    kind = ERROR_TYPES.get(status, "invalid_request_error")
    body = {"type": "error", "error": {"type": kind, "message": message, "code": code, "param": None}}
    fields = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Answer(msgspec.json.encode(body), status, JSON, fields)
