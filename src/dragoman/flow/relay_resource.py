"""Pass a request for something that an upstream keeps, such as a stored reply, on to that upstream."""

from msgspec import Struct

from dragoman.config.problems import ConfigError
from dragoman.flow.prepare import IDENTITY
from dragoman.flow.response_headers import drop_account_headers, headers_to_forward
from dragoman.flow.runtime import Runtime
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.net.client import ConnectionLost, OutgoingRequest, UpstreamTimeout
from dragoman.net.exchange import Exchange
from dragoman.net.headers import Header
from dragoman.providers.provider import Provider

HEAD_TIMEOUT_S = 30.0


class Keeper(Struct, frozen=True):
    """Who keeps a resource."""

    provider: str
    account: str  # which of its credentials
    protocol: str


async def relay_resource(runtime: Runtime, keeper: Keeper, exchange: Exchange, path: str, request_id: str) -> None:
    """Send the client's request to the provider that keeps the resource, and its answer to the client."""
    name, protocol = keeper.provider, keeper.protocol
    provider = _find_account(runtime, name, keeper.account)
    try:
        credentials = await provider.auth.authorize(protocol)
    except ConfigError as error:
        raise RequestError(Failure(Kind.CREDENTIAL, f"Provider {name!r} has no credential: {error}")) from error
    fields: tuple[Header, ...] = (IDENTITY, *provider.endpoint.headers, *credentials)
    url = f"{provider.endpoint.url}{path}?{exchange.query}" if exchange.query else provider.endpoint.url + path
    try:
        answer = await provider.send(OutgoingRequest(exchange.method, url, fields, b""), HEAD_TIMEOUT_S)
    except (ConnectionLost, UpstreamTimeout) as fault:
        raise RequestError(Failure(Kind.LOST, f"Provider {name!r} did not answer: {fault}")) from fault
    try:
        if answer.status == 401:
            message = f"Provider {name!r} rejected its credential (HTTP 401). Run: dragoman doctor"
            raise RequestError(Failure(Kind.CREDENTIAL, message))
        forwarded = headers_to_forward(drop_account_headers(answer.headers))
        exchange.start(answer.status, [*forwarded, (b"x-request-id", request_id.encode())])
        while chunk := await answer.chunk(runtime.config.server.idle_timeout_s):
            await exchange.send(chunk)
        exchange.finish()
    except (ConnectionLost, UpstreamTimeout):
        exchange.abort()
    finally:
        answer.close()


def _find_account(runtime: Runtime, name: str, account: str) -> Provider:
    provider = runtime.providers.get(name)
    if provider is None:
        message = f"Provider {name!r} keeps this response, and is not configured any more."
        raise RequestError(Failure(Kind.NOT_FOUND, message))
    return next((member for member in provider.members if member.account.label == account), provider)
