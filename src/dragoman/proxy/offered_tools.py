"""Offer the tools that the gateway runs itself in place of a client's hosted tools."""

from collections.abc import Collection
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import Struct

from dragoman.net.body_threads import run_off_loop
from dragoman.proxy.call import Call
from dragoman.server_tools.backends import ToolPlan
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Protocol
from dragoman.translate.hub.request import Foreign, Hosted, Request
from dragoman.translate.hub.server_tools import SEARCH, TOKEN_MARK, ServerToolUse, ToolText
from dragoman.translate.passes.earlier_uses import (
    WritingRules,
    find_unrun_uses,
    write_earlier_uses,
    write_own_uses_as_text,
)
from dragoman.translate.passes.server_tools import ServerTools, offer_server_tools

if TYPE_CHECKING:  # it imports this module
    from dragoman.proxy.rounds import Rounds

TOKEN = TOKEN_MARK.encode()
_get_parts = attrgetter("parts")

# Settings that change nothing for a tool which the gateway runs, with the values of which this is so; None: all.
_WITHOUT_EFFECT: dict[str, tuple[object, ...] | None] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "response_inclusion": None,  # of results that code has read
    "strict": None,
    "use_cache": None,  # nothing is cached
}


class OfferedTools(Struct, frozen=True):
    """The tools that the gateway runs, offered to the model as functions."""

    tools: ServerTools | None = None  # None: it runs none of those that the client asks for
    plan: ToolPlan | None = None
    unrun: tuple[ServerToolUse, ...] = ()  # uses in the client's history that must run first


_NO_TOOLS = OfferedTools()


async def find_server_tools(call: Call, plan: ToolPlan) -> tuple[str, ...]:
    """Return the tools of a request that could pass unchanged which only the gateway can run."""
    if not plan.mentions(call.body):
        return ()
    await call.read()
    kinds = plan.kinds - plan.native
    declared = (tool.kind for tool in call.request().tools if isinstance(tool, Hosted))
    return tuple(dict.fromkeys(kind for kind in declared if kind in kinds))


def choose_unmixed(request: Request, plan: ToolPlan) -> ToolPlan:
    """Return the plan for a request to an upstream whose own tools do not work beside functions."""
    if plan.beside_functions is None:
        return plan
    hosted = {tool.kind for tool in request.tools if type(tool) is Hosted}
    has_functions = any(type(tool) is not Hosted for tool in request.tools) or not hosted.isdisjoint(plan.kinds)
    return plan.beside_functions if has_functions and not hosted.isdisjoint(plan.native) else plan


async def offer_tools(
    call: Call, plan: ToolPlan | None, rounds: "Rounds | None", protocol: Protocol, ledger: Ledger
) -> tuple[Request, OfferedTools]:
    """Return the client's request with functions for the tools that the gateway runs, and with its earlier rounds.

    Raises BadRequest if a tool's settings contradict each other.
    """
    request, tools = call.request(), None
    unrun: tuple[ServerToolUse, ...] = ()
    check_domains(request)
    if plan is not None:
        request, tools = offer_server_tools(request, plan.kinds, await _describe_tools(request, plan, rounds is None))
        for declared in () if tools is None else tools.declared.values():
            record_settings(declared, plan.located_by, ledger)
    if tools is None and protocol.name == request.protocol:
        if TOKEN in call.body or _has_stored_uses(request):
            request = write_own_uses_as_text(request, call.client.read_tool_uses, ledger)
    elif _has_foreign_parts(request):
        names, read_uses = {} if tools is None else tools.names, call.client.read_tool_uses
        if rounds is None:
            unrun = find_unrun_uses(request, read_uses, names)
        assert protocol.upstream is not None
        ran = {} if rounds is None else rounds.results
        rules = WritingRules(names, protocol.upstream.reads_documents, ran, call.client.cites_apart)
        request = await run_off_loop(call.size, partial(write_earlier_uses, request, read_uses, rules, ledger))
    if rounds is not None:
        request = rounds.extend(request, tools)
    return request, _NO_TOOLS if plan is None and not unrun else OfferedTools(tools, plan, unrun)


async def _describe_tools(request: Request, plan: ToolPlan, is_first_round: bool) -> dict[str, ToolText]:
    """Return the texts of services about the tools that the request declares."""
    if plan.describe_search is None or not any(type(tool) is Hosted and tool.kind == SEARCH for tool in request.tools):
        return {}
    text = await plan.describe_search(is_first_round)
    return {} if text is None else {SEARCH: text}


def _has_foreign_parts(request: Request) -> bool:
    """Whether a turn has parts of its protocol's own, as the uses of server tools are."""
    for turn in request.turns:
        for part in turn.parts:
            if type(part) is Foreign:
                return True
    return False


def _has_stored_uses(request: Request) -> bool:
    """Whether a turn has parts that stand for a use which only the gateway can read."""
    parts = chain.from_iterable(map(_get_parts, request.turns))
    return any(type(part) is Foreign and part.use is not None for part in parts)


def check_domains(request: Request) -> None:
    """Raise BadRequest if a tool both allows and blocks domains, which its vendor refuses too."""
    for tool in request.tools:
        if type(tool) is Hosted and tool.allowed_domains and tool.blocked_domains:
            raise BadRequest(
                tool.blocked_pointer,
                f"{tool.kind} takes either allowed_domains or blocked_domains, not both. Remove one of them.",
            )


def record_settings(tool: Hosted, located_by: Collection[str], ledger: Ledger) -> None:
    """Note the settings that are not followed exactly; `located_by` are the fields of a location that are used."""
    for key, value in tool.ext.items():
        harmless = _WITHOUT_EFFECT.get(key, ())
        if value is not None and harmless is not None and value not in harmless:
            ledger.record_approximated(f"{tool.at}/{key}", f"the gateway's own {tool.kind} has no such setting")
    if tool.filters_results:
        ledger.record_approximated(f"{tool.at}/type", "the model reads results whole and does not filter them by code")
    if tool.max_content_tokens is not None:
        ledger.record_approximated(f"{tool.at}/max_content_tokens", "a token is taken for four characters")
    if isinstance(tool.location, dict) and not tool.location.keys() - {"type"} <= set(located_by):
        used = " and ".join(located_by) or "nothing"
        ledger.record_approximated(f"{tool.at}/user_location", f"of a location, the search service uses {used}")
