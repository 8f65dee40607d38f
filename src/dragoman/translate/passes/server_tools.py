"""Offer the gateway's own tools to a model as functions, and write what they return.

Both are the same bytes every time for the same conversation, so that a vendor's prompt cache stays valid.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.translate.framing.jsonread import parse_or
from dragoman.translate.hub.events import (
    CallBlock,
    Event,
    HostedBlock,
    Piece,
    RefusalBlock,
    TextBlock,
    ThinkingBlock,
    collect,
)
from dragoman.translate.hub.request import (
    Custom,
    Document,
    Foreign,
    Function,
    Hosted,
    Inline,
    Json,
    Part,
    Pick,
    Refusal,
    Request,
    Role,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Turn,
)
from dragoman.translate.hub.server_tools import (
    FETCH,
    SEARCH,
    CallPlace,
    SearchFound,
    SearchResult,
    ToolFailure,
    ToolOutcome,
    ToolText,
    ToolUseRecord,
    WebPage,
    seal_use,
)

RESULTS_BY_SIZE = {"low": 3, "medium": 6}
PDF = "application/pdf"

_CITE = "Cite what you use with Markdown links to its URL."
_DESCRIPTIONS = {
    SEARCH: "Search the web. Returns the titles, URLs and texts of the best results.",
    FETCH: "Read one web page or PDF. The URL must have appeared in the conversation before.",
}
_ARGUMENTS = {SEARCH: ("query", "What to search for."), FETCH: ("url", "The address of the page.")}


class ServerTools(Struct, frozen=True):
    """The tools of one request that the gateway runs."""

    declared: Mapping[str, Hosted]  # kind -> as the client declared it
    names: Mapping[str, str]  # kind -> the function's name upstream
    max_calls: int | None = None  # of all of them together, where the client limits them

    @property
    def kinds(self) -> dict[str, str]:
        """Return what each function upstream stands for."""
        return {name: kind for kind, name in self.names.items()}


def offer_server_tools(
    request: Request, kinds: Iterable[str], texts: Mapping[str, ToolText] = MappingProxyType({})
) -> tuple[Request, ServerTools | None]:
    """Replace server tools of these kinds by functions; None if the request has no such tool, or forbids calls.

    `texts` are those of the services themselves, by kind.
    """
    if Hosted not in map(type, request.tools):
        return request, None
    offered_kinds = set(kinds)
    declared = {tool.kind: tool for tool in request.tools if type(tool) is Hosted and tool.kind in offered_kinds}
    if not declared:
        return request, None
    if request.tool_choice is not None and request.tool_choice.pick is Pick.NONE:
        others = tuple(tool for tool in request.tools if not isinstance(tool, Hosted) or tool.kind not in declared)
        return replace(request, tools=others, tool_choice=request.tool_choice if others else None), None
    taken = {tool.name for tool in request.tools if isinstance(tool, Function | Custom)}
    names = {kind: _free_name(kind, taken) for kind in declared}
    kept = (tool for tool in request.tools if not isinstance(tool, Hosted) or declared.get(tool.kind, tool) is tool)
    tools = tuple(_function(tool, names, texts) for tool in kept)
    choice = None if request.tool_choice is None else _choose(request.tool_choice, names)
    offered = ServerTools(declared, names, request.max_tool_calls)
    # The gateway keeps the limit itself, unless the upstream has tools of its own to count.
    limit = request.max_tool_calls if any(isinstance(tool, Hosted) for tool in tools) else None
    extras = request.extras
    if SEARCH in declared and extras.search_sources:  # the gateway lists those of its own searches
        extras = replace(extras, search_sources=False)
    changed = replace(request, tools=tools, tool_choice=choice, max_tool_calls=limit, extras=extras)
    return changed, offered


def withdraw_server_tools(request: Request, tools: ServerTools) -> Request:
    """Return the request of a later round without the gateway's tools: their limit is reached."""
    names = set(tools.names.values())
    kept = tuple(tool for tool in request.tools if isinstance(tool, Hosted) or tool.name not in names)
    choice = request.tool_choice
    if choice is not None and choice.allowed is not None:
        allowed = tuple(name for name in choice.allowed if name not in names)
        choice = replace(choice, allowed=allowed) if allowed else ToolChoice(Pick.NONE, choice.at)
    return replace(request, tools=kept, tool_choice=choice if kept else None)


def relax_choice(request: Request) -> Request:
    """Return the request of a later round: a forced call is forced once."""
    choice = request.tool_choice
    if choice is None or choice.pick not in (Pick.REQUIRED, Pick.NAMED):
        return request
    return replace(request, tool_choice=ToolChoice(Pick.AUTO, choice.at, allowed=choice.allowed))


def add_round(request: Request, events: Iterable[Event], results: Mapping[str, Part]) -> Request:
    """Append a reply exactly as it was received, and the results of its calls by call id.

    Only the arguments of these calls are rewritten: clients give back what they mean, not how the model wrote them,
    and a later turn has to be the same as this one.
    """
    reply = collect(events)
    parts = tuple(part for piece in reply.pieces for part in _parts_of(piece, is_paused=not results))
    parts = tuple(
        replace(part, arguments=write_arguments(read_arguments(part.arguments)))
        if isinstance(part, ToolCall) and part.id in results
        else part
        for part in parts
    )
    answers = tuple(results[part.id] for part in parts if isinstance(part, ToolCall) and part.id in results)
    answered = (Turn(Role.USER, answers),) if answers else ()
    return replace(request, turns=(*request.turns, Turn(Role.ASSISTANT, parts), *answered))


def read_arguments(text: str) -> dict[str, Json]:
    """Return the arguments of a call; those that are not a JSON object, as one argument."""
    value = parse_or(text or "{}", object, None)
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {"arguments": text}


def write_arguments(given: Mapping[str, Json]) -> str:
    """Return arguments as they are written in every turn."""
    return msgspec.json.encode(given).decode()


def find_places(events: Iterable[Event], names: Collection[str], round: int) -> dict[str, CallPlace]:
    """Return where the calls of server tools stand in a round's reply, by call id."""
    places: dict[str, CallPlace] = {}
    last = None
    for piece in collect(events).pieces:
        what = piece.what
        if isinstance(what, CallBlock) and what.name in names:
            last = what.id
            places[last] = CallPlace(last, round)
        elif last is not None:
            size = sum(map(measure_part, _parts_of(piece, is_paused=False)))
            places[last] = replace(places[last], rest=places[last].rest + size)
    return places


def measure_part(part: Part) -> int:
    """Return the size of a part as `CallPlace.rest` counts it: the same if a client gives back a text in pieces."""
    if isinstance(part, Text | Refusal):
        return len(part.text)
    return 0 if isinstance(part, Thinking) and not part.text and part.opaque is None else 1


def seal_outcome(block: HostedBlock, outcome: ToolOutcome) -> str:
    """Return what later turns need of a tool that the gateway ran, for a client whose own record holds too little."""
    if isinstance(outcome, SearchFound):
        outcome = SearchFound(outcome.read, outcome.text)
    return seal_use(ToolUseRecord(block.kind, block.input, outcome, block.place))


def write_result(call_id: str, outcome: ToolOutcome, *, documents: bool) -> ToolResult:
    """Write what a tool returned for the model. `documents`: it reads PDFs."""
    if isinstance(outcome, ToolFailure):
        return ToolResult(call_id, (Text(f"Error ({outcome.code.value}): {outcome.message}"),), is_error=True)
    if isinstance(outcome, WebPage):
        return _page_result(call_id, outcome, documents)
    text = outcome.text or list_results(outcome.read)
    return ToolResult(call_id, (Text(f"{text}\n\n{_CITE}" if outcome.results else text),))


def select_shown(outcome: ToolOutcome, tool: Hosted) -> ToolOutcome:
    """Return the outcome with what the model is shown of it: fewer results if the client requests a small context."""
    most = RESULTS_BY_SIZE.get(tool.context_size or "")
    if most is None or not isinstance(outcome, SearchFound) or outcome.text is not None:
        return outcome
    return replace(outcome, shown=most)


def _page_result(call_id: str, page: WebPage, documents: bool) -> ToolResult:
    if page.pdf is None:
        cut = "\n\n[The page is longer; this is its beginning.]" if page.truncated else ""
        return ToolResult(call_id, (Text(f"# {page.title}\nURL: {page.url}\n\n{page.text}{cut}"),))
    if not documents:
        message = f"{page.url} is a PDF, which this model cannot read."
        return ToolResult(call_id, (Text(f"Error (unsupported_content_type): {message}"),), is_error=True)
    return ToolResult(call_id, (Document(Inline(PDF, page.pdf), title=page.title), Text(f"URL: {page.url}")))


def list_results(results: tuple[SearchResult, ...]) -> str:
    """Write results as a numbered list."""
    if not results:
        return "The search found nothing."
    return "\n\n".join(
        "\n".join(filter(None, (f"{number}. {item.title}", f"URL: {item.url}", _date_line(item), item.text)))
        for number, item in enumerate(results, 1)
    )


def _date_line(item: SearchResult) -> str:
    return f"Date: {item.published}" if item.published else ""


def _parts_of(piece: Piece, *, is_paused: bool) -> tuple[Part, ...]:
    match piece.what:
        case TextBlock():
            return (Text(piece.text, citations=piece.citations if is_paused else ()),)
        case RefusalBlock():
            return (Refusal(piece.text),)
        case ThinkingBlock(raw=raw):
            return (Thinking(piece.text, opaque=piece.opaque, raw=raw),)
        case CallBlock(id=id, name=name, custom=custom, namespace=namespace):
            return (ToolCall(id, name, piece.text or "{}", custom=custom, namespace=namespace),)
        case HostedBlock(kind=kind, raw=raw):
            blocks = raw if isinstance(raw, list) else (raw,)
            return tuple(Foreign(kind, block, is_upstreams=True) for block in blocks if isinstance(block, dict))


def _free_name(kind: str, taken: set[str]) -> str:
    """Return the tool's own name, or one that no tool of the client has."""
    names = (kind, *(f"gateway_{kind}{suffix}" for suffix in ("", *map(str, range(2, len(taken) + 3)))))
    return next(name for name in names if name not in taken)


def _function(tool: Tool, names: Mapping[str, str], texts: Mapping[str, ToolText]) -> Tool:
    if not isinstance(tool, Hosted) or tool.kind not in names:
        return tool
    argument, described = _ARGUMENTS[tool.kind]
    text = texts.get(tool.kind) or ToolText(_DESCRIPTIONS[tool.kind])
    schema: Json = {
        "type": "object",
        "properties": {argument: {"type": "string", "description": text.argument or described}},
        "required": [argument],
        "additionalProperties": False,
    }
    return Function(names[tool.kind], tool.at, text.description, schema)


def _choose(choice: ToolChoice, names: Mapping[str, str]) -> ToolChoice:
    allowed = choice.allowed
    if allowed is not None:
        renamed = [name for name in allowed if name in names and name in choice.allowed_hosted]
        # A name that is listed twice is a function of the client as well.
        kept = [name for name in allowed if name not in renamed or allowed.count(name) > 1]
        allowed = tuple(dict.fromkeys([*kept, *(names[name] for name in renamed)]))
    if choice.pick is Pick.NAMED and choice.hosted is not None and choice.hosted in names:
        return ToolChoice(Pick.NAMED, choice.at, name=names[choice.hosted], allowed=allowed)
    return replace(choice, allowed=allowed)
