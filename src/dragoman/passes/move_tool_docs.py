"""Move long tool descriptions of a request into its instructions."""

from msgspec.structs import replace

from dragoman.hub.loss import Ledger
from dragoman.hub.request import Function, Request, Role, Text, Tool, Turn
from dragoman.passes.tag_instructions import split_leading_instructions

HEADING = "# Tool documentation"


def move_tool_docs(request: Request, limit: int, ledger: Ledger) -> Request:
    """Return the request with descriptions of more than `limit` characters as sections, and references in the tools."""
    long = [tool for tool in request.tools if isinstance(tool, Function) and _is_long(tool, limit)]
    if not long:
        return request
    for tool in long:
        at = tool.pointer("description")
        ledger.note_approximated(at, f"a description of more than {limit} characters is moved into the instructions")
    sections = [f"## Tool: {tool.name}\n\n{tool.description}" for tool in long]
    docs = Turn(Role.SYSTEM, (Text("\n\n".join([HEADING, *sections])),))
    leading, turns = split_leading_instructions(request.turns)
    tools = tuple(_refer_to_section(tool) if _is_long(tool, limit) else tool for tool in request.tools)
    return replace(request, turns=(*leading, docs, *turns), tools=tools)


def _is_long(tool: Tool, limit: int) -> bool:
    return isinstance(tool, Function) and tool.description is not None and len(tool.description) > limit


def _refer_to_section(tool: Tool) -> Tool:
    assert isinstance(tool, Function)
    pointer = f'The full documentation of this tool is in the system prompt, under "Tool: {tool.name}".'
    return replace(tool, description=pointer)
