"""Parse a client's Chat request into a hub request."""

import msgspec

from dragoman.framing.fields import BadField, Fields, read_body
from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.request import (
    Document,
    Ext,
    Foreign,
    Format,
    Image,
    Json,
    Part,
    Reasoning,
    Refusal,
    Request,
    Role,
    Shape,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from dragoman.protocols.chat.parse_content import read_content, read_thoughts, unread, unread_with
from dragoman.protocols.chat.parse_tools import read_choice, read_tools
from dragoman.protocols.chat.wire import NAME

_ROLES = {"system": Role.SYSTEM, "developer": Role.DEVELOPER, "user": Role.USER}

# Fields of the hub that Chat spells otherwise; the rest have the same name in both.
_SPELLINGS = {
    "turns": "messages",
    "parallel": "parallel_tool_calls",
    "reasoning": "reasoning_effort",
    "format": "response_format",
    "cache_key": "prompt_cache_key",
}
_POINTERS = {field: f"/{_SPELLINGS.get(field, field)}" for field in Request.__struct_fields__}

# Values that mean what leaving the field out means.
_DEFAULTS: dict[str, Json] = {
    "store": False,
    "logit_bias": {},
    "prompt_cache_options/mode": "implicit",
    "prompt_cache_options/ttl": "30m",
}


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
    return Turn(Role.ASSISTANT, tuple(parts), message.at, _without_sdk_defaults(unread(message)))


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


def _without_sdk_defaults(ext: Ext) -> Ext:
    """Without what SDKs write when they send their own message back."""
    return {key: value for key, value in ext.items() if not (key in ("annotations", "parsed") and not value)}


def parse(body: bytes, ledger: Ledger) -> Request:
    """Reads a client's body; what cannot be meant raises Refused."""
    try:
        raw = read_body(body)
        return _read_request(Fields(raw), raw, ledger)
    except BadField as bad:
        raise BadRequest(bad.at, bad.message) from bad


def _read_request(body: Fields, raw: dict[str, Json], ledger: Ledger) -> Request:
    if body.has("input") and not body.has("messages"):
        raise BadField("/messages", "is required; a body with `input` belongs to /v1/responses")
    _refuse_speech(body)
    stream = body.flag("stream", False)
    include_usage, stream_ext = _read_stream_options(body)
    wanted, format_ext = _read_format(body)
    request = Request(
        protocol=NAME,
        model=body.need_text("model"),
        turns=read_turns(_read_messages(body)),
        tools=read_tools(body),
        tool_choice=read_choice(body),
        parallel=body.flag("parallel_tool_calls"),
        max_tokens=_read_cap(body, ledger),
        temperature=body.number("temperature"),
        top_p=body.number("top_p"),
        top_k=body.integer("top_k"),
        frequency_penalty=body.number("frequency_penalty") or None,
        presence_penalty=body.number("presence_penalty") or None,
        seed=body.integer("seed"),
        stop=_read_stop(body),
        n=_read_count(body),
        logprobs=body.flag("logprobs") or None,
        top_logprobs=body.integer("top_logprobs"),
        reasoning=_read_reasoning(body),
        format=wanted,
        verbosity=_unless(body.text("verbosity"), "medium"),
        cache_key=body.text("prompt_cache_key"),
        user=body.text("user"),
        safety_identifier=body.text("safety_identifier"),
        metadata=_read_metadata(body),
        service_tier=_unless(body.text("service_tier"), "auto"),
        stream=stream,
        include_usage=include_usage,
        raw=raw,
    )
    cache = body.obj("prompt_cache_options")
    ext = unread(body) | stream_ext | format_ext | (_below(cache) if cache is not None else {})
    told = {key: value for key, value in ext.items() if key not in _DEFAULTS or value != _DEFAULTS[key]}
    return msgspec.structs.replace(request, where=_where(body), ext=told)


class _Shape(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw(b"null")
    input: msgspec.Raw = msgspec.Raw(b"null")


_shape = msgspec.json.Decoder(_Shape)


def body_protocol(body: bytes) -> str | None:
    """Return "responses" for a body of that shape on the path of Chat: Cursor posts such, and awaits Chat's replies."""
    if b'"input"' not in body:
        return None
    try:
        shape = _shape.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return "responses" if bytes(shape.messages) == b"null" != bytes(shape.input) else None


def _read_messages(body: Fields) -> list[Fields]:
    messages = body.need_objects("messages")
    if not messages:
        raise body.bad("messages", "must hold at least one message")
    return messages


def _where(body: Fields) -> dict[str, str]:
    where = _POINTERS.copy()
    if body.has("max_completion_tokens") or not body.has("max_tokens"):
        where["max_tokens"] = "/max_completion_tokens"
    if not body.has("tool_choice") and body.has("function_call"):
        where["tool_choice"] = "/function_call"
    return where


def _refuse_speech(body: Fields) -> None:
    modalities = body.items("modalities") or []
    if any(modality != "text" for modality in modalities):
        raise BadField("/modalities", "asks for an output other than text, which cannot be translated")
    if body.has("audio"):
        raise BadField("/audio", "asks for a spoken reply, which cannot be translated")


def _read_stream_options(body: Fields) -> tuple[bool, Ext]:
    options = body.obj("stream_options")
    if options is None:
        return False, {}
    include_usage = options.flag("include_usage", False)
    options.flag("include_obfuscation")  # padding against eavesdroppers: says nothing
    return include_usage, _below(options)


def _read_cap(body: Fields, ledger: Ledger) -> int | None:
    older, cap = body.integer("max_tokens"), body.integer("max_completion_tokens")
    if older is not None and cap is not None and older != cap:
        ledger.note_dropped("/max_tokens", "max_completion_tokens wins")
    return older if cap is None else cap


def _read_stop(body: Fields) -> tuple[str, ...]:
    value = body.raw("stop")
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise body.bad("stop", "must be a string or an array of strings")


def _read_count(body: Fields) -> int | None:
    count = body.integer("n")
    if count is not None and count < 1:
        raise body.bad("n", "must be at least 1")
    return None if count == 1 else count


def _read_reasoning(body: Fields) -> Reasoning | None:
    effort = body.text("reasoning_effort")
    return None if effort is None else Reasoning("/reasoning_effort", effort=effort)


def _read_format(body: Fields) -> tuple[Format | None, Ext]:
    wanted = body.obj("response_format")
    if wanted is None:
        return None, {}
    kind = wanted.one_of("type", ("text", "json_object", "json_schema")) or "text"
    if kind == "text":
        return None, _below(wanted)
    if kind == "json_object":
        schema = wanted.raw("schema")  # llama.cpp takes one here
        shape = Shape.JSON if schema is None else Shape.SCHEMA
        return Format(shape, wanted.at, schema=schema), _below(wanted)
    inner = wanted.need_obj("json_schema")
    schema_format = Format(
        Shape.SCHEMA,
        wanted.at,
        name=inner.need_text("name"),
        description=inner.text("description"),
        schema=inner.raw("schema"),
        strict=inner.flag("strict"),
    )
    return schema_format, _below(wanted) | _below(inner)


def _below(fields: Fields) -> Ext:
    """What was not read of an object somewhere below the body."""
    return {f"{fields.at[1:]}/{name}": value for name, value in unread(fields).items()}


def _read_metadata(body: Fields) -> dict[str, Json] | None:
    metadata = body.obj("metadata")
    return (metadata.rest() or None) if metadata is not None else None


def _unless(value: str | None, default: str) -> str | None:
    return None if value == default else value
