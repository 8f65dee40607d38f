"""Replies whose bytes pass as the upstream sent them; they are only watched, and secrets of ours are redacted."""

from collections.abc import Callable, Coroutine
from typing import final

from msgspec import Struct

from dragoman.proxy.client_encoding import NOTHING
from dragoman.proxy.decoding import peek_events
from dragoman.proxy.held_events import HeldEvents
from dragoman.proxy.replies.observer import StreamObserver
from dragoman.proxy.replies.reply import ObservedUsage, ReplyOrigin
from dragoman.proxy.reply_monitor import ReplyMonitor
from dragoman.proxy.response_writer import DocumentWriter, StreamWriter
from dragoman.proxy.source import EventSource
from dragoman.proxy.step import Completed
from dragoman.proxy.upstream import count_held
from dragoman.proxy.why import Why
from dragoman.translate.framing.known_secrets import Secrets, StreamRedactor, redact_known
from dragoman.translate.hub.events import Event, Failed, UsageReported
from dragoman.translate.hub.failure import Failure
from dragoman.translate.hub.ports import Progress
from dragoman.translate.hub.usage import Usage


@final
class PassedStream(ObservedUsage):
    """A stream of the client's own protocol; if it ends without its terminal event, its error event is appended."""

    __slots__ = (
        *("_counted", "_held", "_last_write", "_no_room", "_observer", "_origin", "_redactor", "_write", "_writer"),
        "is_over",
    )
    lingers = True
    keep_alive = None  # nothing of ours is put between bytes that pass

    def __init__(self, origin: ReplyOrigin, writer: StreamWriter, source: EventSource) -> None:
        self._origin = origin
        self._writer = writer
        self._observer = StreamObserver(origin, source)
        self._redactor = StreamRedactor(origin.prepared.secrets) if origin.prepared.secrets else None
        self._held = HeldEvents(origin.call.client.keep_alive)
        self._write: Callable[[bytes], bool] | None = None  # None: everything is held until the first token
        self._counted = 0  # bytes held, as far as they were counted in the budget
        self._no_room: Failure | None = None
        self._last_write = b""
        self.is_over = False
        self.watch = origin.watch

    @property
    def why(self) -> Why:
        return self._origin.why

    @property
    def progress(self) -> Progress:
        return self._observer.source.decoder.progress

    @property
    def has_begun(self) -> bool:
        """Whether the client would see anything of the reply, perhaps something that only the client can read."""
        return self.watch.has_content or self._observer.has_begun

    @property
    def early_failure(self) -> Failure | None:
        return None if self.watch.has_content else self.watch.failure

    def tap(self, wrap: Callable[[EventSource], EventSource]) -> Secrets:
        self._observer.source = wrap(self._observer.source)
        return self._origin.prepared.secrets

    def feed(self, chunk: bytes) -> bool:
        self._observer.feed(chunk)
        out = chunk if self._redactor is None else self._redactor.feed(chunk)
        if self._write is None:
            return self._hold(out)
        return self._write(out) if out else True

    async def wait_for_room(self) -> Failure | None:
        if self._no_room is None:
            await self._writer.wait_writable()
        return self._no_room

    async def commit(self) -> None:
        """Send the head, unless keep-alives have, and what was held."""
        origin, writer = self._origin, self._writer
        origin.call.release_reply()
        writer.begin_reply(origin.prepared, origin.headers, origin.why)
        if origin.call.state is not None:
            self._write = writer.write  # from here on, an error event belongs to what was sent
            await writer.follow_keeper(origin.call.state)
        held, has_room = self._held.take(), True
        if self.is_over:
            writer.hold_for_end(held)
        else:
            has_room = writer.write(held)
        self._write = writer.write
        if not has_room:
            await writer.wait_writable()

    def end(self) -> None:
        failure = self._observer.end()
        self.is_over = True
        if failure is not None:
            self.interrupt(failure)

    def interrupt(self, failure: Failure) -> None:
        """Append the protocol's error frames, set apart from an event that was cut in the middle."""
        frames = b""
        observer, call = self._observer, self._origin.call
        if not observer.ended_unseen:
            self.watch.observe(Failed(failure))
            apart = b"\n\n" if observer.is_cut else b""
            self._last_write = call.client.repeat_stream_error(failure, call.stream_type)
            started, sent = self.watch.started, observer.source.frames
            frames = apart + call.client.render_stream_error(failure, started, sent, call.stream_type)
        self._append(frames)

    def conclude(self) -> Completed:
        return Completed(self.watch.failure)

    async def finish(self) -> None:
        self._append(b"")
        await self._writer.finish(NOTHING)

    def _append(self, data: bytes) -> None:
        """Write what the redactor still holds, and then this."""
        data = data if self._redactor is None else self._redactor.finish() + data
        if self._write is None:
            self._held.add(data)
        else:
            self._writer.hold_for_end(data)
            self._writer.hold_apart(self._last_write)

    def _hold(self, data: bytes) -> bool:
        """Hold bytes until the first token, but for the upstream's keep-alives once the client must be kept alive."""
        self._held.add(data)
        if self.has_begun or self.watch.failure is not None:
            return True
        origin, size = self._origin, len(self._held)
        if size > self._counted:
            share, provider = origin.call.buffered, origin.prepared.provider
            self._no_room, self._counted = count_held(share, provider, size, size - self._counted), size
        return self._no_room is None and self._writer.pass_keep_alives(self._held)


@final
class PassedDocument(Struct, eq=False):
    """A document of the client's own protocol."""

    origin: ReplyOrigin
    writer: DocumentWriter
    watch: ReplyMonitor
    body: bytes
    usage: Usage | None = None

    @property
    def reported(self) -> Usage | None:
        return self.usage

    @property
    def used_alone(self) -> Usage | None:
        return self.usage

    @property
    def why(self) -> Why:
        return self.origin.why

    def tap(self, wrap: Callable[[EventSource], EventSource]) -> Secrets:
        """Return the secrets that may stand in the body, of which nothing is left to read."""
        return self.origin.prepared.secrets

    def read(self) -> list[Event]:
        return peek_events(self.origin.prepared, self.body)

    def take(self, events: list[Event]) -> None:
        for event in events:
            self.watch.observe(event)
            if type(event) is UsageReported:
                self.usage = event.usage

    async def commit(self) -> None:
        self.body = redact_known(self.body, self.origin.prepared.secrets)

    def interrupt(self, failure: Failure) -> None:
        """Note that the client gets an HTTP error instead."""
        self.watch.observe(Failed(failure))

    def conclude(self) -> Completed:
        return Completed()

    def finish(self) -> Coroutine[object, object, None]:
        return self.writer.send_unchanged(self.origin.prepared, self.origin.headers, self.body, self.origin.why)
