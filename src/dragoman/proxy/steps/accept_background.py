"""Queue a background response, and answer with what is known of it: whole at once, or its events as they come."""

import asyncio
import time

import msgspec
from msgspec import Struct

from dragoman.config.settings import ServerSettings
from dragoman.net.headers import JSON, Header
from dragoman.net.sink import ReplySink
from dragoman.proxy.call import Call
from dragoman.proxy.key_policy import is_metered
from dragoman.proxy.prepare import prepare_once
from dragoman.proxy.request_headers import KEPT_BACK, client_query
from dragoman.proxy.response_headers import id_headers
from dragoman.proxy.response_writer import UNBUFFERED
from dragoman.proxy.run_headers import KEY, LAST_EVENT, PARK, RESUME
from dragoman.state.background import BackgroundRuns, RunRequest
from dragoman.state.service import check_trigger
from dragoman.state.stored_call import StoredCall
from dragoman.store.response_rows import ResponseRow
from dragoman.translate.framing.sse import KEEP_ALIVE
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.translate.hub.ports import EVENT_STREAM
from dragoman.translate.protocols.responses.encode_response import ResponseProgress
from dragoman.translate.protocols.responses.state_items import TRIGGER
from dragoman.translate.protocols.responses.wire import NAME

FOLLOW_S = 0.25  # how often the events of a response that another process runs are read
DONE = b"data: [DONE]\n\n"
_NOT_REPEATED = frozenset((KEY, LAST_EVENT, PARK, RESUME)) | KEPT_BACK - {b"user-agent"}


def is_queued(call: Call, state: StoredCall | None) -> bool:
    """Return whether a call asks for a background response that is run here, not by the upstream that keeps it.

    Raises RequestError if only an upstream could run it, which would not say in time what it uses.
    """
    if state is None or not state.raw.get("background"):
        return False
    is_counted = is_metered(call)
    if state.pinned:
        if is_counted:
            message = "The limits of this key count what a response uses, and the upstream that keeps the one before it"
            raise BadRequest(
                "/background", f"{message} does not say so for background responses: leave out background."
            )
        return False
    if is_counted:
        return True
    providers = (call.runtime.providers.get(route.provider) for route in call.routes)
    endpoints = [provider.endpoint for provider in providers if provider is not None]
    keeps = [endpoint.stores_replies and NAME in endpoint.protocols for endpoint in endpoints]
    return state.is_rebuilt or not keeps or not all(keeps)


async def accept_background(runs: BackgroundRuns, call: Call, state: StoredCall, sink: ReplySink) -> None:
    """Queue a response; nothing is taken of any limit before it runs. Raises RequestError."""
    try:
        await _check(call, state)
        row = await runs.queue(state, _describe(call, state), stream=call.stream)
    finally:
        await state.release()  # the queued response itself locks its conversation
    call.record.rounds = 0
    sink.allow_leaving()
    headers = id_headers(call.client, call.id, [])
    if call.stream:
        await StoredEventStream(sink, headers, call.runtime.config.server).send(runs, row, -1)
    else:
        sink.respond(200, [JSON, *headers], bytes(state.snapshot.response(ResponseProgress("queued"))))


async def _check(call: Call, state: StoredCall) -> None:
    """Raise RequestError for what is wrong with a request, rather than queue a response that fails."""
    if state.raw.get("background") is not True:
        raise BadRequest("/background", "background must be true or false.")
    if check_trigger(state.raw):
        raise BadRequest("/background", f"background must be false in a request with a {TRIGGER}.")
    if not state.keeps and state.why_not_stored:
        raise RequestError(Failure(Kind.OVERLOADED, f"background needs the store: {state.why_not_stored}."))
    if not state.keeps:
        message = "background needs a stored response: store must be true, in the request and in [responses]."
        raise BadRequest("/background", message, code="unsupported_parameter")
    state.in_background = True
    await call.read()
    if call.strict:
        # Raise RequestError if the request cannot be carried over to its first target without loss.
        route = call.routes[0]
        provider = call.runtime.providers.get(route.provider)
        if provider is not None:
            await prepare_once(call, route, provider)


def _describe(call: Call, state: StoredCall) -> RunRequest:
    return RunRequest(
        call.caller.key,
        call.id,
        call.path,
        client_query(call.query),
        tuple(field for field in call.headers if field[0] not in _NOT_REPEATED),
        msgspec.json.encode({name: value for name, value in state.raw.items() if name != "input"}),
    )


class StoredEventStream(Struct, frozen=True):
    """A client's stream of the events of a stored response."""

    sink: ReplySink
    headers: list[Header]
    server: ServerSettings

    async def send(self, runs: BackgroundRuns, row: ResponseRow, after: int) -> None:
        """Send events from the store, and those that are added to it, until the response has ended."""
        sink = self.sink
        sink.begin(200, [(b"content-type", EVENT_STREAM), *UNBUFFERED, *self.headers])
        sent_at = time.monotonic()
        while True:
            changed = runs.change_of(row)
            stored = await runs.load_events(row, after)
            for chunk in stored.chunks:
                skipped = max(0, after + 1 - chunk.first)
                await sink.send(skip_events(chunk.body, skipped))
                after, sent_at = chunk.last, time.monotonic()
            if not stored.is_running and not stored.chunks:
                break
            if not stored.chunks:
                await _wait(changed)
                if time.monotonic() - sent_at > self.server.keep_alive_s:
                    await sink.send(KEEP_ALIVE)
                    sent_at = time.monotonic()
        sink.end(DONE if self.server.responses_done else b"")


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
