"""Count the tokens of a request: by its upstream if it can, else by an estimate that is marked as one."""

import logging

import msgspec

from dragoman.net.bodies import read_and_close
from dragoman.net.body_threads import run_off_loop
from dragoman.net.client import ConnectionLost, SizeLimitExceeded, UpstreamTimeout
from dragoman.net.headers import JSON, Header
from dragoman.net.sink import ReplySink
from dragoman.proxy.authorization import authorize
from dragoman.proxy.call import Call
from dragoman.proxy.credential_rotation import choose_least_restricted
from dragoman.proxy.prepare import prepare_once
from dragoman.proxy.protocol_choice import choose_protocol
from dragoman.proxy.response_headers import id_headers
from dragoman.proxy.runtime import target_settings
from dragoman.translate.framing.url_paths import BadName
from dragoman.translate.hub.failure import RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import TokenCounting, UpstreamCounting
from dragoman.translate.profiles.token_count import estimate_request_tokens
from dragoman.upstreams.provider import Provider, UnsignedRequest
from dragoman.upstreams.routing import Route

log = logging.getLogger(__name__)

COUNT_TIMEOUT_S = 15.0  # then the count is estimated
MAX_COUNT_BYTES = 64 * 1024


class NoCount(Exception):
    """The upstream gave no count; the message says why."""


async def count_tokens(call: Call, sink: ReplySink) -> None:
    """Answer with the number of tokens of a call at its first target."""
    routes = call.routes
    if call.record.recording is not None:
        call.record.recording.settings.routes = routes
    route, counting = routes[0], call.client.counting
    assert counting is not None  # only such a protocol has a path for it
    head: list[Header] = [
        JSON,
        *id_headers(call.client, call.id, []),
        (b"x-dragoman-route", str(route).encode("ascii", "replace")),
    ]
    try:
        body = await _relay_count(call, route, counting)
    except NoCount as none:
        tokens = await _estimate_count(call, route, counting)
        log.info("%s: %d tokens, estimated: %s", route, tokens, none)
        sink.respond(200, [*head, (b"x-dragoman-estimate", b"1")], counting.render_count(tokens))
    else:
        log.info("%s: %d tokens, counted upstream", route, counting.read_count(body))
        sink.respond(200, head, body)


async def _estimate_count(call: Call, route: Route, counting: TokenCounting) -> int:
    def count() -> int:
        request = call.request() if call.state is not None else counting.parse(call.body, Ledger())
        return estimate_request_tokens(request, route.model)

    return await run_off_loop(call.size, count)


async def _relay_count(call: Call, route: Route, counting: TokenCounting) -> bytes:
    """Return the upstream's count, unchanged if it has the client's protocol. Raises NoCount if there is none."""
    runtime = call.runtime
    provider = runtime.providers.get(route.provider)
    if provider is None:
        raise NoCount("there is no such provider")
    provider = choose_least_restricted(provider, route.model)
    speaks = await provider.protocols_for(route.model)
    choice = choose_protocol(call, speaks, target_settings(runtime, route, call.tenant, strict=call.strict))
    assert choice.protocol.upstream is not None
    is_unchanged = choice.unchanged and not (call.state is not None and call.state.is_rebuilt)
    other = None if is_unchanged else choice.protocol.upstream.counting
    if not provider.endpoint.counts_tokens or (other is None and not is_unchanged):
        raise NoCount("it does not count such requests")
    try:
        if other is None:
            prepared = await prepare_once(call, route, provider)
            url, query_mark, query = prepared.unsigned.url.partition("?")
            status, body = await _send(
                provider, msgspec.structs.replace(prepared.unsigned, url=counting.locate(url) + query_mark + query)
            )
        else:
            status, body = await _request_translated_count(call, route, provider, other)
            tokens = other.read_count(body)
            body = b"" if tokens is None else counting.render_count(tokens)
    except (ConnectionLost, UpstreamTimeout, SizeLimitExceeded) as fault:
        raise NoCount(str(fault)) from fault
    except BadName:
        raise
    except RequestError as refused:
        raise NoCount(refused.failure.kind.value) from refused
    if status != 200 or counting.read_count(body) is None:
        raise NoCount(f"it answered with no count, but HTTP {status}")
    return body


async def _request_translated_count(
    call: Call, route: Route, provider: Provider, counting: UpstreamCounting
) -> tuple[int, bytes]:
    """Have an upstream of another protocol count the request that would be built for it."""
    call.expect_count()
    prepared = await prepare_once(call, route, provider)
    body = counting.wrap(prepared.unsigned.body, route.model, provider.requests.quirks)
    url = counting.locate(prepared.unsigned.url.partition("?")[0])
    return await _send(provider, msgspec.structs.replace(prepared.unsigned, url=url, body=body))


async def _send(provider: Provider, request: UnsignedRequest) -> tuple[int, bytes]:
    credentials = await authorize(provider, request)
    answer = await provider.send(request.add_credentials(credentials), COUNT_TIMEOUT_S)
    return answer.status, await read_and_close(answer, MAX_COUNT_BYTES, COUNT_TIMEOUT_S)
