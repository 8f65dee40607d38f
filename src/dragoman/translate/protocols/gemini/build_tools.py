"""Build the tools and the tool choice of a Gemini request."""

from collections.abc import Sequence

from msgspec import Struct

from dragoman.translate.hub.ext import is_indispensable, record_unread_fields, restore
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import Custom, Function, Hosted, Pick, Request, Tool
from dragoman.translate.protocols.gemini.build_schema import clean_schema, has_no_arguments
from dragoman.translate.protocols.gemini.wire import HOSTED_TOOLS, NAME, VERTEX, Wire

_MCP = "mcp"
_RUN_BY_GOOGLE = frozenset((*HOSTED_TOOLS, _MCP))
_MODES = {Pick.AUTO: "AUTO", Pick.NONE: "NONE", Pick.REQUIRED: "ANY", Pick.NAMED: "ANY"}


class Offered(Struct):
    """The fields of the body that declare tools and choose among them."""

    fields: Wire
    has_functions: bool


def build_tools(request: Request, target: Target, ledger: Ledger) -> Offered:
    hosted = _choose_hosted(request, target, ledger)
    functions = [tool for tool in request.tools if type(tool) is Function]
    _check_names(functions)
    declared = [_build_function(tool, request.protocol, ledger) for tool in functions]
    for function, wire in zip(functions, declared, strict=True) if request.protocol == NAME else ():
        restore(wire, function.ext)
    for tool in request.tools:
        if type(tool) is Custom:  # adapt_tools has made functions of them
            ledger.record_dropped(tool.at, "Gemini has no freeform tools")
    if request.parallel is False and declared:
        ledger.record_dropped(request.pointer("parallel"), "Gemini cannot be limited to one call at a time")
    entries: list[Wire] = [{"functionDeclarations": declared}] if declared else []
    entries += [_build_hosted(tool, request, target, ledger) for tool in hosted]
    body: Wire = {"tools": entries} if entries else {}
    config = _build_choice(request, bool(declared), hosted, ledger)
    if request.protocol == NAME and any(tool.strict for tool in functions):
        config = _validate(config)
    if hosted and declared:
        # The configuration with which functions and tools that Google runs may stand side by side.
        calling = config.get("functionCallingConfig")
        calling = dict(calling) if isinstance(calling, dict) else {"mode": "AUTO"}
        if calling["mode"] == "AUTO":
            calling["mode"] = "VALIDATED"  # beside the flag, AUTO is refused
        config = {"functionCallingConfig": calling, "includeServerSideToolInvocations": True}
    if config:
        body["toolConfig"] = config
    return Offered(body, bool(declared))


def _check_names(functions: Sequence[Function]) -> None:
    seen: set[str] = set()
    for tool in functions:
        if tool.name in seen:
            raise BadRequest(tool.at, f"Two tools are called {tool.name!r}. Rename or remove one.")
        seen.add(tool.name)


def _build_function(tool: Function, protocol: str, ledger: Ledger) -> Wire:
    wire: Wire = {"name": tool.name}
    if tool.description is not None:
        wire["description"] = tool.description
    if tool.parameters is not None and not has_no_arguments(tool.parameters):
        schema = clean_schema(tool.parameters, tool.pointer("parameters"), ledger)
        wire["parametersJsonSchema"] = {"type": "object", **schema} if isinstance(schema, dict) else schema
    if tool.strict and protocol != NAME:  # there it is a mode of all functions
        ledger.record_dropped(tool.pointer("strict"), "Gemini has no strict functions")
    if tool.deferred:
        ledger.record_approximated(f"{tool.at}/defer_loading", "Gemini has no tool search; the tool is offered at once")
    return wire


# Tools that Google runs


def _choose_hosted(request: Request, target: Target, ledger: Ledger) -> list[Hosted]:
    """Return the tools that Google can run for this request; raise BadRequest if it needs another one."""
    if Hosted not in map(type, request.tools):
        return []
    has_functions = any(isinstance(tool, Function) for tool in request.tools)
    mixes = target.profile.hosted_beside_functions and VERTEX not in target.quirks
    kept: list[Tool] = [tool for tool in request.tools if not isinstance(tool, Hosted)]
    hosted = [tool for tool in request.tools if isinstance(tool, Hosted)]
    if request.protocol == NAME:
        return hosted
    usable = [tool for tool in hosted if tool.kind in _RUN_BY_GOOGLE and (mixes or not has_functions)]
    for tool in hosted:
        if tool in usable:
            continue
        if is_indispensable(tool, request.tool_choice, [*kept, *usable]):
            raise BadRequest(
                tool.at, f"This model's provider cannot run the tool {tool.kind!r}. Remove it or choose another model."
            )
        why = "beside functions" if tool.kind in _RUN_BY_GOOGLE else "at all"
        ledger.record_dropped(tool.at, f"{target.model} cannot run {tool.kind!r} {why}")
    return usable


def _build_hosted(tool: Hosted, request: Request, target: Target, ledger: Ledger) -> Wire:
    if request.protocol == NAME and isinstance(tool.raw, dict):
        return {"mcpServers": [tool.raw]} if tool.kind == _MCP else _restore_hosted(tool, tool.raw)
    ledger.record_approximated(tool.at, f"{tool.kind!r} works differently at this upstream")
    record_unread_fields(tool, NAME, ledger)
    if tool.kind == _MCP:
        return {"mcpServers": [_build_server(tool, request.protocol, ledger)]}
    settings: Wire = {}
    if tool.blocked_domains and tool.kind == "web_search" and VERTEX in target.quirks:
        settings["excludeDomains"] = list(tool.blocked_domains)
    return {HOSTED_TOOLS[tool.kind]: settings}


def _restore_hosted(tool: Hosted, raw: dict[str, object]) -> Wire:
    if not tool.blocked_domains:
        return dict(raw)
    return {
        key: {**(settings if isinstance(settings, dict) else {}), "excludeDomains": list(tool.blocked_domains)}
        for key, settings in raw.items()
    }


def _build_server(tool: Hosted, protocol: str, ledger: Ledger) -> Wire:
    if tool.server_url is None:
        raise BadRequest(tool.at, "The MCP server has no server_url, and Google reaches MCP servers only by URL.")
    raw = tool.raw if isinstance(tool.raw, dict) else {}
    if protocol == "responses" and raw.get("require_approval", "always") != "never":
        raise BadRequest(
            f"{tool.at}/require_approval", 'require_approval must be "never": Google does not ask for approval.'
        )
    if tool.allowed_tools is not None:
        ledger.record_dropped(f"{tool.at}/allowed_tools", "Google offers all tools of an MCP server")
    transport: Wire = {"url": tool.server_url}
    if tool.authorization is not None:
        transport["headers"] = {"Authorization": f"Bearer {tool.authorization}"}
    return {"name": tool.server_name or "server", "streamableHttpTransport": transport}


def _validate(config: Wire) -> Wire:
    """Return the configuration with calls checked against their schemas, unless another mode is chosen."""
    calling = config.get("functionCallingConfig")
    if not isinstance(calling, dict) or calling["mode"] != "AUTO":
        return config
    return {**config, "functionCallingConfig": {**calling, "mode": "VALIDATED"}}


# The choice


def _build_choice(request: Request, has_functions: bool, hosted: Sequence[Hosted], ledger: Ledger) -> Wire:
    choice = request.tool_choice
    if choice is None or (choice.hosted is not None and any(tool.kind == choice.hosted for tool in hosted)):
        return {}  # Gemini decides by itself when it searches
    if choice.hosted is not None:
        raise BadRequest(
            choice.at,
            f"tool_choice names {choice.hosted!r}, which this upstream cannot run. Name a function instead.",
        )
    if not has_functions:  # a configuration without functions is refused
        if choice.pick in (Pick.REQUIRED, Pick.NAMED) and not hosted:
            raise BadRequest(
                choice.at, "tool_choice requires a tool call, but tools is empty. Add a tool or remove tool_choice."
            )
        return {}
    calling: Wire = {"mode": _MODES[choice.pick]}
    allowed = [choice.name] if choice.pick is Pick.NAMED else list(choice.allowed or ())
    if allowed and choice.pick is not Pick.NONE:
        # A subset of names is taken with ANY and VALIDATED; the latter lets the model answer in text.
        calling["mode"] = "VALIDATED" if choice.pick is Pick.AUTO else "ANY"
        if choice.pick is Pick.AUTO and request.protocol != NAME:
            ledger.record_approximated(choice.at, "Gemini also holds the calls of an allowed tool to its schema")
        calling["allowedFunctionNames"] = allowed
    return {"functionCallingConfig": calling}
