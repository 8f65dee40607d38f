"""Parse the tools and the tool choice of a Gemini request."""

from collections.abc import Iterator

from msgspec.structs import replace

from dragoman.framing.fields import BadField
from dragoman.hub.request import Function, Hosted, Pick, Tool, ToolChoice
from dragoman.protocols.gemini.parse_fields import ProtoFields, unread_fields
from dragoman.protocols.gemini.parse_schema import read_dialect, read_json_schema

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


def parse_tools(top: ProtoFields) -> tuple[Tool, ...]:
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


def parse_choice(calling: ProtoFields | None, tools: tuple[Tool, ...]) -> tuple[ToolChoice | None, tuple[Tool, ...]]:
    """Return the choice of functionCallingConfig, and the tools: those of a mode that validates calls are strict."""
    if calling is None:
        return None, tools
    mode = calling.word("mode") or _UNSPECIFIED
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
