"""Parse a client's Responses request into a hub request."""

from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.framing.fields import BadField, Fields, read_body, unread_fields
from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.request import Ext, Foreign, Format, Json, Part, Reasoning, Request, Shape
from dragoman.hub.server_tools import (
    Page,
    SearchFound,
    SearchResult,
    ServerToolUse,
    ToolErrorCode,
    ToolFailure,
    ToolOutcome,
)
from dragoman.protocols.responses.parse_tools import parse_choice, parse_tools
from dragoman.protocols.responses.parse_turns import Conversation
from dragoman.protocols.responses.wire import ENCRYPTED, LOGPROBS, NAME, SEARCH_ITEM, SOURCES, Item, text_at

_SERVER_STATE = {
    "previous_response_id": "a stored response, and this gateway has no store; send the whole input",
    "conversation": "a stored conversation, and this gateway has no store; send the whole input",
    "prompt": "a stored prompt template; send its text as instructions and input",
}

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
}

_NOT_KEPT = "[What this call returned was not kept. Call the tool again if it is needed.]"


def parse(body: bytes, ledger: Ledger) -> Request:
    try:
        raw = read_body(body)
        fields = Fields(raw)
        _refuse_server_state(fields)
        return _parse_request(fields, raw, ledger)
    except BadField as bad:
        raise BadRequest(bad.at, bad.message) from bad


def parse_with_items(raw: dict[str, Json], items: Sequence[Json], *, kept: bool, ledger: Ledger) -> Request:
    """Parse a request whose references to the server's state stand for these input items. Raises RequestError."""
    whole: dict[str, Json] = {**raw, "input": list(items), "store": False}
    fields = Fields(whole)
    for resolved in ("previous_response_id", "conversation", "background"):
        fields.raw(resolved)
    try:
        _refuse_state(fields, "prompt")
        return replace(_parse_request(fields, whole, ledger), kept=kept)
    except BadField as bad:
        raise BadRequest(bad.at, bad.message) from bad


def _parse_request(fields: Fields, raw: dict[str, Json], ledger: Ledger) -> Request:
    ext: Ext = {}
    conversation = Conversation(ledger, ext)
    conversation.read(fields)
    tools = (*parse_tools(fields.objects("tools") or [], ext), *conversation.tools)
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
    fields.raw("store")
    prewarm = cache is not None and cache.flag("prewarm", False)
    if prewarm:
        where["max_tokens"] = "/prompt_cache_options/prewarm"
    request = Request(
        protocol=NAME,
        model=fields.need_text("model"),
        turns=tuple(conversation.turns),
        tools=tools,
        tool_choice=parse_choice(fields),
        parallel=False if fields.flag("parallel_tool_calls") is False else None,
        max_tokens=_parse_max_tokens(fields, prewarm),
        temperature=fields.number("temperature"),
        top_p=fields.number("top_p"),
        logprobs=True if LOGPROBS in included else None,
        top_logprobs=fields.integer("top_logprobs") or None,
        reasoning=_parse_reasoning(reasoning) if reasoning else None,
        encrypted_reasoning=ENCRYPTED in included,
        search_sources=SOURCES in included,
        format=_parse_format(text) if text else None,
        verbosity=None if verbosity == "medium" else verbosity,
        cache_key=fields.text("prompt_cache_key"),
        user=fields.text("user"),
        safety_identifier=fields.text("safety_identifier"),
        metadata=_parse_metadata(fields),
        service_tier=None if tier == "auto" else tier,
        max_tool_calls=fields.integer("max_tool_calls"),
        stream=fields.flag("stream", False),
        where=where,
        ext=ext,
        raw=raw,
    )
    _keep_unread(ext, fields, reasoning, text, cache, stream)
    return request


def _refuse_server_state(fields: Fields) -> None:
    for key in _SERVER_STATE:
        _refuse_state(fields, key)
    if fields.flag("background", False):
        raise BadRequest(
            fields.pointer("background"), "background must be false: this gateway runs no background responses."
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


def read_tool_uses(parts: Sequence[Part]) -> dict[int, ServerToolUse | None]:
    """Return the searches and opened pages among the parts of a turn, by index."""
    return {
        index: _read_use(part.raw, part.at)
        for index, part in enumerate(parts)
        if isinstance(part, Foreign) and part.what == SEARCH_ITEM and isinstance(part.raw, dict)
    }


def _read_use(item: Item, at: str) -> ServerToolUse:
    raw_action = item.get("action")
    action = raw_action if isinstance(raw_action, dict) else {}
    id = text_at(item, "id") or "ws" + at.replace("/", "_")  # some clients leave it out
    url = text_at(action, "url")
    if url:  # open_page, find_in_page
        pattern = text_at(action, "pattern")
        about = f"[Looked for {pattern!r}.]\n{_NOT_KEPT}" if pattern else _NOT_KEPT
        outcome = _read_failure(item) or Page(url, url, about)
        return ServerToolUse(id, "web_fetch", {"url": url}, outcome)
    return ServerToolUse(id, "web_search", {"query": _read_query(action)}, _read_failure(item) or _read_found(action))


def _read_query(action: Item) -> str:
    queries = action.get("queries")
    several = [query for query in queries if isinstance(query, str)] if isinstance(queries, list) else []
    return text_at(action, "query") or "; ".join(several)


def _read_failure(item: Item) -> ToolOutcome | None:
    if item.get("status") != "failed":
        return None
    return ToolFailure(ToolErrorCode.UNAVAILABLE, "The call failed.")


def _read_found(action: Item) -> SearchFound:
    sources = action.get("sources")
    listed = [source for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []
    urls = [url for source in listed if (url := text_at(source, "url"))]
    return SearchFound(tuple(SearchResult(url, url) for url in urls), None if urls else _NOT_KEPT)
