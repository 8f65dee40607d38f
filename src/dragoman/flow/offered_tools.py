"""Offer the tools that the gateway runs itself in place of a client's hosted tools."""

from typing import Protocol

from msgspec import Struct

from dragoman.flow.call import Call
from dragoman.hub.loss import Ledger
from dragoman.hub.request import Hosted, Request
from dragoman.passes.server_tools import ServerTools, offer_server_tools, write_earlier_uses
from dragoman.tools.plan import ToolPlan


class EarlierRounds(Protocol):
    """The rounds of a reply between which the gateway has run tools."""

    def extend(self, request: Request, tools: ServerTools) -> Request: ...


class OfferedTools(Struct, frozen=True):
    """The client's request, with the tools that the gateway runs as functions."""

    request: Request
    tools: ServerTools | None


async def declares_server_tool(call: Call, plan: ToolPlan | None) -> bool:
    """Whether a request that could pass unchanged declares a tool that only the gateway can run."""
    if plan is None or not plan.mentions(call.body):
        return False
    await call.read()
    kinds = plan.kinds - plan.native
    return any(isinstance(tool, Hosted) and tool.kind in kinds for tool in call.request().tools)


def offer_tools(
    call: Call, plan: ToolPlan | None, rounds: EarlierRounds | None, upstream: str, ledger: Ledger
) -> OfferedTools:
    """Return the client's request with functions for the tools that the gateway runs, and with its earlier rounds."""
    request, tools = call.request(), None
    if plan is not None:
        request, tools = offer_server_tools(request, plan.kinds)
    if tools is not None or upstream != request.protocol:
        names = {} if tools is None else tools.names
        request = write_earlier_uses(request, call.client.read_tool_uses, names, ledger)
    if tools is not None and rounds is not None:
        request = rounds.extend(request, tools)
    return OfferedTools(request, tools)
