"""Parse a client's Gemini request into a hub request. Model and mode stand in the path."""

import re
from collections.abc import Iterator
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace

from dragoman.translate.framing.fields import BadField, check_model, read_body, read_head
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import EVENT_STREAM, CallHead
from dragoman.translate.hub.request import (
    NO_ATTRIBUTION,
    NO_SAMPLING,
    Attribution,
    Ext,
    Foreign,
    Format,
    Function,
    Hosted,
    Json,
    Pick,
    Reasoning,
    Request,
    Role,
    Sampling,
    Shape,
    Switch,
    Text,
    Tool,
    ToolChoice,
    Turn,
)
from dragoman.translate.protocols.gemini.parse_content import parse_contents, parse_instructions
from dragoman.translate.protocols.gemini.parse_fields import ProtoFields, read_dialect, read_json_schema, unread_fields
from dragoman.translate.protocols.gemini.wire import ARRAY_STREAM, GOOGLE, MAX_CANDIDATES, NAME, SSE_QUERY, STREAM

_MODEL = re.compile(r"(?:/publishers/([^/]++))?/models/(.++)", re.DOTALL)
_MODEL_WITHOUT_MODELS = re.compile(r"()/v1\w+/((?!(?:models|projects|publishers)/)[^/]++/.++)", re.DOTALL)
_VERB = re.compile(r"\w+")
_TIERS = {"STANDARD": "default", "FLEX": "flex", "PRIORITY": "priority"}
_LEVELS = frozenset(("minimal", "low", "medium", "high"))
_JSON_TYPE, _TEXT_TYPE = "application/json", "text/plain"
_AUTO_BUDGET = -1
_WHERE = {  # the hub's names of fields -> those of generationConfig
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "max_tokens": "maxOutputTokens",
    "stop": "stopSequences",
    "seed": "seed",
    "n": "candidateCount",
    "frequency_penalty": "frequencyPenalty",
    "presence_penalty": "presencePenalty",
    "logprobs": "responseLogprobs",
    "top_logprobs": "logprobs",
}

_JSON_SCHEMA, _DIALECT = "parametersJsonSchema", "parameters"
_MODES = {"AUTO": Pick.AUTO, "VALIDATED": Pick.AUTO, "ANY": Pick.REQUIRED, "NONE": Pick.NONE}
_UNSPECIFIED = "MODE_UNSPECIFIED"

# Tools that Google runs -> the hub's kinds of them.
_KINDS = {
    "googleSearch": "web_search",
    "googleSearchRetrieval": "web_search",
    "urlContext": "web_fetch",
    "codeExecution": "code_execution",
}
_OTHERS = frozenset(("googleMaps", "computerUse", "fileSearch", "enterpriseWebSearch", "retrieval", "parallelAiSearch"))


# The fields of which `parse_generation` and `parse_attribution` make their settings.
GENERATION = frozenset(
    (
        *("temperature", "topP", "topK", "frequencyPenalty", "presencePenalty", "seed", "candidateCount"),
        *("stopSequences", "responseLogprobs", "logprobs", "thinkingConfig", "responseModalities"),
        *("responseMimeType", "responseSchema", "responseJsonSchema", "_responseJsonSchema"),
    )
)
ATTRIBUTION = frozenset(("labels", "serviceTier"))


class _Generation(msgspec.Struct, frozen=True):
    """The settings in generationConfig that the shortest requests leave out."""

    sampling: Sampling = NO_SAMPLING
    reasoning: Reasoning | None = None
    format: Format | None = None
    ext: Ext = {}  # that only this protocol has
    thinking: ProtoFields | None = None


_NO_GENERATION = _Generation()


class _Body(msgspec.Struct):
    """Nothing of the body: it has only to be a JSON object."""


_body = msgspec.json.Decoder(_Body)


def read_call(path: str, query: str, body: bytes) -> CallHead:
    """Return model and mode of the path: the model is everything before the last colon. Raises RequestError."""
    read_head(_body, body)
    before, _, verb = path.rstrip("/").rpartition(":")
    found = _MODEL_WITHOUT_MODELS.match(before) or _MODEL.search(before)
    if found is None or not _VERB.fullmatch(verb):  # Vertex's other resources
        raise RequestError(Failure(Kind.NOT_FOUND, f"There is nothing at {path}: name a model after /models/."))
    publisher, model = found[1], unquote(found[2]).strip("/").removeprefix("models/")
    if publisher and publisher != GOOGLE:
        model = f"{unquote(publisher)}/{model}"  # SDKs of Vertex split a model's name at its slash
    if not model:
        raise BadRequest("/model", "The path names no model: write it between /models/ and the colon.")
    check_model(model)
    is_events = SSE_QUERY in query.split("&")
    return CallHead(model, f":{verb}" == STREAM, EVENT_STREAM if is_events else ARRAY_STREAM)


def parse(body: bytes, ledger: Ledger) -> Request:
    raw = read_body(body)
    return _parse_request(ProtoFields(raw), raw, ledger)


def parse_for_count(body: bytes, ledger: Ledger) -> Request:
    """Parse the body of countTokens: contents, perhaps with tools and instructions, or a whole request inside."""
    raw = read_body(body)
    top = ProtoFields(raw)
    return _parse_request(top.obj("generateContentRequest") or top, raw, ledger)


def _parse_request(top: ProtoFields, raw: dict[str, Json], ledger: Ledger) -> Request:
    _refuse_server_state(top)
    top.text("model")  # the path's counts
    settings = top.obj("generationConfig") or ProtoFields({}, top.pointer("generationConfig"))
    generation = parse_generation(settings, len(top.at) + 1) if settings.has_any(GENERATION) else _NO_GENERATION
    config = top.obj("toolConfig")
    calling = None if config is None else config.obj("functionCallingConfig")
    choice, tools = _parse_choice(calling, _parse_tools(top))
    return Request(
        NAME,
        "",
        _parse_turns(top, ledger),
        tools,
        choice,
        max_tokens=settings.integer("maxOutputTokens"),
        sampling=generation.sampling,
        reasoning=generation.reasoning,
        format=generation.format,
        attribution=parse_attribution(top) if top.has_any(ATTRIBUTION) else NO_ATTRIBUTION,
        where=_find_pointers(top, settings, generation.format),
        ext=generation.ext | unread_fields(top, settings, generation.thinking, config, calling),  # after all that reads
        raw=raw,
    )


def parse_generation(settings: ProtoFields, start: int) -> _Generation:
    """Return what a client sets; the pointers of what only this protocol has begin at `start`."""
    thinking = settings.obj("thinkingConfig")
    return _Generation(
        sampling=_parse_sampling(settings),
        reasoning=None if thinking is None else _parse_thinking(thinking),
        format=_parse_format(settings),
        ext=_parse_modalities(settings, start),
        thinking=thinking,
    )


def parse_attribution(top: ProtoFields) -> Attribution:
    labels = top.raw("labels")
    return Attribution(metadata=labels if isinstance(labels, dict) and labels else None, service_tier=_parse_tier(top))


def _parse_sampling(settings: ProtoFields) -> Sampling:
    return Sampling(
        temperature=settings.number("temperature"),
        top_p=settings.number("topP"),
        top_k=settings.integer("topK"),
        frequency_penalty=settings.number("frequencyPenalty") or None,
        presence_penalty=settings.number("presencePenalty") or None,
        seed=settings.integer("seed"),
        n=_parse_count(settings),
        stop=settings.texts("stopSequences"),
        logprobs=settings.flag("responseLogprobs") or None,
        top_logprobs=settings.integer("logprobs"),
    )


def _refuse_server_state(top: ProtoFields) -> None:
    for key, what in (("cachedContent", "a cache"), ("continuationToken", "a reply")):
        if top.text(key):
            why = f"names {what} that exists only at its vendor: remove it, and send the whole conversation"
            raise BadField(top.pointer(key), why)


def _parse_turns(top: ProtoFields, ledger: Ledger) -> tuple[Turn, ...]:
    contents = top.list_of("contents")
    if not contents:
        raise BadField(top.pointer("contents"), "is required: send at least one content")
    turns = parse_contents(contents, ledger)
    if not turns:
        raise BadField(top.pointer("contents"), "has no content: every part of it is empty")
    parts = [part for turn in turns for part in turn.parts]
    if all(type(part) is Foreign for part in parts):
        raise BadField(parts[0].at, "cannot be translated for this model, and there is nothing else in contents")
    at = top.pointer("systemInstruction")
    given = top.raw("systemInstruction")
    if isinstance(given, str):
        return (Turn(Role.SYSTEM, (Text(given, at),), at), *turns) if given else turns
    instructions = top.obj("systemInstruction")
    system = None if instructions is None else parse_instructions(instructions)
    return turns if system is None else (system, *turns)


def _parse_tools(top: ProtoFields) -> tuple[Tool, ...]:
    """Return the tools of all entries in order; raises BadField for two functions of one name."""
    tools = [tool for entry in top.list_of("tools") for tool in _parse_entry(entry)]
    names: set[str] = set()
    for tool in tools:
        if type(tool) is Function:
            if tool.name in names:
                raise BadField(tool.pointer("name"), f"declares {tool.name!r} a second time; names must be unique")
            names.add(tool.name)
    return tuple(tools)


def _parse_entry(entry: ProtoFields) -> Iterator[Tool]:
    for declaration in entry.list_of("functionDeclarations"):
        yield _parse_function(declaration)
    for server in entry.list_of("mcpServers"):
        yield _parse_server(server)
    for key in entry.rest():
        settings = entry.obj(key) if isinstance(entry.raw(key), dict) else None
        yield _parse_hosted(key, entry.pointer(key), settings)


def _parse_function(declaration: ProtoFields) -> Function:
    name, description = declaration.need_text("name"), declaration.text("description")
    key = _JSON_SCHEMA if declaration.has(_JSON_SCHEMA) else _DIALECT
    schema = declaration.raw(key)
    if schema is not None and not isinstance(schema, dict):
        raise declaration.bad(key, "must be an object")
    return Function(
        name=name,
        at=declaration.at,
        description=description,
        parameters=None if schema is None else (read_json_schema if key == _JSON_SCHEMA else read_dialect)(schema),
        ext=unread_fields(declaration),
        schema_key=declaration.written_name(key),
    )


def _parse_server(server: ProtoFields) -> Hosted:
    raw = server.rest()
    transport = server.need_obj("streamableHttpTransport")
    headers = transport.obj("headers")
    authorization = None if headers is None else headers.text("Authorization") or headers.text("authorization")
    return Hosted(
        kind="mcp",
        raw=raw,
        at=server.at,
        server_url=transport.need_text("url"),
        server_name=server.need_text("name"),
        authorization=None if authorization is None else authorization.removeprefix("Bearer "),
        ext=unread_fields(server, transport, headers),
    )


def _parse_hosted(key: str, at: str, settings: ProtoFields | None) -> Hosted:
    kind = _KINDS.get(key, key)
    blocked = settings.texts("excludeDomains") if settings is not None and kind == "web_search" else ()
    return Hosted(
        kind=kind,
        raw={key: {} if settings is None else settings.rest()},
        at=at,
        blocked_domains=blocked,
        blocked_at="" if settings is None else settings.pointer("excludeDomains"),
        ext={} if settings is None else unread_fields(settings),
        known=key in _KINDS or key in _OTHERS,
    )


def _parse_choice(calling: ProtoFields | None, tools: tuple[Tool, ...]) -> tuple[ToolChoice | None, tuple[Tool, ...]]:
    """Return the choice of functionCallingConfig, and the tools: those of a mode that validates calls are strict."""
    if calling is None:
        return None, tools
    mode = calling.enum_name("mode") or _UNSPECIFIED
    names = calling.texts("allowedFunctionNames")
    if mode == _UNSPECIFIED:
        return None, tools
    if mode not in _MODES:
        raise calling.bad("mode", f"must be one of {', '.join(_MODES)}")
    if mode == "VALIDATED":
        at = calling.pointer("mode")
        tools = tuple(replace(tool, strict=True, strict_at=at) if type(tool) is Function else tool for tool in tools)
    _check_names(calling, names, tools)
    if mode == "ANY" and len(names) == 1:
        return ToolChoice(Pick.NAMED, calling.at, names[0]), tools
    allowed = None if mode == "NONE" else names or None
    return ToolChoice(_MODES[mode], calling.at, allowed=allowed), tools


def _check_names(calling: ProtoFields, names: tuple[str, ...], tools: tuple[Tool, ...]) -> None:
    declared = {tool.name for tool in tools if type(tool) is Function}
    for name in names:
        if name not in declared:
            raise calling.bad("allowedFunctionNames", f"must name declared functions; {name!r} is not one")


def _parse_count(settings: ProtoFields) -> int | None:
    """Return how many answers are requested; None for one. Raises BadField for a number that Google refuses as well."""
    count = settings.integer("candidateCount")
    if count is not None and not 1 <= count <= MAX_CANDIDATES:
        raise settings.bad("candidateCount", f"must be between 1 and {MAX_CANDIDATES}")
    return None if count == 1 else count


def _parse_thinking(thinking: ProtoFields) -> Reasoning:
    """Return the reasoning settings: a budget, where 0 is off and -1 leaves it to the model, or a level."""
    budget, level = thinking.integer("thinkingBudget"), thinking.enum_name("thinkingLevel")
    shows = thinking.flag("includeThoughts")
    effort = level.lower() if level and level != "THINKING_LEVEL_UNSPECIFIED" else None
    if effort is not None and effort not in _LEVELS:
        raise thinking.bad("thinkingLevel", "must be MINIMAL, LOW, MEDIUM or HIGH")
    if budget is not None and budget < _AUTO_BUDGET:
        raise thinking.bad("thinkingBudget", "must be a number of tokens, 0 for none or -1 for any number")
    switch = None if budget is None else Switch.ENABLED
    if budget == 0:
        switch = Switch.DISABLED
    elif budget == _AUTO_BUDGET:
        switch = Switch.ADAPTIVE
    return Reasoning(
        at=thinking.pointer("thinkingLevel") if effort else thinking.at,
        effort=effort,
        budget=budget if budget is not None and budget > 0 else None,
        budget_at=thinking.pointer("thinkingBudget"),
        switch=switch,
        switch_at=thinking.pointer("thinkingBudget"),
        show="summarized" if shows else None,
        show_at=thinking.pointer("includeThoughts"),
    )


def _parse_format(settings: ProtoFields) -> Format | None:
    json_key = next((key for key in ("responseJsonSchema", "_responseJsonSchema") if settings.has(key)), None)
    if json_key is not None and settings.has("responseSchema"):
        raise settings.bad(json_key, "cannot be set beside responseSchema: remove one of them")
    media_type = settings.text("responseMimeType", "")
    if media_type not in ("", _JSON_TYPE, _TEXT_TYPE):
        settings.mark_unread("responseMimeType")
        return None
    key = json_key or "responseSchema"
    schema = settings.raw(key)
    if schema is not None and media_type != _TEXT_TYPE:
        if not isinstance(schema, dict):
            raise settings.bad(key, "must be an object")
        read = read_json_schema if json_key is not None else read_dialect
        return Format(Shape.SCHEMA, settings.pointer(key), schema=read(schema))
    return Format(Shape.JSON, settings.pointer("responseMimeType")) if media_type == _JSON_TYPE else None


def _parse_modalities(settings: ProtoFields, start: int) -> Ext:
    """Return the modalities that are no loss only for a reply in text; raises BadField where text is not requested."""
    modalities = [word.upper() for word in settings.texts("responseModalities")]
    if modalities and "TEXT" not in modalities:
        raise settings.bad("responseModalities", "must have TEXT: this model's replies are text")
    return {settings.pointer("responseModalities")[start:]: modalities} if set(modalities) - {"TEXT"} else {}


def _parse_tier(top: ProtoFields) -> str | None:
    tier = top.enum_name("serviceTier")
    if tier is None or tier.endswith("UNSPECIFIED"):
        return None
    if tier.removeprefix("SERVICE_TIER_") not in _TIERS:
        top.mark_unread("serviceTier")
        return None
    return _TIERS[tier.removeprefix("SERVICE_TIER_")]


def _find_pointers(top: ProtoFields, settings: ProtoFields, format: Format | None) -> dict[str, str]:
    is_usual = settings.at == _USUAL_AT and not top.is_renamed and not settings.is_renamed
    where = _USUAL_POINTERS if is_usual else _list_pointers(top, settings)
    return where if format is None else where | {"format": format.at}


def _list_pointers(top: ProtoFields, settings: ProtoFields) -> dict[str, str]:
    where = {name: settings.pointer(key) for name, key in _WHERE.items()}
    where |= {"turns": top.pointer("contents"), "tools": top.pointer("tools"), "metadata": top.pointer("labels")}
    where |= {"tool_choice": top.pointer("toolConfig"), "service_tier": top.pointer("serviceTier")}
    where["reasoning"] = settings.pointer("thinkingConfig")
    return where


_USUAL_AT = "/generationConfig"
_USUAL_POINTERS = _list_pointers(ProtoFields({}), ProtoFields({}, _USUAL_AT))
