"""A conversation as Chat writes it: messages come in, turns go out."""

import msgspec

from dragoman.framing.fields import BadField, Fields
from dragoman.hub.request import Document, Ext, Foreign, Image, Part, Refusal, Role, Text, ToolCall, ToolResult, Turn
from dragoman.protocols.chat.parts import read_content, unread, unread_with
from dragoman.protocols.chat.thoughts import read_thoughts

_ROLES = {"system": Role.SYSTEM, "developer": Role.DEVELOPER, "user": Role.USER}


def read_turns(messages: list[Fields]) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    custom: set[str] = set()  # the calls of custom tools: their results must be told apart in other protocols
    for message in messages:
        turn = _read_turn(message, custom)
        custom |= {part.id for part in turn.parts if isinstance(part, ToolCall) and part.custom}
        turns.append(turn)
    return tuple(turns)


def _read_turn(message: Fields, custom: set[str]) -> Turn:
    role = message.need_text("role")
    if role == "assistant":
        return _read_assistant(message)
    if role == "tool":
        return _read_result(message, custom)
    if role == "function":
        raise BadField(message.pointer("role"), "is the deprecated 'function'; send the result with the role 'tool'")
    if role not in _ROLES:
        raise message.bad("role", "must be system, developer, user, assistant or tool")
    parts = read_content(message)
    return Turn(_ROLES[role], parts, message.at, unread(message))


def _read_assistant(message: Fields) -> Turn:
    if message.has("audio"):
        raise BadField(message.pointer("audio"), "names an earlier spoken reply, which this gateway does not keep")
    parts: list[Part] = [*read_thoughts(message), *read_content(message)]
    refusal = message.text("refusal")
    if refusal:
        parts.append(Refusal(refusal, message.pointer("refusal")))
    parts += [_read_call(call) for call in message.objects("tool_calls") or ()]
    legacy = message.obj("function_call")
    if legacy is not None:
        parts.append(_read_legacy_call(legacy, message.at))
    return Turn(Role.ASSISTANT, tuple(parts), message.at, _told(unread(message)))


def _read_call(call: Fields) -> Part:
    kind = call.text("type", "function")
    call_id = call.text("id", "")
    called = call.obj(kind)
    if called is None or kind not in ("function", "custom"):
        return Foreign(kind, {"type": kind, "id": call_id, **call.rest()}, call.at)
    custom = kind == "custom"
    name = called.need_text("name")
    arguments = called.text("input", "") if custom else _read_arguments(called)
    ext = unread_with(call, kind, called)
    return ToolCall(call_id, name, arguments, call.at, custom=custom, ext=ext)


def _read_legacy_call(call: Fields, at: str) -> ToolCall:
    made_up = "call_" + at.rpartition("/")[2]
    name, arguments = call.need_text("name"), _read_arguments(call)
    return ToolCall(made_up, name, arguments, call.at, ext=unread(call))


def _read_arguments(called: Fields) -> str:
    """Text of an object; some clients send the object itself, or nothing for no arguments."""
    if isinstance(called.raw("arguments"), dict):
        return msgspec.json.encode(called.raw("arguments")).decode()
    return called.text("arguments") or "{}"


def _read_result(message: Fields, custom: set[str]) -> Turn:
    call_id = message.need_text("tool_call_id")
    content = tuple(_result_part(part) for part in read_content(message))
    result = ToolResult(call_id, content, message.at, custom=call_id in custom, ext=unread(message))
    return Turn(Role.USER, (result,), message.at)


def _result_part(part: Part) -> Text | Image | Document | Foreign:
    match part:
        case Text() | Image() | Document() | Foreign():
            return part
        case _:
            raise BadField(part.at, "cannot stand in a tool's result")


def _told(ext: Ext) -> Ext:
    """Without what SDKs write when they send their own message back."""
    return {key: value for key, value in ext.items() if not (key in ("annotations", "parsed") and not value)}
