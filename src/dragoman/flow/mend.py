"""A reply that ended in a cut tool call comes in; the events that complete it go out, or an honest short end.

The upstream is asked once for the rest of the arguments. What comes back is used only if the whole parses and satisfies
the tool's schema; otherwise the reply ends as `length`, and the next request of the conversation is told what was lost.
"""

import asyncio
import logging
from hashlib import sha256
from uuid import NAMESPACE_OID, uuid5

from msgspec.structs import replace

from dragoman.accounts.memory import Memory
from dragoman.flow.call import Call
from dragoman.flow.machines import source_of
from dragoman.flow.prepare import Prepared
from dragoman.flow.splice import satisfies, splice
from dragoman.hub.events import CallBlock, Closed, CutCall, Delta, Ended, Event, Opened, Stop, TextBlock, Used
from dragoman.hub.loss import Ledger
from dragoman.hub.profile import Target
from dragoman.hub.reply import Reply, collect
from dragoman.hub.request import Function, Json, Request, Role, Text, Turn
from dragoman.hub.usage import Usage
from dragoman.net.client import Lost, Outgoing, TimedOut, TooLarge
from dragoman.net.headers import Headers
from dragoman.passes.truncation_notice import digests, shortened
from dragoman.providers.provider import Trial
from dragoman.stages.hold_cut import HoldCut

log = logging.getLogger(__name__)

MEND_TIMEOUT_S = 60.0
MAX_MEND_BYTES = 4 * 1024 * 1024


class Mender:
    """Mends cut calls, and remembers those that it could not."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def events(self, call: Call, prepared: Prepared, hold: HoldCut, usage: Usage | None) -> list[Event]:
        """How the reply goes on after its cut."""
        assert hold.held is not None
        calls = hold.held.cut
        paid: tuple[Event, ...] = ()
        if prepared.provider.mend and len(calls) == 1:
            reply = await _rest_in_time(prepared, hold.said, calls[0])
            paid = () if reply.usage is None else (Used(_sum(usage, reply.usage)),)
            arguments = _whole(reply, calls[0], _schema(prepared.request, calls[0].name))
            if arguments is not None:
                return [*_call(hold.next_block, calls[0], arguments), *paid, Ended(Stop.TOOL)]
        lost = tuple(shortened(cut.name, cut.arguments) for cut in calls)
        await self._memory.remember(call.tenant, digests(call.request())[0], lost)
        return [*paid, Ended(Stop.LENGTH)]


def _call(block: int, call: CutCall, arguments: str) -> tuple[Event, ...]:
    return Opened(block, CallBlock(call.id, call.name)), Delta(block, arguments), Closed(block)


async def _rest_in_time(prepared: Prepared, said: str, call: CutCall) -> Reply:
    """Empty, where it is not to be had."""
    try:
        async with asyncio.timeout(MEND_TIMEOUT_S):
            return await _rest(prepared, said, call)
    except (TimeoutError, Lost, TimedOut, TooLarge) as problem:
        log.info("the rest of a cut call to %s was not to be had: %r", call.name, problem)
        return collect([])


async def _rest(prepared: Prepared, said: str, call: CutCall) -> Reply:
    assert prepared.request is not None
    provider = prepared.provider
    request = _follow_up(prepared.request, said, call)
    target = Target(prepared.route.model, provider.issuer, options=prepared.options)
    body = prepared.upstream.build(request, target, Ledger())
    answer = await provider.ask(_asked_anew(prepared, request, body), MEND_TIMEOUT_S)
    try:
        raw = await answer.read(MAX_MEND_BYTES, MEND_TIMEOUT_S)
    finally:
        answer.close()
    if answer.status != 200:
        return collect([])
    source = source_of(prepared, Ledger())
    events: list[Event] = source.feed(raw) + source.finish()
    for stage in provider.stages(request) if provider.stages is not None else ():
        events = [out for event in events for out in stage.feed(event)] + list(stage.finish())
    return collect(events)


def _asked_anew(prepared: Prepared, request: Request, body: bytes) -> Outgoing:
    """Another question than the first, so its id is another; made from its words, it is the same in a replay."""
    describe, out = prepared.provider.describe, prepared.out
    id = str(uuid5(NAMESPACE_OID, sha256(body).hexdigest()))
    told = dict(describe(lambda: request, Headers([]), Trial(id))) if describe is not None else {}
    return replace(out, body=body, headers=tuple((name, told.get(name, value)) for name, value in out.headers))


def _follow_up(request: Request, said: str, call: CutCall) -> Request:
    """The same conversation, the cut reply as text, and the plea for its rest, which needs no thinking."""
    spoken = f"{said}\n\n" if said else ""
    cut = Text(f"{spoken}Arguments of my call to the tool {call.name}, as JSON:\n{call.arguments}")
    plea = Text(
        f"Your reply was cut off inside the arguments of the call to {call.name}. Reply with only the remaining "
        "characters of that JSON, from exactly where it stops, without repeating anything and without explanation."
    )
    turns = (*request.turns, Turn(Role.ASSISTANT, (cut,)), Turn(Role.USER, (plea,)))
    return replace(request, turns=turns, reasoning=None)


def _whole(reply: Reply, call: CutCall, schema: Json) -> str | None:
    for piece in reply.pieces:
        same_tool = isinstance(piece.what, CallBlock) and piece.what.name == call.name
        if same_tool and satisfies(piece.text, schema):
            return piece.text
    text = "".join(piece.text for piece in reply.pieces if isinstance(piece.what, TextBlock))
    return splice(call.arguments, text, schema) if text else None


def _schema(request: Request | None, name: str) -> Json:
    tools = request.tools if request is not None else ()
    return next((tool.parameters for tool in tools if isinstance(tool, Function) and tool.name == name), None)


def _sum(first: Usage | None, second: Usage) -> Usage:
    """Both requests were paid for."""
    if first is None:
        return second
    paid = [usage.credits for usage in (first, second) if usage.credits is not None]
    return replace(
        first,
        input=first.input + second.input,
        output=first.output + second.output,
        cache_read=first.cache_read + second.cache_read,
        cache_write=first.cache_write + second.cache_write,
        reasoning=first.reasoning + second.reasoning,
        context=None if first.context is None else first.context + (second.context or 0),
        credits=sum(paid) if paid else None,
    )
