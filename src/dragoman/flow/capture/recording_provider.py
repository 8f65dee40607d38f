"""Record what a provider returns during one request, and what is sent to its upstream."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from dragoman.config.problems import ConfigError
from dragoman.flow.capture.format import CANCELLED, CLOSED, WHOLE, LookupName
from dragoman.flow.capture.masking import to_text
from dragoman.flow.capture.recording import Recording, UpstreamExchange
from dragoman.framing.known_secrets import list_secrets
from dragoman.hub.failure import Failure, RequestError
from dragoman.hub.request import Json
from dragoman.net.bodies import BodySink, read_chunks
from dragoman.net.client import (
    ConnectionLost,
    DialOptions,
    IncomingResponse,
    InvalidResponse,
    OutgoingRequest,
    UpstreamTimeout,
)
from dragoman.net.headers import Header, Headers
from dragoman.providers.provider import Address, Provider, UnsignedRequest

T = TypeVar("T")

# What captures call these errors.
ERROR_NAMES: dict[type[Exception], str] = {
    ConnectionLost: "Lost",
    InvalidResponse: "Corrupt",
    UpstreamTimeout: "TimedOut",
}


def record_provider(provider: Provider, recording: Recording) -> Provider:
    """Return a provider that behaves the same and notes what it returns and sends."""
    recorder = ProviderRecorder(provider, recording)
    finds_protocols = provider.endpoint.find_protocols is not None
    finds_address = provider.endpoint.find_address is not None
    return replace(
        provider,
        endpoint=replace(
            provider.endpoint,
            send=recorder.send,
            find_protocols=recorder.find_protocols if finds_protocols else None,
            find_address=recorder.find_address if finds_address else None,
        ),
        auth=replace(
            provider.auth,
            authorize=recorder.authorize,
            renew=None if provider.auth.renew is None else recorder.renew,
        ),
        catalogue=replace(provider.catalogue, context_window=recorder.context_window),
        requests=replace(provider.requests, options=recorder.options),
        replies=replace(provider.replies, interpret_failure=recorder.interpret_failure),
    )


class ProviderRecorder:
    """The functions of one provider during one request, each with a note of its result."""

    def __init__(self, provider: Provider, recording: Recording) -> None:
        self._provider = provider
        self._recording = recording
        self._model = ""
        self._protocol = ""
        self._noted_windows: set[str] = set()

    async def find_protocols(self, model: str) -> tuple[str, ...]:
        find = self._provider.endpoint.find_protocols
        assert find is not None
        return await self._note_result(LookupName.PROTOCOLS, find(model), list)

    async def find_address(self, path: str) -> Address:
        find = self._provider.endpoint.find_address
        assert find is not None
        return await self._note_result(LookupName.ADDRESS, find(path), _describe_address)

    async def options(self, model: str) -> object:
        self._model = model
        options = self._provider.requests.options(model)
        return await self._note_result(LookupName.OPTIONS, options, msgspec.to_builtins)

    async def authorize(self, request: UnsignedRequest) -> tuple[Header, ...]:
        self._protocol = request.protocol
        authorize = self._provider.auth.authorize(request)
        headers = await self._note_result(LookupName.AUTHORIZE, authorize, _list_headers)
        self._recording.secrets.update(list_secrets(headers))
        return headers

    async def renew(self) -> bool:
        renew = self._provider.auth.renew
        assert renew is not None
        return await self._note_result(LookupName.RENEW, renew(), bool)

    def interpret_failure(self, failure: Failure) -> Failure:
        """Note when to retry, which depends on the clock."""
        interpreted = self._provider.replies.interpret_failure(failure)
        self._note(LookupName.RETRY_AFTER, lambda: {"value": interpreted.retry_after})
        return interpreted

    def context_window(self, model: str) -> int | None:
        window = self._provider.catalogue.context_window(model)
        if model not in self._noted_windows:
            self._noted_windows.add(model)
            self._note(LookupName.CONTEXT_WINDOW, lambda: {"value": window})
        return window

    async def send(self, out: OutgoingRequest, dial: DialOptions, *, head_timeout_s: float) -> IncomingResponse:
        recording, provider = self._recording, self._provider
        exchange = UpstreamExchange(f"{provider.name}/{self._model}", provider, self._protocol, out)
        recording.note_upstream_request(exchange)
        try:
            response = await provider.endpoint.send(out, dial, head_timeout_s=head_timeout_s)
        except (ConnectionLost, UpstreamTimeout) as error:
            recording.note_upstream_end(exchange, describe_error(error))
            raise
        except asyncio.CancelledError:
            recording.note_upstream_end(exchange, CANCELLED)
            raise
        recording.note_upstream_response(exchange, response)
        return RecordingResponse(response, exchange, recording)

    async def _note_result(self, name: LookupName, result: Awaitable[T], to_json: Callable[[T], Json]) -> T:
        try:
            value = await result
        except RequestError as error:
            failure = error.failure
            self._note(name, lambda: {"refused": msgspec.to_builtins(failure)})
            raise
        except ConfigError as error:
            problems = [problem.message for problem in error.problems]
            self._note(name, lambda: {"misconfigured": problems})
            raise
        self._note(name, lambda: {"value": to_json(value)})
        return value

    def _note(self, name: LookupName, value: Callable[[], Json]) -> None:
        self._recording.note_provider(self._provider)
        self._recording.note_lookup(credential_name(self._provider), name, value)


class RecordingResponse:
    """An upstream response whose chunks are noted as they are read."""

    def __init__(self, response: IncomingResponse, exchange: UpstreamExchange, recording: Recording) -> None:
        self._response = response
        self._exchange = exchange
        self._recording = recording

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Headers:
        return self._response.headers

    async def chunk(self, timeout_s: float) -> bytes:
        try:
            data = await self._response.chunk(timeout_s)
        except ConnectionLost as error:
            self._note_end(describe_error(error))
            raise
        if data:
            self._recording.note_upstream_chunk(self._exchange, data)
        else:
            self._note_end(WHOLE)
        return data

    def take_whole(self) -> bytes | None:
        return None  # read by chunks

    async def stream_to(self, sink: BodySink, timeout_s: float) -> bool:
        def note_and_pass_on(data: bytes) -> float | None:
            self._recording.note_upstream_chunk(self._exchange, data)
            return sink(data)

        try:
            complete = await self._response.stream_to(note_and_pass_on, timeout_s)
        except ConnectionLost as error:
            self._note_end(describe_error(error))
            raise
        if complete:
            self._note_end(WHOLE)
        return complete

    async def read(self, limit: int, timeout_s: float) -> bytes:
        """Read the body chunk by chunk, so that the time of each is noted."""
        return await read_chunks(self, limit, timeout_s, self._exchange.route)

    def close(self) -> None:
        self._note_end(CLOSED)
        self._response.close()

    def _note_end(self, how: str) -> None:
        self._recording.note_upstream_end(self._exchange, how)


def credential_name(provider: Provider) -> str:
    """Return the provider's name, with the index of its credential if it has several."""
    return provider.name if provider.account.pool is None else f"{provider.name}#{provider.account.slot}"


def describe_error(error: Exception) -> str:
    phase = f" {error.phase}" if isinstance(error, UpstreamTimeout) else ""
    return f"{ERROR_NAMES.get(type(error), type(error).__name__)}{phase}: {error}"


def _describe_address(address: Address) -> Json:
    return {"url": address.url, "headers": _list_headers(address.headers)}


def _list_headers(headers: tuple[Header, ...]) -> Json:
    return [list(field) for field in to_text(headers)]
