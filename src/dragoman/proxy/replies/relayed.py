"""Replies of the other OpenAI paths: any success passes as its upstream sends it, and is only observed."""

from collections.abc import Awaitable, Callable
from typing import final

from dragoman.net.headers import Header, Headers
from dragoman.net.sink import ReplySink
from dragoman.proxy.prepared import Prepared
from dragoman.proxy.relay import RelayedCall, prepare_relayed
from dragoman.proxy.replies.opening import MakeWatch
from dragoman.proxy.replies.reply import DocumentReply, ObservedUsage, ReplyOrigin
from dragoman.proxy.replies.translated import Body, TranslatedReply
from dragoman.proxy.reply_bounds import IdleDeadline
from dragoman.proxy.response_headers import headers_to_forward
from dragoman.proxy.response_writer import own_headers
from dragoman.proxy.source import EventSource
from dragoman.proxy.step import Ask, Completed
from dragoman.proxy.why import RELAYED
from dragoman.translate.framing.known_secrets import Secrets, StreamRedactor, redact_known
from dragoman.translate.hub.events import Ended, Started, Stop, UsageReported
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.ports import EVENT_STREAM, Progress
from dragoman.translate.protocols.relayed_paths import (
    EventStream,
    LongDocument,
    Observed,
    RelayedPath,
    observe_document,
)

HELD_BYTES = 256 * 1024  # of a document, or of a stream without an event: a longer one is passed on as it arrives
NO_CONTENT = 204
EMPTY = Failure(Kind.TRUNCATED, "the upstream's reply is empty")


class RelayedWriter:
    """Where the reply to a relayed call goes, whichever turn gives it."""

    def __init__(self, sink: ReplySink) -> None:
        self.sink = sink
        self.open_stream: RelayedReply | None = None  # the reply whose head is sent

    @property
    def committed(self) -> bool:
        return self.open_stream is not None

    def close(self) -> None:
        """Release the reply, which refers back to this."""
        self.open_stream = None


@final
class RelayedReply(ObservedUsage):
    """One upstream reply on its way to the client. Nothing of it is changed but secrets of the gateway.

    It is held while another target may still answer: a document up to its end or a limit, a stream up to its first
    event. A stream that breaks off ends with its error event, anything else with the connection.
    """

    lingers = False
    keep_alive = None
    progress = Progress.READING
    why = RELAYED

    def __init__(self, path: RelayedPath, origin: ReplyOrigin, status: int, writer: RelayedWriter) -> None:
        self._origin = origin
        self._status = status
        self._writer = writer
        content_type = (origin.headers.get(b"content-type") or b"").lower()
        self._is_stream = content_type.startswith(b"text/event-stream")
        self._observer = EventStream(path) if self._is_stream else LongDocument()
        self._limit = HELD_BYTES if self._is_stream or not content_type or b"json" in content_type else 0
        self._redactor = StreamRedactor(origin.prepared.secrets)
        self._held = b""
        self._write: Callable[[bytes], bool] | None = None  # None: everything is held
        self._last = b""
        self._is_cut = False
        self.is_over = False
        self.early_failure: Failure | None = None
        self.watch = origin.watch

    @property
    def has_begun(self) -> bool:
        return self._observer.has_event or len(self._held) > self._limit

    def tap(self, wrap: Callable[[EventSource], EventSource]) -> Secrets:
        """Return the secrets that may stand in the reply, which is not decoded."""
        return self._origin.prepared.secrets

    def feed(self, chunk: bytes) -> bool:
        self._observer.feed(chunk)
        if self._write is None:
            self._held += chunk
            self.early_failure = self._observer.seen.failure
            return True
        self.watch.count_read(len(chunk))
        out = self._redactor.feed(chunk)
        return self._write(out) if out else True

    async def wait_for_room(self) -> Failure | None:
        await self._writer.sink.wait_writable()
        return None

    async def commit(self) -> None:
        """Send the head and what was held, unless all of it has come: that is one write."""
        if self.is_over:
            return
        sink, held = self._writer.sink, self._held
        self._held, self._write = b"", sink.write
        self._writer.open_stream = self
        sink.begin(self._status, self._make_head())
        self.watch.count_read(len(held))
        await sink.send(self._redactor.feed(held))

    def end(self) -> None:
        self.is_over = True
        if self._write is None:
            self._end_whole(observe_document(self._held))
            return
        self._observer.finish()
        if self._observer.is_complete:
            self._record_end(self._observer.seen)
        else:
            self.interrupt(self._observer.seen.failure or EMPTY)

    def _end_whole(self, seen: Observed) -> None:
        is_empty = not self._held and self._status != NO_CONTENT
        self.early_failure = EMPTY if is_empty else seen.failure
        if self.early_failure is None:
            self._record_end(seen)

    def interrupt(self, failure: Failure) -> None:
        self._record_end(self._observer.seen)
        self.watch.fail(failure)
        self._is_cut = not self._is_stream
        self._last = b"\n\n" + self._origin.call.client.render_stream_error(failure, None, 0, EVENT_STREAM)

    def conclude(self) -> Completed:
        return Completed(self.watch.failure)

    async def finish(self) -> None:
        sink = self._writer.sink
        if self._write is None:
            body = redact_known(self._held, self._origin.prepared.secrets)
            sink.respond(self._status, self._make_head(), body)
        elif self._is_cut:
            sink.abort()
        else:
            sink.end(self._redactor.finish() + self._last)

    async def fail(self, failure: Failure) -> None:
        """End a reply that was interrupted."""
        await self.finish()

    finish_failed = fail

    def _make_head(self) -> list[Header]:
        origin, prepared = self._origin, self._origin.prepared
        fields = headers_to_forward(origin.headers, prepared.secrets, shows_account=prepared.owner)
        return fields + own_headers(origin.call, prepared, origin.why, fields, whole=False)

    def _record_end(self, seen: Observed) -> None:
        self.watch.observe(Started("", seen.model))
        if seen.usage is not None:
            self.watch.observe(UsageReported(seen.usage))
        self.watch.observe(Ended(Stop.END))
        if seen.failure is not None:
            self.watch.fail(seen.failure)


class RelayedReplies:
    """Prepares the requests of a relayed call, and opens the replies to them."""

    deadline = IdleDeadline
    rules = ()

    def __init__(self, call: RelayedCall, writer: RelayedWriter, make_watch: MakeWatch) -> None:
        self._call = call
        self._writer = writer
        self._make_watch = make_watch

    def prepare(self, ask: Ask) -> Awaitable[Prepared]:
        return prepare_relayed(self._call, ask.route, ask.provider)

    def begin_turn(self, ask: Ask, prepared: Prepared) -> None:
        self._ask, self._prepared = ask, prepared

    def begin_answer(self, status: int, headers: Headers, *, is_stream: bool) -> bool:
        self._status, self._headers = status, headers
        return True

    def reads_events(self, begun: bytes) -> bool:
        return True  # or bytes that pass like events

    def open_stream(self, begun: bytes) -> RelayedReply:
        origin = ReplyOrigin(self._call, self._ask, self._prepared, self._headers, self._make_watch(), RELAYED)
        return RelayedReply(self._call.relayed_path, origin, self._status, self._writer)

    def open_document(self, body: Body) -> DocumentReply:
        raise AssertionError("a relayed document is read piece by piece")

    def open_for_tools(self) -> TranslatedReply:
        raise AssertionError("a relayed request has no tools")
