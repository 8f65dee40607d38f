"""Repair a tool call whose arguments were cut: their rest is requested from the same upstream.

The rest of the arguments is requested once. It is used only if the whole parses and satisfies the
tool's schema; otherwise the reply ends as `length`, and the next request of the conversation says what was lost.
"""

import asyncio
import logging
import re
from hashlib import sha256
from typing import TYPE_CHECKING
from uuid import NAMESPACE_OID, uuid5

from msgspec import Struct
from msgspec.structs import replace

from dragoman.net.bodies import read_and_close
from dragoman.net.client import ConnectionLost, SizeLimitExceeded, UpstreamTimeout
from dragoman.net.headers import Headers
from dragoman.proxy.accounts import reserve_turn
from dragoman.proxy.authorization import authorize
from dragoman.proxy.between_turns import CallScope, Then
from dragoman.proxy.decoding import make_estimate
from dragoman.proxy.prepared import Translated
from dragoman.proxy.request_record import Awaited
from dragoman.proxy.source import EventSource
from dragoman.state.lost_calls import digest_conversation, make_lost_call
from dragoman.translate.framing.jsonread import parse_or
from dragoman.translate.hub.events import (
    CallBlock,
    Closed,
    Delta,
    Ended,
    Event,
    Opened,
    Reply,
    Stop,
    TextBlock,
    TruncatedCall,
    collect,
)
from dragoman.translate.hub.failure import RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import Function, Json, Request, Role, Text, Turn
from dragoman.translate.hub.usage import Usage
from dragoman.translate.stages.hold_end import HoldTruncatedCall
from dragoman.upstreams.provider import Attempt, UnsignedRequest

if TYPE_CHECKING:  # it imports this module
    from dragoman.proxy.replies.translated import TranslatedReply

log = logging.getLogger(__name__)

TIMEOUT_S = 60.0
MAX_BYTES = 4 * 1024 * 1024


class CutCalls(Struct, frozen=True):
    """The reply is complete but for tool calls whose arguments were cut, which were not written for the client."""

    prepared: Translated
    reply: "TranslatedReply"
    calls: tuple[TruncatedCall, ...]


def find_cut_calls(prepared: Translated, reply: "TranslatedReply") -> CutCalls | None:
    hold = reply.find_stage(HoldTruncatedCall)
    return None if hold is None or hold.held is None else CutCalls(prepared, reply, hold.held.cut)


class CompleteCall(Struct, frozen=True):
    """Ask the same upstream for the rest of its cut call, and write the call; if it is not found, drop it."""

    cut: CutCalls

    async def run(self, scope: CallScope) -> Then:
        reply, record = self.cut.reply, scope.call.record
        hold = reply.find_stage(HoldTruncatedCall)
        assert hold is not None
        [cut] = self.cut.calls
        reply.wait_for(Awaited.MORE)
        _settle_usage(self.cut)
        if not await reserve_turn(scope.call.lease, reply.used_so_far()):
            record.awaits = None
            return await DropCutCalls(self.cut).run(scope)
        record.attempts += 1
        completion = await complete_call(self.cut.prepared, hold.text, cut)
        record.awaits = None
        if completion.usage is not None:
            reply.add_usage(completion.usage)
        if completion.arguments is None:
            return await DropCutCalls(self.cut).run(scope)
        reply.write_events((*call_events(hold.next_block, cut, completion.arguments), Ended(Stop.TOOL)))
        return Then.FINISH


def _settle_usage(cut: CutCalls) -> None:
    """Count the cut calls, which were paid for, in what the turn has used."""
    cut.reply.settle_usage("".join(f"\n{call.name}\n{call.arguments}" for call in cut.calls))


class DropCutCalls(Struct, frozen=True):
    """End the reply as `length`, without its cut calls; the next request of the conversation says what was lost."""

    cut: CutCalls

    async def run(self, scope: CallScope) -> Then:
        call = scope.call
        lost = tuple(make_lost_call(cut.name, cut.arguments) for cut in self.cut.calls)
        _settle_usage(self.cut)
        await scope.memory.remember(call.tenant, digest_conversation(call.request())[0], lost)
        self.cut.reply.write_events([Ended(Stop.LENGTH)])
        return Then.FINISH


class Completion(Struct, frozen=True):
    """The result of requesting the rest of a cut call."""

    arguments: str | None = None  # the whole of them; None if they could not be completed
    usage: Usage | None = None  # of the request, if it was answered


async def complete_call(prepared: Translated, text: str, call: TruncatedCall) -> Completion:
    """Request the rest of a cut call's arguments from its upstream; `text` is the reply's text before the call."""
    request = ask_for_rest(prepared.request, text, call)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reply, usage = await _collect_reply(prepared, request)
    except (TimeoutError, ConnectionLost, UpstreamTimeout, SizeLimitExceeded, RequestError) as problem:
        log.info("the rest of a cut call to %s could not be read: %r", call.name, problem)
        return Completion()
    return Completion(complete_arguments(prepared.request, call, reply), usage)


def ask_for_rest(request: Request, text: str, call: TruncatedCall) -> Request:
    """Return the same conversation with the cut reply as text and a request for its rest, without thinking."""
    before = f"{text}\n\n" if text else ""
    cut = Text(f"{before}Arguments of my call to the tool {call.name}, as JSON:\n{call.arguments}")
    instruction = Text(
        f"Your reply was cut off inside the arguments of the call to {call.name}. Reply with only the remaining "
        "characters of that JSON, from exactly where it stops, without repeating anything and without explanation."
    )
    turns = (*request.turns, Turn(Role.ASSISTANT, (cut,)), Turn(Role.USER, (instruction,)))
    return replace(request, turns=turns, reasoning=None)


def complete_arguments(request: Request, call: TruncatedCall, reply: Reply) -> str | None:
    """Return the whole arguments of the cut call, given what its upstream answered; None if they are not there."""
    tools = (tool for tool in request.tools if isinstance(tool, Function) and tool.name == call.name)
    schema = next((tool.parameters for tool in tools), None)
    for piece in reply.pieces:
        is_same_tool = isinstance(piece.what, CallBlock) and piece.what.name == call.name
        if is_same_tool and satisfies(piece.text, schema):
            return piece.text
    text = "".join(piece.text for piece in reply.pieces if isinstance(piece.what, TextBlock))
    return join_arguments(call.arguments, text, schema) if text else None


def call_events(block: int, call: TruncatedCall, arguments: str) -> tuple[Event, ...]:
    return Opened(block, CallBlock(call.id, call.name)), Delta(block, arguments), Closed(block)


async def _collect_reply(prepared: Translated, request: Request) -> tuple[Reply, Usage | None]:
    """Return the upstream's whole reply to another request and what it used; an empty one and None if it refuses."""
    provider, model = prepared.provider, prepared.route.model
    target = prepared.target
    unrecorded = replace(target, cache=replace(target.cache, take=lambda sent: None))  # no later request extends it
    body = prepared.upstream.build(request, unrecorded, Ledger())
    unsigned = _describe_anew(prepared, request, body)
    answer = await provider.send(unsigned.add_credentials(await authorize(provider, unsigned)), TIMEOUT_S)
    raw = await read_and_close(answer, MAX_BYTES, TIMEOUT_S)
    if answer.status != 200:
        return collect([]), None
    source = EventSource(prepared.upstream.framer(), prepared.upstream.decoder(prepared.issuer, Ledger()))
    events: list[Event] = source.feed(raw) + source.finish()
    estimate = make_estimate(request, model)
    for stage in (*(() if provider.replies.stages is None else provider.replies.stages(request)), estimate):
        events = [out for event in events for out in stage.feed(event)] + list(stage.finish())
    return collect(events), estimate.usage_so_far()


def _describe_anew(prepared: Translated, request: Request, body: bytes) -> UnsignedRequest:
    """Give the second request an id of its own; it is derived from the body, so that it is the same in a replay."""
    describe, unsigned = prepared.provider.requests.headers, prepared.unsigned
    id = str(uuid5(NAMESPACE_OID, sha256(body).hexdigest()))
    described = dict(describe(lambda: request, Headers([]), Attempt(id))) if describe is not None else {}
    own = tuple((name, described.get(name, value)) for name, value in unsigned.headers)
    return replace(unsigned, own=own, others=(), body=body)


FENCE = re.compile(r"\A\s*+```[a-zA-Z]*+\n?+(.*?)\n?```\s*+\Z", re.DOTALL)
FENCE_IN_PROSE = re.compile(r"^```[a-zA-Z]*\n(.*)\n```", re.DOTALL | re.MULTILINE)
MAX_OVERLAP = 400
REPEATED = 8  # characters in common that are no coincidence


def join_arguments(begun: str, rest: str, schema: Json) -> str | None:
    """Return the first reading of `rest` that completes the arguments and satisfies the tool's schema."""
    fenced = FENCE.match(rest)
    texts = [rest, rest.strip()]
    if fenced:
        texts.insert(0, fenced.group(1))
    elif fenced := FENCE_IN_PROSE.search(rest):
        texts.append(fenced.group(1))
    for text in dict.fromkeys(texts):
        readings = [begun + text, begun + text[_overlap(begun, text) :], text]
        if _overlap(begun, text) >= REPEATED:
            readings[:2] = readings[1::-1]
        for whole in readings:
            if satisfies(whole, schema):
                return whole
    return None


def satisfies(arguments: str, schema: Json) -> bool:
    """Whether these are the whole arguments of a call: an object that the tool's schema accepts."""
    value = parse_or(arguments, object, None)
    if not isinstance(value, dict):
        return False
    if not isinstance(schema, dict):
        return True
    import jsonschema_rs  # 4 MB, which few replies need

    try:
        # Offline: a client's schema must not make the gateway fetch an address.
        return bool(jsonschema_rs.is_valid(schema, value, offline=True))
    except ValueError:  # the schema itself is invalid
        return True


def _overlap(begun: str, text: str) -> int:
    """Return how many characters the model repeated before it continued."""
    longest = min(len(begun), len(text), MAX_OVERLAP)
    return next((size for size in range(longest, 0, -1) if begun.endswith(text[:size])), 0)
