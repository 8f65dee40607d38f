"""Parse a client's Chat request into a hub request."""

import msgspec

from dragoman.translate.framing.fields import (
    BadField,
    Fields,
    Head,
    make_call_head,
    read_body,
    read_head,
    unread_fields,
)
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import CallHead
from dragoman.translate.hub.request import (
    NO_ATTRIBUTION,
    NO_SAMPLING,
    Attribution,
    Custom,
    Ext,
    Format,
    Function,
    Grammar,
    Hosted,
    Json,
    Pick,
    Reasoning,
    ReplyExtras,
    Request,
    Sampling,
    Shape,
    Tool,
    ToolChoice,
)
from dragoman.translate.protocols.chat.parse_turns import parse_turns
from dragoman.translate.protocols.chat.wire import NAME, SEARCH_OPTIONS

_MAX_CHOICES = 128  # OpenAI's limit

# Fields that Chat spells differently from the hub; all others have the same name.
_SPELLINGS = {
    "turns": "messages",
    "parallel": "parallel_tool_calls",
    "reasoning": "reasoning_effort",
    "format": "response_format",
    "cache_key": "prompt_cache_key",
}
_OLDER_POINTERS = {field: f"/{spelling}" for field, spelling in _SPELLINGS.items()}
_POINTERS = _OLDER_POINTERS | {"max_tokens": "/max_completion_tokens"}

# Values that mean the same as leaving the field out.
_DEFAULTS: dict[str, Json] = {
    "store": False,
    "logit_bias": {},
    "prompt_cache_options/mode": "implicit",
    "prompt_cache_options/ttl": "30m",
}
_WITH_USAGE, _WITHOUT_USAGE = ReplyExtras(), ReplyExtras(include_usage=False)
_WEB_SEARCH = "web_search"
_OLDER_CHOICE = "/function_call"
_PICKS = {"auto": Pick.AUTO, "none": Pick.NONE, "required": Pick.REQUIRED, "any": Pick.REQUIRED}


# The fields of which `parse_settings` makes its settings.
SETTINGS = frozenset(
    (
        *("modalities", "audio", "tool_choice", "function_call", "parallel_tool_calls", "stream_options"),
        *("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed", "stop", "n"),
        *("logprobs", "top_logprobs", "reasoning_effort", "response_format", "verbosity", "prompt_cache_key"),
        *("prompt_cache_options", "user", "safety_identifier", "metadata", "service_tier"),
    )
)


class _Settings(msgspec.Struct, frozen=True):
    """What the shortest requests leave out."""

    tool_choice: ToolChoice | None = None
    parallel: bool | None = None
    sampling: Sampling = NO_SAMPLING
    reasoning: Reasoning | None = None
    format: Format | None = None
    verbosity: str | None = None
    cache_key: str | None = None
    attribution: Attribution = NO_ATTRIBUTION
    extras: ReplyExtras = _WITHOUT_USAGE
    ext: Ext = {}  # fields within them that only this protocol has


_NO_SETTINGS = _Settings()


_NULL = msgspec.Raw(b"null")


class _Head(Head):
    messages: msgspec.Raw = _NULL
    input: msgspec.Raw = _NULL


_head = msgspec.json.Decoder(_Head)


def read_call(path: str, query: str, body: bytes) -> CallHead:
    """Return what a body says, which may be one of Responses: Cursor posts such to this path. Raises RequestError."""
    head = read_head(_head, body)
    is_other = head.input is not _NULL and bytes(head.messages) == b"null" != bytes(head.input)
    return make_call_head(head, body_protocol="responses" if is_other else "")


def parse(body: bytes, ledger: Ledger) -> Request:
    """Parse a client's body; raises BadRequest for what no upstream could understand."""
    raw = read_body(body)
    return _read_request(Fields(raw), raw, ledger)


def _read_request(body: Fields, raw: dict[str, Json], ledger: Ledger) -> Request:
    if body.has("input") and not body.has("messages"):
        raise BadField("/messages", "is required; a body with `input` belongs to /v1/responses")
    settings = parse_settings(body) if body.has_any(SETTINGS) else _NO_SETTINGS
    max_tokens, where = _read_max_tokens(body, ledger)
    if settings.tool_choice is not None and settings.tool_choice.at == _OLDER_CHOICE:
        where = where | {"tool_choice": _OLDER_CHOICE}
    return Request(
        NAME,
        body.need_text("model"),
        parse_turns(_read_messages(body)),
        _parse_tools(body),
        settings.tool_choice,
        settings.parallel,
        max_tokens=max_tokens,
        sampling=settings.sampling,
        reasoning=settings.reasoning,
        format=settings.format,
        verbosity=settings.verbosity,
        cache_key=settings.cache_key,
        attribution=settings.attribution,
        stream=body.flag("stream", False),
        extras=settings.extras,
        raw=raw,
        where=where,
        ext=_find_meaningful(unread_fields(body) | settings.ext),  # last: it depends on what was read
    )


def parse_settings(body: Fields) -> _Settings:
    _refuse_speech(body)
    include_usage, stream_ext = _read_stream_options(body)
    format, format_ext = _read_format(body)
    cache = body.obj("prompt_cache_options")
    return _Settings(
        tool_choice=_parse_choice(body),
        parallel=body.flag("parallel_tool_calls"),
        sampling=_read_sampling(body),
        reasoning=_read_reasoning(body),
        format=format,
        verbosity=_none_if(body.text("verbosity"), "medium"),
        cache_key=body.text("prompt_cache_key"),
        attribution=Attribution(
            user=body.text("user"),
            safety_identifier=body.text("safety_identifier"),
            metadata=_read_metadata(body),
            service_tier=_none_if(body.text("service_tier"), "auto"),
        ),
        extras=_WITH_USAGE if include_usage else _WITHOUT_USAGE,
        ext=stream_ext | format_ext | (_unread_below(cache) if cache is not None else {}),
    )


def _find_meaningful(ext: Ext) -> Ext:
    return ext and {key: value for key, value in ext.items() if key not in _DEFAULTS or value != _DEFAULTS[key]}


def _read_sampling(body: Fields) -> Sampling:
    return Sampling(
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
    )


def _read_messages(body: Fields) -> list[Fields]:
    messages = body.need_objects("messages")
    if not messages:
        raise body.bad("messages", "must hold at least one message")
    return messages


def _parse_tools(body: Fields) -> tuple[Tool, ...]:
    """Parse `tools`, the older `functions`, and `web_search_options`, which stands for a tool."""
    tools = [_read_tool(tool) for tool in body.objects("tools") or ()]
    functions = body.objects("functions")
    if functions is not None:
        tools += [_read_function(function, function.at, None) for function in functions]
    search = body.obj(SEARCH_OPTIONS)
    if search is not None:
        tools.append(_read_search(search, body.raw(SEARCH_OPTIONS)))
    return tuple(tools)


def _read_tool(tool: Fields) -> Tool:
    kind = tool.text("type", "function")
    if kind == "custom":
        return _read_custom(tool)
    if kind != "function":
        return Hosted(kind, {"type": kind, **tool.rest()}, tool.at, ext=unread_fields(tool), known=False)
    if tool.has("function"):
        return _read_function(tool.need_obj("function"), tool.at, tool)
    return _read_function(tool, tool.at, None)  # the shape of Responses; some clients use it here too


def _read_function(function: Fields, at: str, holder: Fields | None) -> Function:
    name = function.need_text("name")
    description = function.text("description")
    schema = function.raw_obj("parameters")
    strict = function.flag("strict")
    return Function(
        name,
        at,
        description,
        schema,
        strict,
        ext=unread_fields(function) if holder is None else unread_fields(holder, function),
        fields_at="" if holder is None else function.at,
    )


def _read_custom(tool: Fields) -> Custom:
    custom = tool.need_obj("custom")
    name = custom.need_text("name")
    description = custom.text("description")
    shape = custom.obj("format")
    grammar = None
    if shape is not None and shape.text("type", "text") == "grammar":
        rules = shape.need_obj("grammar")
        grammar = Grammar(rules.need_text("syntax"), rules.need_text("definition"))
    return Custom(
        name,
        tool.at,
        description=description,
        grammar=grammar,
        ext=unread_fields(tool, custom, shape if grammar else None),
        fields_at=custom.at,
    )


def _read_search(search: Fields, raw: object) -> Hosted:
    place = search.obj("user_location")
    location: object = None
    if place is not None:
        near = place.obj("approximate")
        location = {"type": place.text("type", "approximate"), **(near.rest() if near is not None else {})}
    size = search.text("search_context_size")
    return Hosted(
        _WEB_SEARCH,
        raw,
        search.at,
        location=location,
        context_size=None if size == "medium" else size,
        ext=unread_fields(search, place),
    )


def _parse_choice(body: Fields) -> ToolChoice | None:
    key = "tool_choice" if body.has("tool_choice") else "function_call"
    value = body.raw(key)
    if value is None:
        return None
    at = body.pointer(key)
    if isinstance(value, str):
        if value not in _PICKS:
            raise body.bad(key, "must be one of " + ", ".join(_PICKS))
        return ToolChoice(_PICKS[value], at)
    choice = body.need_obj(key)
    kind = choice.text("type", "function")
    if kind == "allowed_tools":
        return _read_allowed(choice)
    if kind in ("function", "custom"):
        named = choice.obj(kind) or choice
        return ToolChoice(Pick.NAMED, at, name=named.need_text("name"), custom=kind == "custom")
    return ToolChoice(Pick.NAMED, at, hosted=kind)


def _read_allowed(choice: Fields) -> ToolChoice:
    allowed = choice.obj("allowed_tools") or choice
    mode = allowed.one_of("mode", ("auto", "required")) or "auto"
    names = []
    for tool in allowed.need_objects("tools"):
        named = tool.obj(tool.text("type", "function")) or tool
        names.append(named.need_text("name"))
    return ToolChoice(_PICKS[mode], choice.at, allowed=tuple(names))


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


def _read_max_tokens(body: Fields, ledger: Ledger) -> tuple[int | None, dict[str, str]]:
    """Return the limit of output tokens, and the pointers of a request that sets it in this field."""
    older, cap = body.integer("max_tokens"), body.integer("max_completion_tokens")
    if older is not None and cap is None:
        return older, _OLDER_POINTERS
    if older is not None and older != cap:
        ledger.record_dropped("/max_tokens", "max_completion_tokens wins")
    return cap, _POINTERS


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
    if count is not None and not 1 <= count <= _MAX_CHOICES:
        raise body.bad("n", f"must be between 1 and {_MAX_CHOICES}")
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
    """Return the unread fields of an object below the body, by pointers from the body."""
    return {f"{fields.at[1:]}/{name}": value for name, value in unread_fields(fields).items()}


def _read_metadata(body: Fields) -> dict[str, Json] | None:
    metadata = body.obj("metadata")
    return (metadata.rest() or None) if metadata is not None else None


def _none_if(value: str | None, default: str) -> str | None:
    return None if value == default else value
