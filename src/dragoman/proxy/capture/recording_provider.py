"""Record what is sent to the upstream of a provider during one request, and what comes back."""

import asyncio

from msgspec.structs import replace

from dragoman.net.bodies import BodySink
from dragoman.net.client import (
    ConnectionLost,
    DialOptions,
    IncomingResponse,
    InvalidResponse,
    OutgoingRequest,
    UpstreamTimeout,
)
from dragoman.net.headers import Header
from dragoman.proxy.capture.format import CANCELLED, CLOSED, WHOLE
from dragoman.proxy.capture.recording import Recording
from dragoman.proxy.capture.upstream_exchange import UpstreamExchange
from dragoman.translate.framing.known_secrets import list_secrets
from dragoman.upstreams.provider import Provider, UnsignedRequest, WrappedResponse

# What captures call these errors.
ERROR_NAMES: dict[type[Exception], str] = {
    ConnectionLost: "Lost",
    InvalidResponse: "Corrupt",
    UpstreamTimeout: "TimedOut",
}


def record_provider(provider: Provider, recording: Recording) -> Provider:
    """Return a provider that behaves the same and notes what it sends, with each of its credentials."""
    recorder = ProviderRecorder(provider, recording)
    return replace(
        provider,
        endpoint=replace(provider.endpoint, send=recorder.send),
        auth=replace(provider.auth, authorize=recorder.authorize),
        requests=replace(provider.requests, options=recorder.options),
        members=tuple(record_provider(member, recording) for member in provider.members),
    )


class ProviderRecorder:
    """Sends for one provider. The model and the protocol of a request are known from what was asked before."""

    def __init__(self, provider: Provider, recording: Recording) -> None:
        self._provider = provider
        self._recording = recording
        self._model = ""
        self._protocol = ""

    async def options(self, model: str) -> object:
        self._model = model
        return await self._provider.requests.options(model)

    async def authorize(self, request: UnsignedRequest) -> tuple[Header, ...]:
        self._protocol = request.protocol
        headers = await self._provider.auth.authorize(request)
        self._recording.secrets.update(list_secrets(headers))
        return headers

    async def send(self, out: OutgoingRequest, dial: DialOptions, *, head_timeout_s: float) -> IncomingResponse:
        recording, provider = self._recording, self._provider
        exchange = UpstreamExchange(f"{provider.name}/{self._model}", provider, self._protocol, out)
        recording.record_upstream_request(exchange)
        try:
            response = await provider.endpoint.send(out, dial, head_timeout_s=head_timeout_s)
        except (ConnectionLost, UpstreamTimeout) as error:
            recording.record_upstream_end(exchange, describe_error(error))
            raise
        except asyncio.CancelledError:
            recording.record_upstream_end(exchange, CANCELLED)
            raise
        recording.record_upstream_response(exchange, response)
        return RecordingResponse(response, exchange, recording)


class RecordingResponse(WrappedResponse):
    """An upstream response whose chunks are noted as they are read; also of one that is read whole."""

    def __init__(self, response: IncomingResponse, exchange: UpstreamExchange, recording: Recording) -> None:
        self._response = response
        self._exchange = exchange
        self._recording = recording
        self.where = exchange.route

    async def chunk(self, timeout_s: float) -> bytes:
        try:
            data = await self._response.chunk(timeout_s)
        except ConnectionLost as error:
            self._record_end(describe_error(error))
            raise
        if data:
            self._recording.record_upstream_chunk(self._exchange, data)
        else:
            self._record_end(WHOLE)
        return data

    async def stream_to(self, sink: BodySink, timeout_s: float) -> bool:
        def record_and_pass_on(data: bytes) -> float | None:
            self._recording.record_upstream_chunk(self._exchange, data)
            return sink(data)

        try:
            complete = await self._response.stream_to(record_and_pass_on, timeout_s)
        except ConnectionLost as error:
            self._record_end(describe_error(error))
            raise
        if complete:
            self._record_end(WHOLE)
        return complete

    def close(self) -> None:
        self._record_end(CLOSED)
        self._response.close()

    def _record_end(self, how: str) -> None:
        self._recording.record_upstream_end(self._exchange, how)


def describe_error(error: Exception) -> str:
    phase = f" {error.phase}" if isinstance(error, UpstreamTimeout) else ""
    return f"{ERROR_NAMES.get(type(error), type(error).__name__)}{phase}: {error}"
