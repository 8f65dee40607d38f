"""Replies that are translated: the upstream's events in the client's protocol, or in the form that it requested."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import final

from msgspec import Struct

from dragoman.proxy.client_encoding import ClientEncoding
from dragoman.proxy.decoding import make_source, make_stages, read_events
from dragoman.proxy.failures import attribute_failure
from dragoman.proxy.prepared import Translated
from dragoman.proxy.replies.reply import ReplyOrigin
from dragoman.proxy.replies.translation import Translation
from dragoman.proxy.request_record import Awaited
from dragoman.proxy.response_writer import DocumentWriter, StreamWriter
from dragoman.proxy.source import EventSource
from dragoman.proxy.step import Completed, Interrupted, NoReply, TurnEnd, find_unfinished
from dragoman.proxy.upstream import count_held
from dragoman.proxy.why import Why
from dragoman.translate.framing.known_secrets import Secrets, redact_known
from dragoman.translate.hub.events import Delta, Event, Failed, Started
from dragoman.translate.hub.failure import Failure
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Progress
from dragoman.translate.hub.usage import Usage, UsageSource
from dragoman.translate.stages.cite_links import find_earlier_sources
from dragoman.translate.stages.estimate_usage import EstimateUsage
from dragoman.translate.stages.hold_end import HoldContinuation, HoldPause, HoldServerCalls, HoldTruncatedCall
from dragoman.translate.stages.split_citations import split_citations

HOLDING = frozenset((HoldTruncatedCall, HoldServerCalls, HoldPause, HoldContinuation))  # stages that hold something


class Body(Struct, frozen=True):
    """A body that was read whole."""

    content: bytes
    is_stream: bool  # it is a stream of events nevertheless


class TranslatedReply(Translation, ABC):
    """What translated replies have in common: one turn's source and stages, before the client's stages and encoder.

    Steps between two turns write to the reply of the last one.
    """

    __slots__ = (
        *("_body", "_estimate", "_has_ended", "_request", "_source", "_used_before"),
        *("encoding", "ledger", "origin"),
    )
    lingers = False

    def __init__(
        self, origin: ReplyOrigin, encoding: ClientEncoding, begun: bytes = b"", body: Body | None = None
    ) -> None:
        prepared = origin.prepared
        # None: the client's bytes passed, and the reply has another form than requested
        request = prepared if type(prepared) is Translated else None
        self.origin = origin
        self.encoding = encoding
        self._request = request
        self.ledger = Ledger() if request is None else request.ledger
        self._body = body
        self._has_ended = body is not None  # the upstream's body is over
        self._source = make_source(prepared, self.ledger, begun) if body is None else None
        call, ask = origin.call, origin.ask
        has_rounds = request is not None and request.has_rounds
        if ask.rounds is not None:
            encoding.begin_round(origin.watch)
        else:
            if has_rounds:
                encoding.sources = find_earlier_sources(call.request(), call.client.read_tool_uses)
            encoding.begin_turn(self.ledger, ask.continuation, origin.watch, has_rounds=has_rounds)
        super().__init__([] if request is None else make_stages(request), encoding, origin.watch, prepared.secrets)
        self._estimate = self.find_stage(EstimateUsage)
        self._used_before: Usage | None = None  # by earlier turns of the same reply, from its first token on

    @property
    def why(self) -> Why:
        return self.origin.why

    @property
    def progress(self) -> Progress:
        assert self._source is not None
        return self._source.decoder.progress

    @property
    def has_begun(self) -> bool:
        return self.watch.has_content

    @property
    def is_over(self) -> bool:
        """Whether the whole reply has been read; what follows its last event is not waited for."""
        return self._has_ended or self.watch.ended

    @property
    def usage(self) -> Usage | None:
        """Return the usage that the client gets: with that of earlier turns of the same reply."""
        known, before = None if self._estimate is None else self._estimate.usage, self._used_before
        return known if before is None else before + (known or self.used_so_far())

    @property
    def reported(self) -> Usage | None:
        return None if self._estimate is None else self._estimate.reported

    @property
    def used_alone(self) -> Usage:
        return self.used_so_far()

    def used_so_far(self) -> Usage:
        """Return what this turn alone has used, as far as it has come."""
        return Usage(source=UsageSource.ESTIMATED) if self._estimate is None else self._estimate.usage_so_far()

    def settle_usage(self, withheld: str) -> None:
        """Settle what this turn has used, with text that was withheld from the client."""
        assert self._estimate is not None
        self._estimate.settle(withheld)

    def add_usage(self, used: Usage) -> None:
        """Add what another request for the same reply has used, once that of this turn is settled."""
        assert self._estimate is not None
        self._estimate.add(used)

    def tap(self, wrap: Callable[[EventSource], EventSource]) -> Secrets:
        self._source = None if self._source is None else wrap(self._source)
        return self.origin.prepared.secrets

    def read(self) -> list[Event]:
        assert self._body is not None
        return read_events(self.origin.prepared, self._body.content, self.ledger, self._body.is_stream)

    def conclude(self) -> TurnEnd:
        """Return how the turn ended; a failure that the client has not got may be continued elsewhere."""
        if self.failure is not None:
            has_stopped = self._source is not None and self._source.decoder.progress.has_stopped
            text = None if has_stopped else self.encoding.text_to_continue
            self.encoding.interrupt(self.used_so_far())
            self.keep_waiting()
            return Interrupted(self.failure, text)
        if self._request is None or HOLDING.isdisjoint(map(type, self._own)):
            return Completed(self.watch.failure)
        return find_unfinished(self._request, self) or Completed(self.watch.failure)

    @abstractmethod
    async def commit(self) -> None: ...
    @abstractmethod
    async def finish(self) -> None: ...

    def end(self) -> None:
        assert self._source is not None
        self.write_events(self._source.finish())
        self._has_ended = True

    def interrupt(self, failure: Failure) -> None:
        self.write_events([Failed(failure)])

    @abstractmethod
    async def begin_with_tools(self) -> None:
        """Begin the reply before anything was sent upstream."""

    @abstractmethod
    def write_events(self, events: Sequence[Event]) -> None:
        """Write events as if the upstream had sent them."""

    @abstractmethod
    async def send_own(self, events: list[Event]) -> None:
        """Write events of the gateway's own, at once."""

    @abstractmethod
    def end_with(self, end: Event) -> None:
        """Write the end that was held back."""

    def wait_for(self, awaited: Awaited) -> None:
        """Note that the reply goes on, once something else has happened."""
        self.origin.call.record.awaits = awaited
        self.keep_waiting()

    def keep_waiting(self) -> None:
        """Keep a client that reads a stream alive until another turn goes on; a document has no sign of life."""

    def _take_document(self, events: Sequence[Event]) -> bytes:
        assert self._body is not None
        is_clean = redact_known(self._body.content, self.origin.prepared.secrets) is self._body.content
        self._body = None
        return self.push_document(events, are_clean=is_clean)

    def _accept(self) -> None:
        """Note that this turn gives the reply, or the next part of it."""
        if self.origin.ask.continuation is not None:
            self.encoding.accept_continuation(self.ledger)
        self._used_before = self.encoding.used_before


@final
class TranslatedStream(TranslatedReply):
    """A translated reply for a client that reads a stream."""

    __slots__ = ("_held", "_write", "_writer")

    def __init__(self, origin: ReplyOrigin, writer: StreamWriter, begun: bytes = b"", body: Body | None = None) -> None:
        super().__init__(origin, writer.encoding, begun, body)
        self._writer = writer
        self._held = b""
        self._write: Callable[[bytes], bool] | None = None  # None: everything is held until the first token

    @property
    def keep_alive(self) -> Callable[[], Awaitable[None]] | None:
        return self._send_keep_alive if self._writer.keep_alive else None

    async def _send_keep_alive(self) -> None:
        await self._writer.send(self._writer.keep_alive)

    @property
    def early_failure(self) -> Failure | None:
        return None if self.watch.has_content else self.watch.failure

    def feed(self, chunk: bytes) -> bool:
        assert self._source is not None
        self.watch.count_read(len(chunk))
        events = self._source.feed(chunk)
        if len(events) == 1 and type(delta := events[0]) is Delta and self.failure is None:  # as from most reads
            run, text, redactor = [delta], delta.text, self._redactor
            clean = run if redactor is None else redactor.feed_run(run, text)
            out = b"".join(self._process_run(run, text) if clean is run else self._process_each(clean))
        else:
            out = self.push(events)
        if not out:
            return True
        if self._write is None or self.watch.ended:
            self._append(out)
            return True
        return self._write(out)

    async def wait_for_room(self) -> Failure | None:
        await self._writer.wait_writable()
        return None

    def take(self, events: list[Event]) -> None:
        known = split_citations(events) if self.origin.call.client.cites_apart else events
        self._append(self._take_document(known))

    async def commit(self) -> None:
        """Send the head, unless it is sent, and what was held."""
        self._accept()
        origin, writer = self.origin, self._writer
        writer.begin_reply(origin.prepared, None, origin.why)
        if self._request is None and origin.call.state is not None:
            await writer.follow_keeper(origin.call.state)
        held, self._held, has_room = self._held, b"", True
        if self.is_over:
            writer.hold_for_end(held)
        else:
            has_room = writer.write(held)
        self._write = writer.write
        if not has_room:
            await writer.wait_writable()

    async def begin_with_tools(self) -> None:
        self._held = self.encoding.feed([Started("", self.origin.prepared.route.model)])
        await self.commit()

    def write_events(self, events: Sequence[Event]) -> None:
        self._append(self.push(events))

    async def send_own(self, events: list[Event]) -> None:
        await self._writer.send(self.encoding.feed(events))

    def end_with(self, end: Event) -> None:
        self._writer.hold_for_end(self.encoding.feed([end]))

    def keep_waiting(self) -> None:
        self._writer.resume_keep_alives()

    async def finish(self) -> None:
        self._writer.hold_for_end(self.finish_stages())
        await self._writer.finish(self.encoding.finish())

    def _append(self, data: bytes) -> None:
        if self._write is None:
            self._held += data
        else:
            self._writer.hold_for_end(data)


@final
class TranslatedDocument(TranslatedReply):
    """A translated reply for a client that reads one body: its events are collected."""

    __slots__ = ("_no_room", "_size", "_writer")
    keep_alive = None

    def __init__(
        self, origin: ReplyOrigin, writer: DocumentWriter, begun: bytes = b"", body: Body | None = None
    ) -> None:
        super().__init__(origin, writer.encoding, begun, body)
        self._writer = writer
        self._size = 0  # bytes that were read
        self._no_room: Failure | None = None

    @property
    def early_failure(self) -> Failure | None:
        return self.watch.failure

    def feed(self, chunk: bytes) -> bool:
        assert self._source is not None
        origin = self.origin
        self._size += len(chunk)
        self._no_room = count_held(origin.call.buffered, origin.prepared.provider, self._size, len(chunk))
        if self._no_room is None:
            self.watch.count_read(len(chunk))
            self.push(self._source.feed(chunk))
        return self._no_room is None

    async def wait_for_room(self) -> Failure | None:
        return self._no_room

    def take(self, events: list[Event]) -> None:
        self._take_document(events)

    async def commit(self) -> None:
        self._accept()

    async def begin_with_tools(self) -> None:
        self.encoding.feed([Started("", self.origin.prepared.route.model)])

    def conclude(self) -> TurnEnd:
        failure = self.watch.failure
        return super().conclude() if failure is None else NoReply(attribute_failure(self.origin.prepared, failure))

    def write_events(self, events: Sequence[Event]) -> None:
        self.push(events)

    async def send_own(self, events: list[Event]) -> None:
        self.encoding.feed(events)

    def end_with(self, end: Event) -> None:
        self.encoding.feed([end])

    async def finish(self) -> None:
        self.finish_stages()
        await self._writer.send_folded(self.origin.prepared, self.ledger, self.origin.why)
