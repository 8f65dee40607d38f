"""Background responses over HTTP: queue them, follow their events, cancel them, and run them like any request."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import msgspec

from dragoman.accounts.keys import KeyId, Keyring
from dragoman.flow.call import Call
from dragoman.flow.gateway import Gateway
from dragoman.flow.prepare import KEPT_BACK, client_query, prepare
from dragoman.flow.reply_bounds import no_room_failure
from dragoman.flow.request_record import find_client_request_id
from dragoman.flow.response_headers import id_headers, request_id_headers
from dragoman.flow.response_writer import UNBUFFERED
from dragoman.flow.runtime import find_targets, target_settings
from dragoman.framing.sse import KEEP_ALIVE
from dragoman.http.parked_runs import KEY, LAST_EVENT, PARK, RESUME
from dragoman.http.routes import RoutedRequest
from dragoman.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.hub.ports import EVENT_STREAM
from dragoman.hub.request import Json
from dragoman.net.bodies import ByteBudget
from dragoman.net.headers import JSON, Header
from dragoman.net.http_request import make_post
from dragoman.net.sink import ReplySink
from dragoman.protocols.responses.state_items import TRIGGER
from dragoman.protocols.responses.wire import NAME
from dragoman.responses.background import ActiveRun, BackgroundRuns, RunRequest
from dragoman.responses.kept_call import KeptCall
from dragoman.responses.run_output import RunSink
from dragoman.responses.service import ResponseService, check_trigger
from dragoman.store import StoreError
from dragoman.store.response_rows import BACKGROUND_STREAM, ResponseRow

Infer = Callable[[str, Callable[[Call, ReplySink], Awaitable[None]], RoutedRequest], Awaitable[None]]

FOLLOW_S = 0.25  # how often the events of a response that another process runs are read
EVENTS_KEPT = "10 minutes"
DONE = b"data: [DONE]\n\n"
_NOT_REPEATED = frozenset((KEY, LAST_EVENT, PARK, RESUME)) | KEPT_BACK - {b"user-agent"}


class BackgroundApi:
    """Answers requests for background responses, and runs those that this process takes."""

    def __init__(
        self, gateway: Gateway, service: ResponseService, runs: BackgroundRuns, keyring: Keyring, budget: ByteBudget
    ) -> None:
        self._gateway = gateway
        self._budget = budget  # of the bodies of all requests
        self._service = service
        self._keyring = keyring
        self.runs = runs
        self.infer: Infer | None = None  # runs what answers a request with a model; set with the routes

    def start(self, find_room: Callable[[], int]) -> None:
        """Take queued responses from now on, while there is room for requests; `find_room` returns for how many."""
        assert self.infer is not None
        self.runs.start(partial(self._execute, self.infer), find_room)

    async def is_left_to_upstream(self, call: Call, state: KeptCall) -> bool:
        """Return whether the upstream runs the response itself, since it keeps it; raises RequestError."""
        runtime = self._gateway.runtime
        routes = runtime.targets.get(call.model) or await find_targets(runtime, call.model, call.fallback_model)
        if state.pinned:
            return True
        providers = (runtime.providers.get(route.provider) for route in routes)
        endpoints = [provider.endpoint for provider in providers if provider is not None]
        keeps = [endpoint.keeps_replies and NAME in endpoint.protocols for endpoint in endpoints]
        return not state.is_rebuilt and bool(keeps) and all(keeps)

    async def accept(self, call: Call, sink: ReplySink, state: KeptCall, raw: dict[str, Json]) -> None:
        """Queue a response, and answer with what is known of it: whole at once, or its events as they come."""
        try:
            await self._check(call, state, raw)
            row = await self.runs.queue(state, self._describe(call, raw), stream=call.stream)
        finally:
            await state.release()  # the queued response itself locks its conversation
        call.record.rounds = 0
        sink.allow_leaving()
        if call.stream:
            await self._send_events(sink, row, -1, id_headers(call.client, call.id, []))
        else:
            body = bytes(state.snapshot.response("queued"))
            sink.respond(200, [JSON, *id_headers(call.client, call.id, [])], body)

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
        await self._send_events(request.sink, row, after, request_id_headers(request.request_id))

    async def cancel(self, row: ResponseRow) -> bytes:
        """Cancel a response and return it; raises RequestError if it has ended otherwise."""
        if not row.mode:
            raise RequestError(Failure(Kind.BAD_REQUEST, "Cannot cancel a synchronous response."))
        row = await self.runs.cancel(row)
        if row.status != "cancelled":
            raise RequestError(Failure(Kind.BAD_REQUEST, f"Cannot cancel a {row.status} response."))
        return await self._service.render(row)

    async def _check(self, call: Call, state: KeptCall, raw: dict[str, Json]) -> None:
        """Raise RequestError for what is wrong with a request, rather than queue a response that fails."""
        if raw.get("background") is not True:
            raise BadRequest("/background", "background must be true or false.")
        if check_trigger(raw):
            raise BadRequest("/background", f"background must be false in a request with a {TRIGGER}.")
        if not state.keeps and state.why_not_kept:
            raise RequestError(Failure(Kind.OVERLOADED, f"background needs the store: {state.why_not_kept}."))
        if not state.keeps:
            message = "background needs a stored response: store must be true, in the request and in [responses]."
            raise BadRequest("/background", message, code="unsupported_parameter")
        state.in_background = True
        call.state = state
        await call.read()
        if call.strict:
            await self._check_losses(call)

    async def _check_losses(self, call: Call) -> None:
        """Raise RequestError if the request cannot be carried over to its first target without loss."""
        runtime = self._gateway.runtime
        [route, *_] = runtime.targets.get(call.model) or await find_targets(runtime, call.model, call.fallback_model)
        provider = runtime.providers.get(route.provider)
        if provider is not None:
            await prepare(call, route, provider, target_settings(runtime, route, call.tenant), 1)

    def _describe(self, call: Call, raw: dict[str, Json]) -> RunRequest:
        return RunRequest(
            call.caller.key,
            call.id,
            call.path,
            client_query(call.query),
            tuple(field for field in call.headers if field[0] not in _NOT_REPEATED),
            msgspec.json.encode({name: value for name, value in raw.items() if name != "input"}),
        )

    async def _send_events(self, sink: ReplySink, row: ResponseRow, after: int, headers: list[Header]) -> None:
        """Send events from the store, and those that are added to it, until the response has ended."""
        sink.begin(200, [(b"content-type", EVENT_STREAM), *UNBUFFERED, *headers])
        server = self._gateway.runtime.config.server
        sent_at = time.monotonic()
        while True:
            changed = self.runs.change_of(row)
            stored = await self.runs.load_events(row, after)
            for chunk in stored.chunks:
                skipped = max(0, after + 1 - chunk.first)
                await sink.send(skip_events(chunk.body, skipped))
                after, sent_at = chunk.last, time.monotonic()
            if not stored.is_running and not stored.chunks:
                break
            if not stored.chunks:
                await _wait(changed)
                if time.monotonic() - sent_at > server.keep_alive_s:
                    await sink.send(KEEP_ALIVE)
                    sent_at = time.monotonic()
        sink.end(DONE if server.responses_done else b"")

    async def _execute(self, infer: Infer, run: ActiveRun, state: KeptCall) -> None:
        """Run a response as if its client had sent the request now and waited for it.

        Raises RequestError, or BufferBudgetExceeded if there is no memory for it now.
        """
        given, key = run.request, KeyId(run.request.key)
        if not await self._is_valid(key) or self._keyring.tenant(key) != run.row.owner:
            raise RequestError(Failure(Kind.AUTH, "The client key of this response is not valid any more."))
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

        async def answer(call: Call, sink: ReplySink) -> None:
            call.state = state
            await self._gateway.answer(call, sink)

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
        try:
            await infer(NAME, answer, routed)
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


def skip_events(body: bytes, count: int) -> bytes:
    """Return events without the first ones."""
    at = 0
    for _ in range(count):
        at = body.index(b"\n\n", at) + 2
    return body[at:]


async def _wait(changed: asyncio.Event | None) -> None:
    try:
        async with asyncio.timeout(FOLLOW_S):
            await (asyncio.sleep(FOLLOW_S) if changed is None else changed.wait())
    except TimeoutError:
        return
