"""Answer a request of one of the other OpenAI paths: choose targets, send it, and pass the reply back unchanged."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from dragoman.accounts.keys import ENVIRONMENT_KEY
from dragoman.config.settings import Server
from dragoman.flow.between_turns import Then
from dragoman.flow.call import Caller
from dragoman.flow.capture.recording import MAX_BYTES
from dragoman.flow.credential_rotation import available_targets
from dragoman.flow.failures import AllTargetsFailed, attribute_failure
from dragoman.flow.form_upload import FormUpload
from dragoman.flow.policy import Limits, Policy, SecondChances
from dragoman.flow.prepare import IDENTITY, Passthrough, authorize, client_headers, client_query
from dragoman.flow.reply_bounds import ReplyDeadline, timeouts_for
from dragoman.flow.request_record import RequestRecord
from dragoman.flow.response_headers import headers_to_forward, id_headers
from dragoman.flow.runtime import Runtime, find_targets
from dragoman.flow.source import Source
from dragoman.flow.step import Ask, Completed, Finish, GiveUp, NoReply, TurnEnd, Wait
from dragoman.flow.steps.read_body import read_whole
from dragoman.flow.upstream import connection_failure, send
from dragoman.framing.fields import read_call_head
from dragoman.framing.jsonscan import replace_model
from dragoman.framing.known_secrets import Secrets, StreamRedactor, redact_known
from dragoman.framing.multipart import is_form
from dragoman.hub.events import Ended, Started, Stop, UsageReported
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.hub.ports import EVENT_STREAM
from dragoman.hub.usage import Usage
from dragoman.net.client import ConnectionLost, IncomingResponse, UpstreamTimeout
from dragoman.net.headers import JSON, Header, Headers
from dragoman.net.http_request import HttpRequest
from dragoman.net.sink import ReplySink
from dragoman.net.tasks import run_off_loop
from dragoman.observers.reply_monitor import ReplyMonitor
from dragoman.protocols.relayed_paths import (
    CLIENT,
    PROTOCOL,
    UPSTREAM,
    EventStream,
    LongDocument,
    Observed,
    RelayedPath,
    observe_document,
)
from dragoman.providers.provider import Endpoint, Provider, UnsignedRequest
from dragoman.routing import Route

log = logging.getLogger("dragoman.requests")
HELD_BYTES = 256 * 1024  # of a document: a longer one is passed on as it arrives
EMPTY = Failure(Kind.TRUNCATED, "the upstream's reply is empty")
SHUTTING_DOWN = Failure(Kind.SHUTDOWN, "The gateway is shutting down. Send the request again.")


class RelayedCall:
    """A client's request to one of the paths, with what routing needs of it; a context that closes its form."""

    runtime: Runtime
    routes: tuple[Route, ...]

    def __init__(self, path: RelayedPath, request: HttpRequest, caller: Caller, record: RequestRecord) -> None:
        self.path = path
        self.http = request
        self.record = record
        self.headers = request.headers
        self.id = caller.request_id
        self.tenant = caller.tenant
        self.is_owner = caller.key == ENVIRONMENT_KEY
        self.model = ""
        self.names_model = True
        self.body = b""
        self.form: FormUpload | None = None
        self._content_type = request.headers.get(b"content-type") or b""

    @property
    def is_form(self) -> bool:
        """Whether the body is a form, which is read while it is sent on."""
        return is_form(self._content_type)

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if self.form is None:
            return
        recording = self.record.recording
        whole = None if recording is None else self.form.read_all(MAX_BYTES)
        if recording is not None and whole is not None:
            recording.note_body(whole)
        self.form.close()

    async def read_body(self, server: Server) -> None:
        """Read the body, a form as far as its model; raises RequestError, or as `HttpRequest.body` does."""
        if self.is_form:
            await self._begin_form()
        else:
            self.take_body(await read_whole(self.http, self.record, server))

    def take_body(self, body: bytes) -> None:
        """Take a JSON body; raises RequestError."""
        head = read_call_head(body, needs_model=not self.path.default_model)
        self.body = body
        self._set_model(head.model, head.stream)

    async def _begin_form(self) -> None:
        if not self.path.form:
            raise RequestError(Failure(Kind.BAD_REQUEST, f"/v1/{self.path.name} takes JSON, not a form."))
        if self.headers.get(b"content-encoding"):
            raise RequestError(Failure(Kind.BAD_REQUEST, "A form cannot be compressed: leave out content-encoding."))
        self.form = FormUpload(self.http, self._content_type)
        self._set_model(await self.form.read_model(needs_model=not self.path.default_model), stream=False)

    async def choose_routes(self, runtime: Runtime) -> None:
        """Find the targets that serve the path, and fix the configuration; raises RequestError if there are none."""
        recording = self.record.recording
        if recording is not None:
            from dragoman.flow.capture.recording_runtime import record_runtime

            runtime = record_runtime(runtime, recording, self)
        self.runtime, self.routes = runtime, await _find_routes(runtime, self)
        if recording is not None:
            recording.routes = self.routes

    def _set_model(self, named: str, stream: bool) -> None:
        self.names_model = bool(named)
        self.model = named or self.path.default_model
        self.record.requested_model, self.record.stream = self.model, stream

    async def make_request(self, url: str, model: str, provider: Provider) -> UnsignedRequest:
        """Return the request for one target, without its credential."""
        own = (IDENTITY, *provider.endpoint.headers)
        others = client_headers(self.headers, self.is_owner, provider, UPSTREAM)
        renamed = None if model == self.model or not self.names_model else model
        if self.form is not None:
            own, upload = ((b"content-type", self._content_type), *own), await self.form.prepare(renamed)
            return UnsignedRequest(PROTOCOL.name, "POST", url, own, others, upload=upload)
        body = self.body
        if renamed is not None:
            body = await run_off_loop(len(body), partial(replace_model, body, renamed))
        return UnsignedRequest(PROTOCOL.name, "POST", url, (JSON, *own), others, body)


async def relay(call: RelayedCall, sink: ReplySink) -> None:
    """Answer a call. Raises RequestError if every target failed and nothing was sent to the client."""
    recording = call.record.recording
    make_watch = recording.make_monitor if recording is not None else partial(ReplyMonitor, time.monotonic)
    await _Turns(call, sink, make_watch()).run()


async def _find_routes(runtime: Runtime, call: RelayedCall) -> tuple[Route, ...]:
    """Return the targets that serve the path. A request without a model may go to any of its providers."""
    serving = [name for name, provider in runtime.providers.items() if call.path.name in provider.endpoint.relays]
    try:
        routes = runtime.targets.get(call.model) or await find_targets(runtime, call.model)
    except RequestError:
        if call.names_model or not serving:
            raise
        routes = ()
    found = tuple(route for route in routes if route.provider in serving)
    if not found and not call.names_model:
        found = tuple(Route(name, call.model) for name in serving)
    if not found:
        raise RequestError(_describe_unserved(call, routes))
    return available_targets(found, runtime.providers)


def _describe_unserved(call: RelayedCall, routes: tuple[Route, ...]) -> Failure:
    names = ", ".join(repr(route.provider) for route in routes) or "any provider"
    message = (
        f"The model {call.model!r} is not served at /v1/{call.path.name} by {names}. "
        f'To allow it, add to the section of a provider that has this path: paths = ["{call.path.name}"]'
    )
    return Failure(Kind.NOT_FOUND, message, code="path_not_served", at="/model")


class _Turns:
    """The upstream requests of one call, until one of them is answered."""

    def __init__(self, call: RelayedCall, sink: ReplySink, watch: ReplyMonitor) -> None:
        runtime, routes = call.runtime, call.routes
        self._call = call
        self._sink = sink
        self._server: Server = runtime.config.server
        self._watch = watch
        self._clock = asyncio.get_running_loop().time
        used = {route.provider: runtime.providers.get(route.provider) for route in routes}
        providers = {name: _disable_adjustments(provider) for name, provider in used.items() if provider is not None}
        limits = Limits(runtime.config.retry, False, lambda: random.uniform(0.75, 1.25))
        chances = SecondChances(runtime.learned_quirks, call.tenant)
        self._policy = Policy(routes, providers, limits, chances, {})

    async def run(self) -> None:
        try:
            step = self._policy.begin()
            while not isinstance(step, Finish):
                match step:
                    case Ask():
                        step = self._policy.after(await self._ask(step))
                    case Wait(seconds=seconds):
                        await asyncio.sleep(seconds)
                        step = self._policy.after_step(Then.TRY_AGAIN)
                    case GiveUp(failure=failure, error_reply=error_reply):
                        raise AllTargetsFailed(failure, error_reply)
                    case _:
                        raise AssertionError(f"{type(step).__name__} does not follow a reply that is not decoded")
        finally:
            self._policy.release()

    async def _ask(self, ask: Ask) -> TurnEnd:
        end = await self._run_turn(ask)
        if isinstance(end, NoReply) and end.failure is not ask.renew_after:
            self._call.record.note_failure(ask.route, RequestError(end.failure))
        return end

    async def _run_turn(self, ask: Ask) -> TurnEnd:
        renew = ask.provider.auth.renew
        if ask.renew_after is not None and (renew is None or not await renew()):
            return NoReply(ask.renew_after)
        try:
            prepared = await self._prepare(ask)
        except RequestError as refused:
            return NoReply(refused.failure)
        wait = ReplyDeadline(
            ask.provider.name, timeouts_for(ask.provider.endpoint.first_token, self._server), self._clock()
        )
        wait.extend(self._clock(), has_token=True)  # the longest time without data is the only limit
        self._call.record.attempts += 1
        try:
            answer = await send(prepared, wait.seconds_left(self._clock()), wait.failure)
        except asyncio.CancelledError:
            self._call.record.note_client_gone(ask.route)
            raise
        if isinstance(answer, NoReply):
            return answer
        try:
            call = self._call
            reply = RelayedReply(call.path, self._sink, prepared, answer, self._watch, call.id)
            return await reply.pass_on(wait, partial(self._accept, prepared))
        finally:
            answer.close()

    def _accept(self, prepared: Passthrough, reply: "RelayedReply") -> None:
        """Note that the reply has begun: no other target is tried from now on."""
        self._policy.note_first_token(reply.headers, None)
        self._call.record.note_reply(prepared.route, self._call.path.name, None, reply)

    async def _prepare(self, ask: Ask) -> Passthrough:
        call, provider, route = self._call, ask.provider, ask.route
        options = await provider.requests.options(route.model)
        query = client_query(call.http.query)
        url = await _find_url(provider.endpoint, f"/{call.path.name}") + (f"?{query}" if query else "")
        unsigned = await call.make_request(url, route.model, provider)
        credentials = await authorize(provider, unsigned)
        return Passthrough(
            route=route,
            provider=provider,
            protocol=PROTOCOL,
            upstream=UPSTREAM,
            unsigned=unsigned,
            out=unsigned.add_credentials(credentials),
            options=options,
            secrets=provider.auth.secret_forms.find(credentials, provider.auth.secrets),
            owner=call.is_owner,
        )


async def _find_url(endpoint: Endpoint, path: str) -> str:
    return endpoint.url + path if endpoint.find_address is None else (await endpoint.find_address(path)).url


def _disable_adjustments(provider: Provider) -> Provider:
    """Return the provider without changes after a refusal: these requests are never built anew."""
    rules = replace(provider.requests, adjust=lambda failure: None)
    return replace(provider, requests=rules, members=tuple(map(_disable_adjustments, provider.members)))


class RelayedReply:
    """One upstream reply on its way to the client. Nothing of it is changed but secrets of the gateway."""

    def __init__(
        self,
        path: RelayedPath,
        sink: ReplySink,
        prepared: Passthrough,
        answer: IncomingResponse,
        watch: ReplyMonitor,
        request_id: str,
    ) -> None:
        self._sink = sink
        self._prepared = prepared
        self._answer = answer
        self._request_id = request_id
        self._clock = asyncio.get_running_loop().time
        self._redactor = StreamRedactor(prepared.secrets)
        content_type = (answer.headers.get(b"content-type") or b"").lower()
        self._observer = EventStream(path) if content_type.startswith(b"text/event-stream") else LongDocument()
        self._held_bytes = HELD_BYTES if not content_type or b"json" in content_type else 0
        self.watch = watch

    @property
    def headers(self) -> Headers:
        return self._answer.headers

    @property
    def usage(self) -> Usage | None:
        return self.watch.final_usage

    def tap(self, wrap: Callable[[Source], Source]) -> Secrets:
        """Return the secrets that may stand in the reply, which is not decoded."""
        return self._prepared.secrets

    async def pass_on(self, wait: ReplyDeadline, accept: Callable[["RelayedReply"], None]) -> TurnEnd:
        """Pass on the reply; `accept` is called when it begins. Until then, a failure is returned as NoReply."""
        held = b""
        while self._must_hold(held):
            piece = await self._next_piece(wait)
            if isinstance(piece, Failure):
                return NoReply(piece)
            if not piece:
                return self._pass_whole(held, accept)
            held += piece
            self._observer.feed(piece)
        if isinstance(self._observer, EventStream) and self._observer.seen.failure is not None:
            return NoReply(attribute_failure(self._prepared, self._observer.seen.failure))
        accept(self)
        self._sink.begin(self._answer.status, self._fields())
        try:
            return await self._stream(held, wait)
        except asyncio.CancelledError:
            if not self._sink.reader_gone:
                self._break_off(SHUTTING_DOWN)
            raise

    def _must_hold(self, held: bytes) -> bool:
        """Whether another target may still answer: nothing has come yet that must be passed on."""
        if isinstance(self._observer, EventStream):
            return not self._observer.has_event
        return not held or len(held) <= self._held_bytes

    async def _next_piece(self, wait: ReplyDeadline) -> bytes | Failure:
        try:
            piece = await self._answer.chunk(wait.seconds_left(self._clock()))
        except UpstreamTimeout:
            return wait.failure()
        except ConnectionLost as fault:
            return connection_failure(self._prepared, fault)
        wait.extend(self._clock(), has_token=True)
        return piece

    def _pass_whole(self, body: bytes, accept: Callable[["RelayedReply"], None]) -> TurnEnd:
        """Send a reply that has come to its end before it had to be passed on."""
        seen = observe_document(body)
        failure = seen.failure
        if not body and self._answer.status != 204:
            failure = EMPTY
        if failure is not None:
            return NoReply(attribute_failure(self._prepared, failure))
        self._note_end(seen)
        accept(self)
        self._sink.respond(self._answer.status, self._fields(), redact_known(body, self._prepared.secrets))
        return Completed()

    async def _stream(self, held: bytes, wait: ReplyDeadline) -> TurnEnd:
        piece: bytes | Failure = held
        while piece:
            if isinstance(piece, Failure):
                return self._break_off(piece)
            self.watch.count_read(len(piece))
            await self._sink.send(self._redactor.feed(piece))
            piece = await self._next_piece(wait)
            if isinstance(piece, bytes):
                self._observer.feed(piece)
        self._observer.finish()
        seen = self._observer.seen
        if isinstance(self._observer, EventStream) and not self._observer.is_complete:
            return self._break_off(seen.failure or EMPTY)
        self._note_end(seen)
        self._sink.end(self._redactor.finish())
        return Completed(seen.failure)

    def _break_off(self, failure: Failure) -> TurnEnd:
        """End a reply that will not be complete: a stream with its error event, anything else with the connection."""
        self._note_end(self._observer.seen)
        self.watch.fail(failure)
        if isinstance(self._observer, EventStream):
            event = CLIENT.render_stream_error(failure, None, 0, EVENT_STREAM)
            self._sink.end(self._redactor.finish() + b"\n\n" + event)
        else:
            self._sink.abort()
        return Completed(failure)

    def _note_end(self, seen: Observed) -> None:
        self.watch.observe(Started("", seen.model))
        if seen.usage is not None:
            self.watch.observe(UsageReported(seen.usage))
        self.watch.observe(Ended(Stop.END))
        if seen.failure is not None:
            self.watch.fail(seen.failure)

    def _fields(self) -> list[Header]:
        headers, prepared = self._answer.headers, self._prepared
        fields = headers_to_forward(headers, prepared.secrets, shows_account=prepared.owner)
        route = (b"x-dragoman-route", str(prepared.route).encode("ascii", "replace"))
        return [*fields, *id_headers(CLIENT, self._request_id, fields), route]
