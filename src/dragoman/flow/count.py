"""Token counts before a request: the upstream's own where it counts, else our estimate, marked as one."""

import asyncio

import msgspec

from dragoman.flow.call import Call
from dragoman.flow.headers import id_headers
from dragoman.flow.plan import Passthrough, plan
from dragoman.flow.prepare import prepare
from dragoman.flow.rotation import rested
from dragoman.flow.serve import Gateway
from dragoman.flow.world import World, fitting, targets
from dragoman.hub.failure import Refused
from dragoman.hub.loss import Ledger
from dragoman.net.client import Lost, TimedOut, TooLarge
from dragoman.net.exchange import Exchange
from dragoman.net.headers import JSON, Header
from dragoman.providers.count import estimate
from dragoman.providers.profiles import profile_of
from dragoman.providers.provider import Provider
from dragoman.routing.resolve import Route

THREAD_ABOVE_BYTES = 64 * 1024
MAX_COUNT_BYTES = 64 * 1024
SUFFIX = {"messages": "/count_tokens", "responses": "/input_tokens"}


async def count_tokens(gateway: Gateway, exchange: Exchange, call: Call) -> None:
    world = gateway.world
    route = (await targets(world, call.model))[0]
    provider = world.providers.get(route.provider)
    if provider is not None:
        provider = rested(provider, route.model)
    head: list[Header] = [
        JSON,
        *id_headers(call.client, call.id, []),
        (b"x-dragoman-route", str(route).encode("ascii", "replace")),
    ]
    relayed = await _relayed(world, call, route, provider) if provider is not None else None
    if relayed is not None:
        exchange.respond(200, head, relayed)
        return
    request = (call.client.parse_to_count or call.client.parse)(call.body, Ledger())
    if len(call.body) > THREAD_ABOVE_BYTES:
        tokens = await asyncio.to_thread(estimate, request, route.model)
    else:
        tokens = estimate(request, route.model)
    body: dict[str, object] = {"input_tokens": tokens}
    if call.protocol.name == "responses":
        body = {"object": "response.input_tokens", **body}
    exchange.respond(200, [*head, (b"x-dragoman-estimate", b"1")], msgspec.json.encode(body))


class _Count(msgspec.Struct):
    input_tokens: int


async def _relayed(world: World, call: Call, route: Route, provider: Provider) -> bytes | None:
    """The upstream's count; None where it has none, or none now."""
    profile = profile_of(route.model)
    way = plan(call.protocol.name, await provider.spoken(route.model), profile, call.body)
    if not isinstance(way, Passthrough) or not provider.counts_tokens:
        return None
    timeout_s = world.config.server.first_token_timeout_s
    try:
        prepared = await prepare(call, route, provider, fitting(world, route))
        url, query_mark, query = prepared.out.url.partition("?")
        out = msgspec.structs.replace(prepared.out, url=url + SUFFIX[call.protocol.name] + query_mark + query)
        answer = await provider.ask(out, timeout_s)
        try:
            body = await answer.read(MAX_COUNT_BYTES, timeout_s)
        finally:
            answer.close()
    except (Lost, TimedOut, TooLarge, Refused):
        return None
    return body if answer.status == 200 and _is_count(body) else None


def _is_count(body: bytes) -> bool:
    """Whether it is one: an error may come under a good status too."""
    try:
        msgspec.json.decode(body, type=_Count)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True
