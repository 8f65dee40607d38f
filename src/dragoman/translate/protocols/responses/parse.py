"""Parse a client's Responses request into a hub request."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dragoman.translate.framing.fields import BadField, Fields, read_body, unread_fields
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
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
from dragoman.translate.protocols.responses.parse_turns import Conversation
from dragoman.translate.protocols.responses.wire import (
    CARRIED_KINDS,
    ENCRYPTED,
    HOSTED_TOOLS,
    LOGPROBS,
    NAME,
    OTHER_TOOLS,
    SOURCES,
    Wire,
)

_SERVER_STATE = {
    "previous_response_id": "a stored response, and this gateway has no store; send the whole input",
    "conversation": "a stored conversation, and this gateway has no store; send the whole input",
    "prompt": "a stored prompt template; send its text as instructions and input",
}
_STORED = frozenset((*_SERVER_STATE, "background"))

# Values that mean the same as leaving the field out.
_DEFAULTS: dict[str, Json] = {
    "truncation": "disabled",
    "reasoning/context": "auto",
    "reasoning/mode": "standard",
    "prompt_cache_options/mode": "implicit",
    "prompt_cache_options/ttl": "30m",
}

_SAME_NAMES = (
    *("model", "tools", "tool_choice", "temperature", "top_p", "top_logprobs", "max_tool_calls", "reasoning"),
    *("metadata", "user", "safety_identifier", "service_tier", "stream"),
)
_WHERE = {name: f"/{name}" for name in _SAME_NAMES} | {
    "max_tokens": "/max_output_tokens",
    "parallel": "/parallel_tool_calls",
    "cache_key": "/prompt_cache_key",
    "turns": "/input",
    "verbosity": "/text/verbosity",
    "format": "/text/format",
    "encrypted_reasoning": "/include",
    "logprobs": "/include/",
    "search_sources": "/include/",
}
_PICKS = {"auto": Pick.AUTO, "none": Pick.NONE, "required": Pick.REQUIRED}
_HOSTED_DEFAULTS: Wire = {
    "container": {"type": "auto"},
    "require_approval": "never",
    "external_web_access": True,
    "search_content_types": ["text"],
}


# The fields of which `parse_settings` makes its settings.
SETTINGS = frozenset(
    (
        *("reasoning", "text", "prompt_cache_options", "include", "service_tier", "stream_options", "tool_choice"),
        *("parallel_tool_calls", "temperature", "top_p", "top_logprobs", "prompt_cache_key", "user"),
        *("safety_identifier", "metadata", "max_tool_calls"),
    )
)


class _Settings(Struct, frozen=True):
    """What the shortest requests leave out."""

    where: dict[str, str]
    tool_choice: ToolChoice | None = None
    parallel: bool | None = None
    sampling: Sampling = NO_SAMPLING
    reasoning: Reasoning | None = None
    extras: ReplyExtras = ReplyExtras(encrypted_reasoning=False)
    format: Format | None = None
    verbosity: str | None = None
    cache_key: str | None = None
    attribution: Attribution = NO_ATTRIBUTION
    max_tool_calls: int | None = None
    prewarm: bool = False
    holders: tuple[Fields | None, ...] = ()  # of settings, where fields may have been left unread


_NO_SETTINGS = _Settings(_WHERE)


def parse(body: bytes, ledger: Ledger) -> Request:
    raw = read_body(body)
    fields = Fields(raw)
    if fields.has_any(_STORED):
        _refuse_stored(fields)
    return _parse_request(fields, raw, ledger)


def _refuse_stored(fields: Fields) -> None:
    for key in _SERVER_STATE:
        _refuse_state(fields, key)
    if fields.flag("background", False):
        raise BadRequest(
            fields.pointer("background"), "background must be false: this gateway runs no background responses."
        )


def parse_with_items(raw: dict[str, Json], items: Sequence[Json], *, kept: bool, ledger: Ledger) -> Request:
    """Parse a request whose references to the server's state stand for these input items. Raises RequestError."""
    whole: dict[str, Json] = {**raw, "input": list(items), "store": False}
    fields = Fields(whole)
    for resolved in ("previous_response_id", "conversation", "background"):
        fields.raw(resolved)
    _refuse_state(fields, "prompt")
    return _parse_request(fields, whole, ledger, kept=kept)


def _parse_request(fields: Fields, raw: dict[str, Json], ledger: Ledger, *, kept: bool = False) -> Request:
    ext: Ext = {}
    conversation = Conversation(ledger, ext)
    conversation.read(fields)
    tools = tuple(_parse_tools([*(fields.objects("tools") or ()), *conversation.tools], ext))
    settings = parse_settings(fields, ext) if fields.has_any(SETTINGS) else _NO_SETTINGS
    extras = settings.extras
    fields.raw("store")
    request = Request(
        NAME,
        fields.need_text("model"),
        tuple(conversation.turns),
        tools,
        settings.tool_choice,
        settings.parallel,
        max_tokens=_parse_max_tokens(fields, settings.prewarm),
        sampling=settings.sampling,
        reasoning=settings.reasoning,
        extras=replace(extras, kept=True) if kept else extras,
        format=settings.format,
        verbosity=settings.verbosity,
        cache_key=settings.cache_key,
        attribution=settings.attribution,
        max_tool_calls=settings.max_tool_calls,
        stream=fields.flag("stream", False),
        where=settings.where,
        ext=ext,
        raw=raw,
    )
    _keep_unread(ext, fields, *settings.holders)
    return request


def parse_settings(fields: Fields, ext: Ext) -> _Settings:
    reasoning = fields.obj("reasoning")
    text = fields.obj("text")
    cache = fields.obj("prompt_cache_options")
    included = _parse_include(fields, ext)
    where = _WHERE | {
        "logprobs": f"/include/{included.get(LOGPROBS, '')}",
        "search_sources": f"/include/{included.get(SOURCES, '')}",
    }
    tier, verbosity = fields.text("service_tier"), text.text("verbosity") if text else None
    stream = fields.obj("stream_options")
    if stream is not None:
        stream.raw("include_obfuscation")
    prewarm = cache is not None and cache.flag("prewarm", False)
    if prewarm:
        where["max_tokens"] = "/prompt_cache_options/prewarm"
    return _Settings(
        where,
        tool_choice=_parse_choice(fields),
        parallel=False if fields.flag("parallel_tool_calls") is False else None,
        sampling=Sampling(
            temperature=fields.number("temperature"),
            top_p=fields.number("top_p"),
            logprobs=True if LOGPROBS in included else None,
            top_logprobs=fields.integer("top_logprobs") or None,
        ),
        reasoning=_parse_reasoning(reasoning) if reasoning else None,
        extras=ReplyExtras(encrypted_reasoning=ENCRYPTED in included, search_sources=SOURCES in included),
        format=_parse_format(text) if text else None,
        verbosity=None if verbosity == "medium" else verbosity,
        cache_key=fields.text("prompt_cache_key"),
        attribution=Attribution(
            user=fields.text("user"),
            safety_identifier=fields.text("safety_identifier"),
            metadata=_parse_metadata(fields),
            service_tier=None if tier == "auto" else tier,
        ),
        max_tool_calls=fields.integer("max_tool_calls"),
        prewarm=prewarm,
        holders=(reasoning, text, cache, stream),
    )


def _refuse_state(fields: Fields, key: str) -> None:
    if fields.raw(key) is not None:
        raise BadRequest(fields.pointer(key), f"{key} names {_SERVER_STATE[key]}.")


def _parse_include(fields: Fields, ext: Ext) -> dict[str, int]:
    """Return the values of `include`, with their positions."""
    included: dict[str, int] = {}
    for index, name in enumerate(fields.items("include") or []):
        if not isinstance(name, str):
            raise BadField(f"{fields.pointer('include')}/{index}", "must be a string")
        if name not in (ENCRYPTED, LOGPROBS, SOURCES):
            ext[f"include/{index}"] = name
        included.setdefault(name, index)
    return included


def _parse_max_tokens(fields: Fields, prewarm: bool) -> int | None:
    requested = fields.integer("max_output_tokens")
    return 0 if prewarm else requested  # prewarming the cache means generating no tokens, as in MessageItems


def _parse_metadata(fields: Fields) -> dict[str, Json] | None:
    metadata = fields.obj("metadata")
    return metadata.rest() or None if metadata else None


def _parse_reasoning(reasoning: Fields) -> Reasoning | None:
    effort = reasoning.text("effort")
    key = "summary" if reasoning.has("summary") else "generate_summary"
    show = reasoning.text(key)
    if effort is None and show is None:
        return None
    at = reasoning.at if effort is None else reasoning.pointer("effort")
    return Reasoning(at, effort, show=show, show_at=reasoning.pointer(key))


def _parse_format(text: Fields) -> Format | None:
    format_ = text.obj("format")
    if format_ is None:
        return None
    match format_.need_text("type"):
        case "text":
            return None
        case "json_object":
            return Format(Shape.JSON, format_.at)
        case "json_schema":
            schema = format_.need_obj("schema")
            return Format(
                Shape.SCHEMA,
                format_.at,
                name=format_.text("name"),
                description=format_.text("description"),
                schema=format_.raw("schema") if schema else None,
                strict=format_.flag("strict"),
            )
        case _:
            raise format_.bad("type", "must be text, json_object or json_schema")


def _keep_unread(ext: Ext, fields: Fields, *inner: Fields | None) -> None:
    for key, value in unread_fields(fields, *inner).items():
        if key not in _DEFAULTS or value != _DEFAULTS[key]:
            ext.setdefault(key, value)


def _parse_tools(tools: Iterable[Fields], ext: Ext) -> Iterator[Tool]:
    """Parse the tools, also those in namespaces; other fields of a namespace go into the request's `ext`."""
    for tool in tools:
        match tool.need_text("type"):
            case "function":
                yield _read_function(tool, None)
            case "custom":
                yield _read_custom(tool, None)
            case "namespace":
                yield from _read_namespace(tool, ext)
            case type_:
                yield _read_hosted(type_, tool)


def _read_namespace(tool: Fields, ext: Ext) -> Iterator[Tool]:
    name = tool.need_text("name")
    for inner in tool.objects("tools") or []:
        match inner.text("type"):
            case "custom":
                yield _read_custom(inner, name)
            case _:
                yield _read_function(inner, name)
    for key, value in tool.rest().items():
        if value != "":
            ext[tool.pointer(key)[1:]] = value


def _read_function(tool: Fields, namespace: str | None) -> Function:
    parameters = tool.raw_obj("parameters")
    return Function(
        tool.need_text("name"),
        tool.at,
        tool.text("description"),
        parameters,
        tool.flag("strict"),
        namespace,
        deferred=tool.flag("defer_loading", False),
        ext=unread_fields(tool),
    )


def _read_custom(tool: Fields, namespace: str | None) -> Custom:
    format_ = tool.obj("format")
    grammar: Grammar | None = None
    if format_ is not None and format_.text("type") == "grammar":
        grammar = Grammar(format_.need_text("syntax"), format_.need_text("definition"))
    return Custom(
        tool.need_text("name"),
        tool.at,
        description=tool.text("description"),
        grammar=grammar,
        namespace=namespace,
        ext=unread_fields(tool, format_),
    )


def _read_hosted(type_: str, tool: Fields) -> Hosted:
    raw = {"type": type_, **tool.rest()}
    kind = HOSTED_TOOLS.get(type_, type_)
    if kind not in CARRIED_KINDS:  # other protocols reject or drop the whole tool
        return Hosted(kind, raw, tool.at, known=type_ in OTHER_TOOLS)
    filters = tool.obj("filters")
    size = tool.text("search_context_size")
    return Hosted(
        kind,
        raw,
        tool.at,
        allowed_domains=filters.texts("allowed_domains") if filters else (),
        location=tool.raw("user_location"),
        context_size=size,
        server_url=tool.text("server_url"),
        server_name=tool.text("server_label"),
        authorization=tool.text("authorization"),
        allowed_tools=_read_allowed_tools(tool),
        ext=_drop_defaults(unread_fields(tool, filters)),  # last: it depends on what was read
    )


def _drop_defaults(ext: Ext) -> Ext:
    return {key: value for key, value in ext.items() if _HOSTED_DEFAULTS.get(key) != value}


def _read_allowed_tools(tool: Fields) -> tuple[str, ...] | None:
    """Return the tools of an MCP server that may be called: names, or a filter that holds only names."""
    if isinstance(tool.raw("allowed_tools"), list):
        return tool.texts("allowed_tools")
    chosen = tool.obj("allowed_tools")
    return chosen.texts("tool_names") if chosen is not None and chosen.has("tool_names") else None


def _parse_choice(fields: Fields) -> ToolChoice | None:
    """Parse `tool_choice`; None for auto, which is the default."""
    at = fields.pointer("tool_choice")
    value = fields.raw("tool_choice")
    if value is None or value == "auto":
        return None
    if isinstance(value, str):
        if value not in _PICKS:
            raise fields.bad("tool_choice", "must be auto, none, required or an object")
        return ToolChoice(_PICKS[value], at)
    choice = Fields(value, at) if isinstance(value, dict) else None
    if choice is None:
        raise fields.bad("tool_choice", "must be a string or an object")
    match choice.need_text("type"):
        case "function" | "custom" as type_:
            name, namespace = choice.need_text("name"), choice.text("namespace")
            return ToolChoice(Pick.NAMED, at, name, namespace, custom=type_ == "custom")
        case "allowed_tools":
            pick = Pick.REQUIRED if choice.one_of("mode", ("auto", "required")) == "required" else Pick.AUTO
            tools = choice.need_objects("tools")
            hosted = {kind for tool in tools if (kind := HOSTED_TOOLS.get(tool.text("type") or "")) is not None}
            return ToolChoice(pick, at, allowed=tuple(map(_read_allowed_name, tools)), allowed_hosted=frozenset(hosted))
        case type_:
            return ToolChoice(Pick.NAMED, at, choice.text("name"), hosted=HOSTED_TOOLS.get(type_, type_))


def _read_allowed_name(tool: Fields) -> str:
    type_ = tool.text("type") or "function"
    return tool.text("name") or tool.text("server_label") or HOSTED_TOOLS.get(type_, type_)
