"""Parse a client's Messages request into a hub request; unread fields are extras in `ext`."""

from collections.abc import Callable

from dragoman.framing.fields import BadField, Fields, read_body, unread_fields
from dragoman.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.hub.loss import Ledger
from dragoman.hub.profile import EFFORTS
from dragoman.hub.request import Ext, Format, Json, Reasoning, Request, Role, Shape, Switch, Turn
from dragoman.protocols.messages.parse_content import parse_cache, parse_content
from dragoman.protocols.messages.parse_tools import parse_choice, parse_tools
from dragoman.protocols.messages.wire import NAME

_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_SWITCHES = {switch.value: switch for switch in Switch}

# The protocol's names of fields -> the hub's names.
_NAMES = {
    "messages": "turns",
    "tools": "tools",
    "tool_choice": "tool_choice",
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop_sequences": "stop",
    "service_tier": "service_tier",
    "stream": "stream",
    "thinking": "reasoning",
    "cache_control": "cache",
}


def parse(body: bytes, ledger: Ledger) -> Request:
    return _parse(body, _parse_max_tokens)


def parse_for_count(body: bytes, ledger: Ledger) -> Request:
    """Parse the body of a count_tokens request, which needs no max_tokens."""
    return _parse(body, lambda top: top.integer("max_tokens"))


def _parse(body: bytes, read_max_tokens: Callable[[Fields], int | None]) -> Request:
    try:
        raw = read_body(body)
        return _parse_request(Fields(raw), raw, read_max_tokens)
    except BadField as bad:
        raise BadRequest(bad.at, bad.message) from bad


def _parse_request(top: Fields, raw: dict[str, Json], read_max_tokens: Callable[[Fields], int | None]) -> Request:
    _refuse_server_state(top)
    model = top.need_text("model")
    max_tokens = read_max_tokens(top)
    turns = _parse_turns(top)
    tools = parse_tools(top)
    choice, parallel = parse_choice(top, tools)
    output = top.obj("output_config")
    thinking = top.obj("thinking")
    metadata = top.obj("metadata")
    cache, control = parse_cache(top)
    reasoning, extras = _parse_reasoning(thinking, output)
    format, format_fields = _parse_format(top, output)
    return Request(
        protocol=NAME,
        model=model,
        turns=turns,
        tools=tools,
        tool_choice=choice,
        parallel=parallel,
        max_tokens=max_tokens,
        temperature=top.number("temperature"),
        top_p=top.number("top_p"),
        top_k=top.integer("top_k"),
        stop=_parse_stop(top),
        reasoning=reasoning,
        format=format,
        cache=cache,
        user=metadata.text("user_id") if metadata is not None else None,
        service_tier="default" if top.text("service_tier") == "standard_only" else None,
        stream=top.flag("stream", False),
        where=_find_pointers(top, format),
        ext={**extras, **_parse_extras(top), **unread_fields(top, output, thinking, metadata, control, format_fields)},
        raw=raw,
    )


def _refuse_server_state(top: Fields) -> None:
    if top.has("thread"):
        detail: dict[str, object] = {"error_code": "thread_unsupported_request"}
        message = "This gateway keeps no threads. Send the whole conversation without `thread`."
        raise RequestError(Failure(Kind.BAD_REQUEST, message, at="/thread", detail=detail))
    container = top.raw("container")
    named = container.get("id") if isinstance(container, dict) else container
    if named is not None:
        raise BadRequest("/container", "container names a container that exists only at its vendor. Remove it.")


def _parse_max_tokens(top: Fields) -> int:
    value = top.integer("max_tokens")
    if value is None:
        raise BadField("/max_tokens", "is required")
    if value < 0:
        raise top.bad("max_tokens", "must not be negative")
    return value


def _parse_turns(top: Fields) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    system = top.text_or_objects("system")
    if system:
        turns.append(Turn(Role.SYSTEM, parse_content(system, "/system"), "/system"))
    messages = top.need_objects("messages")
    if not messages:
        raise top.bad("messages", "must hold at least one message")
    for message in messages:
        role = message.one_of("role", _ROLES)
        content = message.text_or_objects("content")
        if role is None or content is None:
            raise BadField(message.pointer("role" if role is None else "content"), "is required")
        parts = parse_content(content, message.pointer("content"))
        turns.append(Turn(_ROLES[role], parts, message.at, unread_fields(message)))
    return tuple(turns)


def _parse_stop(top: Fields) -> tuple[str, ...]:
    stops = top.items("stop_sequences")
    if not stops:
        return ()
    if not all(isinstance(stop, str) for stop in stops):
        raise top.bad("stop_sequences", "must be an array of strings")
    return tuple(str(stop) for stop in stops)


def _parse_reasoning(thinking: Fields | None, output: Fields | None) -> tuple[Reasoning | None, Ext]:
    """Return the reasoning settings, and those that only this protocol has."""
    extras: Ext = {}
    effort = output.text("effort") if output is not None else None
    if effort is not None and effort not in EFFORTS:
        extras["output_config/effort"] = effort
        effort = None
    kind = thinking.need_text("type") if thinking is not None else None
    if thinking is None or kind not in _SWITCHES:
        if kind is not None:
            extras["thinking/type"] = kind
        return (Reasoning("/output_config/effort", effort) if effort else None), extras
    return (
        Reasoning(
            at="/output_config/effort" if effort else "/thinking",
            effort=effort,
            budget=thinking.integer("budget_tokens"),
            budget_at="/thinking/budget_tokens",
            switch=_SWITCHES[kind],
            switch_at="/thinking",
            show=thinking.text("display"),
            show_at="/thinking/display",
        ),
        extras,
    )


def _parse_format(top: Fields, output: Fields | None) -> tuple[Format | None, Fields | None]:
    for holder, key in ((output, "format"), (top, "output_format")):  # the second is the older place
        if holder is None or not holder.has(key):
            continue
        format = holder.need_obj(key)
        if format.need_text("type") != "json_schema":
            raise format.bad("type", 'must be "json_schema"')
        format.need_obj("schema")
        return Format(Shape.SCHEMA, format.at, schema=format.raw("schema")), format
    return None, None


def _parse_extras(top: Fields) -> Ext:
    """Return values that the hub does not have, without the protocol's defaults."""
    extras: Ext = {}
    for key, usual in (("service_tier", ("auto", "standard_only")), ("speed", ("standard",)), ("container", ())):
        value = top.raw(key)
        if value is not None and value not in usual:
            extras[key] = value
    return extras


def _find_pointers(top: Fields, format: Format | None) -> dict[str, str]:
    where = {_NAMES[key]: top.pointer(key) for key in top.names() if key in _NAMES}
    where["parallel"] = "/tool_choice/disable_parallel_tool_use"
    where["user"] = "/metadata/user_id"
    if format is not None:
        where["format"] = format.at
    return where
