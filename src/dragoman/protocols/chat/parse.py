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
from dragoman.protocols.chat.parse_content import (
    parse_call_signature,
    parse_content,
    parse_reasoning,
    unread_fields,
    unread_fields_with,
)
from dragoman.protocols.chat.parse_tools import parse_choice, parse_tools
from dragoman.protocols.chat.wire import NAME

_ROLES = {"system": Role.SYSTEM, "developer": Role.DEVELOPER, "user": Role.USER}

# Fields that Chat spells differently from the hub; all others have the same name.
_SPELLINGS = {
    "turns": "messages",
    "parallel": "parallel_tool_calls",
    "reasoning": "reasoning_effort",
    "format": "response_format",
    "cache_key": "prompt_cache_key",
}
_POINTERS = {field: f"/{_SPELLINGS.get(field, field)}" for field in Request.__struct_fields__}

# Values that mean the same as leaving the field out.
_DEFAULTS: dict[str, Json] = {
    "store": False,
    "logit_bias": {},
    "prompt_cache_options/mode": "implicit",
    "prompt_cache_options/ttl": "30m",
}


def parse_turns(messages: list[Fields]) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    custom: set[str] = set()  # ids of custom tools' calls: other protocols give their results a type of their own
    for message in messages:
        turn = _read_turn(message, custom)
        for part in turn.parts:
            if type(part) is ToolCall and part.custom:
                custom.add(part.id)
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
    parts = parse_content(message)
    return Turn(_ROLES[role], parts, message.at, unread_fields(message))


def _read_assistant(message: Fields) -> Turn:
    if message.has("audio"):
        raise BadField(message.pointer("audio"), "refers to an audio reply, which is not stored here; send its text")
    parts: list[Part] = [*parse_reasoning(message), *parse_content(message)]
    refusal = message.text("refusal")
    if refusal:
        parts.append(Refusal(refusal, message.pointer("refusal")))
    for call in message.objects("tool_calls") or ():
        parts += [*parse_call_signature(call), _read_call(call)]
    legacy = message.obj("function_call")
    if legacy is not None:
        parts.append(_read_legacy_call(legacy, message.at))
    return Turn(Role.ASSISTANT, tuple(parts), message.at, _without_sdk_defaults(unread_fields(message)))


def _read_call(call: Fields) -> Part:
    kind = call.text("type", "function")
    call_id = call.text("id", "")
    called = call.obj(kind)
    if called is None or kind not in ("function", "custom"):
        return Foreign(kind, {"type": kind, "id": call_id, **call.rest()}, call.at)
    custom = kind == "custom"
    name = called.need_text("name")
    arguments = called.text("input", "") if custom else _read_arguments(called)
    ext = unread_fields_with(call, kind, called)
    return ToolCall(call_id, name, arguments, call.at, custom=custom, ext=ext)


def _read_legacy_call(call: Fields, at: str) -> ToolCall:
    call_id = "call_" + at.rpartition("/")[2]
    name, arguments = call.need_text("name"), _read_arguments(call)
    return ToolCall(call_id, name, arguments, call.at, ext=unread_fields(call))


def _read_arguments(called: Fields) -> str:
    """Return arguments as JSON text; some clients send the object itself, or nothing for no arguments."""
    if isinstance(called.raw("arguments"), dict):
        return msgspec.json.encode(called.raw("arguments")).decode()
    return called.text("arguments") or "{}"


def _read_result(message: Fields, custom: set[str]) -> Turn:
    call_id = message.need_text("tool_call_id")
    content = tuple(_result_part(part) for part in parse_content(message))
    result = ToolResult(call_id, content, message.at, custom=call_id in custom, ext=unread_fields(message))
    return Turn(Role.USER, (result,), message.at)


def _result_part(part: Part) -> Text | Image | Document | Foreign:
    match part:
        case Text() | Image() | Document() | Foreign():
            return part
        case _:
            raise BadField(part.at, "is not allowed in a tool result")


def _without_sdk_defaults(ext: Ext) -> Ext:
    """Leave out the empty fields that SDKs add when they return a message."""
    return {key: value for key, value in ext.items() if not (key in ("annotations", "parsed") and not value)}


def parse(body: bytes, ledger: Ledger) -> Request:
    """Parse a client's body; raises BadRequest for what no upstream could understand."""
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
    format, format_ext = _read_format(body)
    request = Request(
        protocol=NAME,
        model=body.need_text("model"),
        turns=parse_turns(_read_messages(body)),
        tools=parse_tools(body),
        tool_choice=parse_choice(body),
        parallel=body.flag("parallel_tool_calls"),
        max_tokens=_read_max_tokens(body, ledger),
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
        format=format,
        verbosity=_none_if(body.text("verbosity"), "medium"),
        cache_key=body.text("prompt_cache_key"),
        user=body.text("user"),
        safety_identifier=body.text("safety_identifier"),
        metadata=_read_metadata(body),
        service_tier=_none_if(body.text("service_tier"), "auto"),
        stream=stream,
        include_usage=include_usage,
        raw=raw,
    )
    cache = body.obj("prompt_cache_options")
    ext = unread_fields(body) | stream_ext | format_ext | (_unread_below(cache) if cache is not None else {})
    meaningful = {key: value for key, value in ext.items() if key not in _DEFAULTS or value != _DEFAULTS[key]}
    return msgspec.structs.replace(request, where=_where(body), ext=meaningful)


class _Shape(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw(b"null")
    input: msgspec.Raw = msgspec.Raw(b"null")


_shape_decoder = msgspec.json.Decoder(_Shape)


def body_protocol(body: bytes) -> str | None:
    """Return "responses" for a body of that protocol: Cursor posts such to Chat's path and expects Chat replies."""
    if body.find(b'"input"') < 0:
        return None
    try:
        shape = _shape_decoder.decode(body)
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
    modalities = body.items("modalities")
    if modalities and any(modality != "text" for modality in modalities):
        raise BadField("/modalities", 'must be ["text"]: other outputs cannot be translated')
    if body.has("audio"):
        raise BadField("/audio", "must be left out: audio replies cannot be translated")


def _read_stream_options(body: Fields) -> tuple[bool, Ext]:
    options = body.obj("stream_options")
    if options is None:
        return False, {}
    include_usage = options.flag("include_usage", False)
    options.flag("include_obfuscation")  # padding against traffic analysis: no effect on the reply
    return include_usage, _unread_below(options)


def _read_max_tokens(body: Fields, ledger: Ledger) -> int | None:
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
    format = body.obj("response_format")
    if format is None:
        return None, {}
    kind = format.one_of("type", ("text", "json_object", "json_schema")) or "text"
    if kind == "text":
        return None, _unread_below(format)
    if kind == "json_object":
        schema = format.raw("schema")  # llama.cpp takes one here
        shape = Shape.JSON if schema is None else Shape.SCHEMA
        return Format(shape, format.at, schema=schema), _unread_below(format)
    inner = format.need_obj("json_schema")
    schema_format = Format(
        Shape.SCHEMA,
        format.at,
        name=inner.need_text("name"),
        description=inner.text("description"),
        schema=inner.raw("schema"),
        strict=inner.flag("strict"),
    )
    return schema_format, _unread_below(format) | _unread_below(inner)


def _unread_below(fields: Fields) -> Ext:
    """Return the unread_fields fields of an object below the body, by pointers from the body."""
    return {f"{fields.at[1:]}/{name}": value for name, value in unread_fields(fields).items()}


def _read_metadata(body: Fields) -> dict[str, Json] | None:
    metadata = body.obj("metadata")
    return (metadata.rest() or None) if metadata is not None else None


def _none_if(value: str | None, default: str) -> str | None:
    return None if value == default else value
