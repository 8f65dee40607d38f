"""Responses that their upstream keeps: a client's request about one goes to the upstream, and its answer back."""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from dragoman.net.client import ConnectionLost, UpstreamTimeout
from dragoman.net.http_request import HttpRequest
from dragoman.net.sink import ReplySink
from dragoman.proxy.authorization import authorize
from dragoman.proxy.request_headers import IDENTITY
from dragoman.proxy.response_headers import headers_to_forward, request_id_headers
from dragoman.proxy.runtime import Runtime
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.upstreams.provider import IncomingResponse, Provider, UnsignedRequest

RESOURCE_TIMEOUT_S = 30.0

RecordStatus = Callable[[int], Awaitable[None]]


class KeptResource(Struct, frozen=True):
    """A response or a part of it, and who keeps it."""

    runtime: Runtime
    provider: str
    account: str  # which of its credentials
    protocol: str
    path: str

    async def relay(
        self, request: HttpRequest, sink: ReplySink, request_id: str, record_status: RecordStatus | None = None
    ) -> None:
        """Send the client's request to the provider, and its answer to the client. Raises RequestError.

        `record_status` is awaited with the status of the answer before the client gets anything of it.
        """
        answer = await self._send(request)
        try:
            if answer.status == 401:
                message = f"Provider {self.provider!r} rejected its credential (HTTP 401). Run: dragoman doctor"
                raise RequestError(Failure(Kind.CREDENTIAL, message))
            if record_status is not None:
                await record_status(answer.status)
            forwarded = headers_to_forward(answer.headers, shows_account=False)
            sink.begin(answer.status, [*forwarded, *request_id_headers(request_id)])
            while chunk := await answer.chunk(self.runtime.config.server.idle_timeout_s):
                await sink.send(chunk)
            sink.end()
        except (ConnectionLost, UpstreamTimeout):
            sink.abort()
        finally:
            answer.close()

    async def _send(self, request: HttpRequest) -> IncomingResponse:
        provider = self._find_account()
        endpoint, path = provider.endpoint, f"{self.path}?{request.query}" if request.query else self.path
        unsigned = UnsignedRequest(self.protocol, request.method, endpoint.url + path, (IDENTITY, *endpoint.headers))
        credentials = await authorize(provider, unsigned)
        try:
            return await provider.send(unsigned.add_credentials(credentials), RESOURCE_TIMEOUT_S)
        except (ConnectionLost, UpstreamTimeout) as fault:
            raise RequestError(Failure(Kind.LOST, f"Provider {self.provider!r} did not answer: {fault}")) from fault

    def _find_account(self) -> Provider:
        provider = self.runtime.providers.get(self.provider)
        if provider is None:
            message = f"Provider {self.provider!r} keeps this response, and is no longer configured."
            raise RequestError(Failure(Kind.NOT_FOUND, message))
        return next((member for member in provider.members if member.account.label == self.account), provider)
