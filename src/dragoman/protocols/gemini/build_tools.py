"""Build the tools and the tool choice of a Gemini request."""

from dragoman.hub.ext import is_indispensable
from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.request import Custom, Function, Hosted, Pick, Request, ToolChoice
from dragoman.protocols.gemini.build_schema import clean_schema
from dragoman.protocols.gemini.wire import Wire

_MODES = {Pick.AUTO: "AUTO", Pick.NONE: "NONE", Pick.REQUIRED: "ANY", Pick.NAMED: "ANY"}


def build_tools(request: Request, ledger: Ledger) -> Wire:
    """Return the fields of the body that declare functions and choose among them."""
    _drop_hosted(request, ledger)
    declared = [_build_function(tool, ledger) for tool in request.tools if isinstance(tool, Function)]
    for tool in request.tools:
        if isinstance(tool, Custom):  # adapt_tools has made functions of them
            ledger.note_dropped(tool.at, "Gemini has no freeform tools")
    if request.parallel is False and declared:
        ledger.note_dropped(request.pointer("parallel"), "Gemini cannot be limited to one call at a time")
    body: Wire = {"tools": [{"functionDeclarations": declared}]} if declared else {}
    if request.tool_choice is not None:
        body |= _build_choice(request.tool_choice, bool(declared))
    return body


def _build_function(tool: Function, ledger: Ledger) -> Wire:
    at = tool.pointer("parameters")
    wire: Wire = {"name": tool.name}
    if tool.description is not None:
        wire["description"] = tool.description
    if tool.parameters is not None and not _has_no_arguments(tool.parameters):
        wire["parametersJsonSchema"] = clean_schema(tool.parameters, lambda why: ledger.note_approximated(at, why))
    if tool.strict:
        ledger.note_dropped(tool.pointer("strict"), "Gemini has no strict functions")
    if tool.deferred:
        ledger.note_approximated(f"{tool.at}/defer_loading", "Gemini has no tool search; the tool is offered at once")
    if tool.cache is not None:
        ledger.note_dropped(tool.cache.at, "Gemini has no cache breakpoints")
    return wire


def _has_no_arguments(schema: object) -> bool:
    """Return whether a schema is that of a function without arguments: Gemini wants none then."""
    return isinstance(schema, dict) and schema.keys() <= {"type", "properties"} and not schema.get("properties")


def _drop_hosted(request: Request, ledger: Ledger) -> None:
    """Leave out tools that another vendor runs; raise BadRequest if the answer depends on one of them."""
    others = [tool for tool in request.tools if not isinstance(tool, Hosted)]
    for tool in request.tools:
        if not isinstance(tool, Hosted):
            continue
        if is_indispensable(tool, request.tool_choice, others):
            raise BadRequest(
                tool.at, f"This model's provider cannot run the tool {tool.kind!r}. Remove it or choose another model."
            )
        ledger.note_dropped(tool.at, f"a Gemini upstream cannot run {tool.kind!r}")


def _build_choice(choice: ToolChoice, offered: bool) -> Wire:
    if choice.hosted is not None:
        raise BadRequest(
            choice.at,
            f"tool_choice names {choice.hosted!r}, which a Gemini upstream cannot run. Name a function instead.",
        )
    if not offered:
        if choice.pick in (Pick.REQUIRED, Pick.NAMED):
            raise BadRequest(
                choice.at, "tool_choice requires a tool call, but tools is empty. Add a tool or remove tool_choice."
            )
        return {}
    calling: Wire = {"mode": _MODES[choice.pick]}
    allowed = [choice.name] if choice.pick is Pick.NAMED else list(choice.allowed or ())
    if allowed and choice.pick is not Pick.NONE:
        # A subset of names is taken with ANY and VALIDATED; the latter lets the model answer in text.
        calling["mode"] = "VALIDATED" if choice.pick is Pick.AUTO else "ANY"
        calling["allowedFunctionNames"] = allowed
    return {"toolConfig": {"functionCallingConfig": calling}}
