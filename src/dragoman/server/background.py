"""Background responses over HTTP: queue them, follow their events, cancel them, and run them like any request."""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec

from dragoman.net.bodies import ByteBudget
from dragoman.net.http_request import make_post
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.reply_bounds import no_room_failure
from dragoman.proxy.request_record import find_client_request_id
from dragoman.proxy.response_headers import request_id_headers
from dragoman.proxy.run_headers import PARK
from dragoman.proxy.serve import Services, run_in_background
from dragoman.proxy.steps.accept_background import StoredEventStream
from dragoman.server.routes import RoutedRequest, make_call
from dragoman.server.unknown_models import HoldBack
from dragoman.state.background import ActiveRun, BackgroundRuns
from dragoman.state.run_output import RunSink
from dragoman.state.stored_call import StoredCall
from dragoman.store import StoreError
from dragoman.store.response_rows import BACKGROUND_STREAM, ResponseRow
from dragoman.tenancy.keys import KeyId, Keyring
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.translate.hub.request import Json
from dragoman.translate.protocols.responses.wire import NAME

EVENTS_KEPT = "10 minutes"


class BackgroundApi:
    """Answers requests for background responses, and runs those that this process takes."""

    def __init__(self, gateway: Gateway, runs: BackgroundRuns, keyring: Keyring, budget: ByteBudget) -> None:
        self._gateway = gateway
        self._budget = budget  # of the bodies of all requests
        self._service = runs.service
        self._keyring = keyring
        self.runs = runs

    def start(self, services: Services, hold_back: HoldBack, find_room: Callable[[], int]) -> None:
        """Take queued responses from now on, while there is room for requests; `find_room` returns for how many."""
        self.runs.start(partial(self._execute, services, hold_back), find_room)

    async def follow(self, request: RoutedRequest, row: ResponseRow, after: int) -> None:
        """Send the events of a response after the one with this number; raises RequestError if it has none."""
        if row.mode != BACKGROUND_STREAM:
            missing = "stream=true" if row.mode else "background=true"
            message = f"This response cannot be streamed because it was not created with {missing}."
            raise BadRequest("/stream", message)
        stored = await self.runs.load_events(row, -1, limit=1)
        if not stored.chunks or stored.chunks[0].first > after + 1:
            message = f"Response can no longer be streamed: its events are kept for {EVENTS_KEPT}, if they are not too "
            raise BadRequest("/stream", f"{message}many. Retrieve it without stream=true.")
        headers, server = request_id_headers(request.request_id), self._gateway.runtime.config.server
        await StoredEventStream(request.sink, headers, server).send(self.runs, row, after)

    async def cancel(self, row: ResponseRow) -> bytes:
        """Cancel a response and return it; raises RequestError if it has ended otherwise."""
        if not row.mode:
            raise RequestError(Failure(Kind.BAD_REQUEST, "Cannot cancel a synchronous response."))
        row = await self.runs.cancel(row)
        if row.status != "cancelled":
            raise RequestError(Failure(Kind.BAD_REQUEST, f"Cannot cancel a {row.status} response."))
        return await self._service.render(row)

    async def _execute(self, services: Services, hold_back: HoldBack, run: ActiveRun, state: StoredCall) -> None:
        """Run a response as if its client had sent the request now and waited for it.

        Raises RequestError, or BufferBudgetExceeded if there is no memory for it now.
        """
        given, key = run.request, KeyId(run.request.key)
        if not await self._is_valid(key) or self._keyring.tenant(key) != run.row.owner:
            raise RequestError(Failure(Kind.AUTH, "The client key of this response is no longer valid."))
        headers = [*given.headers, (PARK, b"0")]  # no client waits for it here
        request = make_post(given.path, headers, self._budget, given.query)
        run.sink = sink = RunSink(run.output, find_client_request_id(request.headers).encode())
        fields: dict[str, Json] = msgspec.json.decode(given.fields, type=dict[str, Json])
        items: list[Json] = [one.item for one in state.context.items]
        body = msgspec.json.encode({**fields, "background": False, "input": items})
        size = len(body) + state.context.earlier_bytes
        if size > self._budget.limit:  # there will never be room
            raise RequestError(no_room_failure())
        request.buffered.hold(size)
        request.set_body(body)

        routed = RoutedRequest(
            request,
            sink,
            given.path,
            given.request_id,
            key,
            access=self._keyring.access(key),
            tenant=run.row.owner,
            received_at=time.time(),
        )
        call = make_call(self._gateway.runtime, NAME, routed)
        try:
            await run_in_background(services, call, sink, state)
        except RequestError as refused:
            await hold_back(refused, routed)
            raise
        finally:
            request.buffered.release_to(0)
            if sink.listener is not None:
                sink.listener.on_end()

    async def _is_valid(self, key: KeyId) -> bool:
        """Return whether a client key is valid; it may have been made by another process a moment ago."""
        if not self._keyring.is_valid(key):
            with suppress(StoreError):
                await self._keyring.refresh()
        return self._keyring.is_valid(key)
