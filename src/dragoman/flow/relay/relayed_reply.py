"""Pass an upstream's reply back unchanged: a short document in one write, anything else as it arrives."""

import asyncio
from collections.abc import Callable

from dragoman.flow.prepare import Passthrough
from dragoman.flow.response_headers import drop_account_headers, headers_to_forward, id_headers
from dragoman.flow.step import Completed, NoReply, TurnEnd
from dragoman.flow.timeouts import ReplyDeadline
from dragoman.flow.upstream import connection_failure
from dragoman.flow.upstream_errors import attribute_failure
from dragoman.framing.known_secrets import StreamRedactor, redact_known
from dragoman.hub.events import Ended, Started, Stop, UsageReported
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.ports import EVENT_STREAM
from dragoman.hub.usage import Usage
from dragoman.net.client import ConnectionLost, IncomingResponse, UpstreamTimeout
from dragoman.net.exchange import Exchange
from dragoman.net.headers import Header, Headers
from dragoman.observers.reply_monitor import ReplyMonitor
from dragoman.protocols.relayed_paths import CLIENT, EventStream, LongDocument, Observed, RelayedPath, observe_document

HELD_BYTES = 256 * 1024  # of a document: a longer one is passed on as it arrives
EMPTY = Failure(Kind.TRUNCATED, "the upstream's reply is empty")
SHUTTING_DOWN = Failure(Kind.SHUTDOWN, "The gateway is shutting down. Send the request again.")


class RelayedReply:
    """One upstream reply on its way to the client. Nothing of it is changed but secrets of the gateway."""

    def __init__(
        self,
        path: RelayedPath,
        exchange: Exchange,
        prepared: Passthrough,
        answer: IncomingResponse,
        watch: ReplyMonitor,
        request_id: str,
    ) -> None:
        self._exchange = exchange
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
        self._exchange.start(self._answer.status, self._fields())
        try:
            return await self._stream(held, wait)
        except asyncio.CancelledError:
            if not self._exchange.gone:
                self._break_off(SHUTTING_DOWN)
            raise

    def _must_hold(self, held: bytes) -> bool:
        """Whether another target may still answer: nothing has come yet that must be passed on."""
        if isinstance(self._observer, EventStream):
            return not self._observer.has_event
        return not held or len(held) <= self._held_bytes

    async def _next_piece(self, wait: ReplyDeadline) -> bytes | Failure:
        try:
            piece = await self._answer.chunk(wait.left(self._clock()))
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
        self._exchange.respond(self._answer.status, self._fields(), redact_known(body, self._prepared.secrets))
        return Completed()

    async def _stream(self, held: bytes, wait: ReplyDeadline) -> TurnEnd:
        piece: bytes | Failure = held
        while piece:
            if isinstance(piece, Failure):
                return self._break_off(piece)
            await self._exchange.send(self._redactor.feed(piece))
            piece = await self._next_piece(wait)
            if isinstance(piece, bytes):
                self._observer.feed(piece)
        self._observer.finish()
        seen = self._observer.seen
        if isinstance(self._observer, EventStream) and not self._observer.is_complete:
            return self._break_off(seen.failure or EMPTY)
        self._note_end(seen)
        self._exchange.finish(self._redactor.finish())
        return Completed(seen.failure)

    def _break_off(self, failure: Failure) -> TurnEnd:
        """End a reply that will not be complete: a stream with its error event, anything else with the connection."""
        self._note_end(self._observer.seen)
        self.watch.fail(failure)
        if isinstance(self._observer, EventStream):
            event = CLIENT.render_stream_error(failure, None, 0, EVENT_STREAM)
            self._exchange.finish(self._redactor.finish() + b"\n\n" + event)
        else:
            self._exchange.abort()
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
        fields = headers_to_forward(headers if prepared.owner else drop_account_headers(headers), prepared.secrets)
        route = (b"x-dragoman-route", str(prepared.route).encode("ascii", "replace"))
        return [*fields, *id_headers(CLIENT, self._request_id, fields), route]
