"""Run one upstream turn: prepare the request, send it, and feed what comes back to the client's writer.

Whatever is expected to go wrong is returned as a `TurnEnd`; the policy decides what follows from it.
"""

import logging
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from dragoman.accounts.lost_calls import add_notice, digest_conversation
from dragoman.flow.call import Call
from dragoman.flow.decoding import (
    begins_array,
    begins_document,
    begins_events,
    is_named_stream,
    is_stream,
    make_source,
    make_stages,
    peek_events,
    read_events,
)
from dragoman.flow.failures import attribute_failure
from dragoman.flow.pipes import PassthroughPipe, Pipe, Source, TranslationPipe, UnchangedDocument
from dragoman.flow.ports import LostCallMemory
from dragoman.flow.prepare import Change, Passthrough, Prepared, Translated, prepare
from dragoman.flow.pump import LINGER_S, Pump, is_answering
from dragoman.flow.reply_bounds import MAX_REPLY_BYTES, ReplyDeadline, charge_bytes, read_reply, timeouts_for
from dragoman.flow.response_writer import ResponseWriter, WholeWriter
from dragoman.flow.rounds import call_unrun_uses
from dragoman.flow.runtime import Runtime, target_settings
from dragoman.flow.step import Ask, Completed, Interrupted, NoReply, TurnEnd, find_unfinished
from dragoman.flow.upstream import connection_failure, oversized_failure, receive, send, stalled_failure
from dragoman.framing.known_secrets import redact_known
from dragoman.hub.events import Event, Started, UsageReported
from dragoman.hub.failure import Failure, RequestError
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import Progress
from dragoman.hub.usage import Usage
from dragoman.net.client import ConnectionLost, UpstreamTimeout
from dragoman.net.headers import Headers
from dragoman.net.tasks import LARGE_BYTES, run_off_loop
from dragoman.observers.reply_monitor import ReplyMonitor
from dragoman.providers.provider import IncomingResponse
from dragoman.stages.cite_links import find_earlier_sources
from dragoman.stages.split_citations import split_citations

log = logging.getLogger(__name__)


class CallContext(Struct, frozen=True):
    """What the turns of one call share."""

    call: Call
    runtime: Runtime
    memory: LostCallMemory
    writer: ResponseWriter
    make_watch: Callable[[], ReplyMonitor]
    note_first_token: Callable[["Turn"], None]
    clock: Callable[[], float]  # of the event loop


class Turn:
    """One upstream request and its reply."""

    def __init__(self, ask: Ask, around: CallContext) -> None:
        self._ask = ask
        self._around = around
        self._writer = around.writer
        self._server = around.runtime.config.server
        self._clock = around.clock
        self._size = 0  # bytes that are counted
        self._answer: IncomingResponse | None = None
        self.ended = False  # the upstream's body has been read to its end
        self.prepared: Prepared | None = None
        self.pipe: Pipe | None = None
        self.unchanged: UnchangedDocument | None = None  # instead of a pipe

    async def run(self) -> TurnEnd:
        ask = self._ask
        if ask.renew_after is not None:
            assert ask.provider.auth.renew is not None
            if not await ask.provider.auth.renew():
                return NoReply(ask.renew_after)
        call, changes = self._around.call, ask.changes
        try:
            if ask.provider.replies.withholds_cut_calls:
                changes = (*changes, *await self._notices())
            # For each turn: a quirk may have been learned from a refusal.
            settings = target_settings(self._around.runtime, ask.route, call.tenant)
            self.prepared = prepared = await prepare(
                call, ask.route, ask.provider, settings, ask.number, changes, ask.rounds
            )
        except RequestError as refused:
            return NoReply(refused.failure)
        self._writer.begin_turn(prepared)
        unrun = None if type(prepared) is Passthrough else call_unrun_uses(prepared)
        if unrun is not None:
            await self._begin_with_tools(prepared)
            return unrun
        provider = prepared.provider
        now = self._clock()
        timeouts = timeouts_for(provider.endpoint.first_token, self._server, is_later_round=ask.rounds is not None)
        self._wait = wait = ReplyDeadline(provider.name, timeouts, now)
        call.record.attempts += 1
        answer = await send(prepared, wait.seconds_left(now), wait.failure)
        if type(answer) is NoReply:  # compared: `isinstance` of a struct that does not fit is slow
            return answer
        self._answer = answer
        if not (self._writer.streams or prepared.streams):
            return await self._read_document(prepared, answer, b"")
        return await self._read_stream(prepared, answer)

    @property
    def reply(self) -> "Pipe | UnchangedDocument":
        """What is known of the reply so far, once it has begun."""
        reply = self.pipe or self.unchanged
        assert reply is not None
        return reply

    @property
    def _is_over(self) -> bool:
        """Whether the whole reply has been read; what follows the last event of a translated one is not waited for."""
        return self.ended or (isinstance(self.pipe, TranslationPipe) and self.pipe.watch.ended)

    @property
    def headers(self) -> Headers:
        assert self._answer is not None
        return self._answer.headers

    async def let_upstream_end(self) -> None:
        """Read on to the end of the body, if it is near, so that the connection can be used again."""
        if self._answer is None or self.pipe is None:
            return
        if not self.pipe.watch.ended or self.pipe.watch.failure is not None:  # its end is not near
            return
        try:
            await self._answer.chunk(LINGER_S)
        except (ConnectionLost, UpstreamTimeout):
            return

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()

    async def _notices(self) -> tuple[Change, ...]:
        """Return the changes that tell the model which calls its last reply in this conversation lost."""
        call = self._around.call
        await call.read()
        conversations = await run_off_loop(len(call.body), lambda: digest_conversation(call.request()))
        lost_calls = await self._around.memory.recall(call.tenant, conversations)
        return (lambda request, ledger: add_notice(request, lost_calls),) if lost_calls else ()

    async def _begin_with_tools(self, prepared: Prepared) -> None:
        """Begin the reply of a request whose history has tools to run before the first upstream request."""
        self.pipe = self._make_pipe(prepared)
        begun = self._writer.encoding.feed([Started("", prepared.route.model)])
        await self._writer.commit(prepared, Headers([]), begun)

    # Reading the answer

    async def _read_stream(self, prepared: Prepared, answer: IncomingResponse) -> TurnEnd:
        begun = b""
        if not is_named_stream(answer.headers):
            self._wait.extend(self._clock(), has_token=False)
            first = await receive(prepared, answer.chunk(self._wait.seconds_left(self._clock())), self._wait.failure)
            if isinstance(first, Failure):
                return NoReply(first)
            begun = first
            if not self._writer.streams or not (
                begins_events(prepared.upstream, begun) or begins_array(prepared.upstream, begun)
            ):
                return await self._read_document(prepared, answer, begun)
        self._writer.begin_answer(answer.headers)
        self.pipe = self._make_pipe(prepared, begun)
        end = await self._until_first_token(prepared, answer, self.pipe, begun)
        if end is not None:
            return end
        await self._accept(prepared, answer, self._writer.take_held())
        if not self._is_over:
            await self._pump(prepared, answer, self.pipe)
        return self._end(prepared, self.pipe)

    async def _until_first_token(
        self, prepared: Prepared, answer: IncomingResponse, pipe: Pipe, begun: bytes
    ) -> TurnEnd | None:
        """Hold what is read until the first token; return the end if it comes first."""
        watch, is_first = pipe.watch, not begun  # what has begun is known to be no document
        while True:
            chunk = begun or await self._next_chunk(prepared, answer, pipe)
            begun = b""
            if isinstance(chunk, Failure):
                return NoReply(chunk)
            if is_first and begins_document(prepared.upstream, chunk):
                return await self._read_document(prepared, answer, chunk)
            is_first = False
            self._writer.hold(pipe.feed(chunk) if chunk else pipe.drain())
            self.ended = not chunk
            if watch.failure is not None and not (watch.has_content and self._writer.streams):
                return NoReply(attribute_failure(prepared, watch.failure))
            no_room = self._count_unsent(len(chunk))
            if no_room is not None:
                return NoReply(no_room)
            if pipe.has_begun or not chunk:
                self._wait.extend(self._clock(), has_token=True)
                return None
            late = self._note_sign_of_life(prepared, pipe)
            if late is not None:
                return NoReply(late)
            if not self._writer.pass_keep_alives():
                await self._writer.wait_writable()

    async def _next_chunk(self, prepared: Prepared, answer: IncomingResponse, pipe: Pipe) -> bytes | Failure:
        """Return the next bytes of a reply without a token, b"" at its end."""
        try:
            return await answer.chunk(self._wait.seconds_left(self._clock()))
        except UpstreamTimeout:
            return self._wait.failure()
        except ConnectionLost as fault:
            return b"" if pipe.decoder.progress is Progress.COMPLETE else connection_failure(prepared, fault)

    def _note_sign_of_life(self, prepared: Prepared, pipe: Pipe) -> Failure | None:
        """Extend the wait for bytes without a token, up to a limit; return the failure beyond it."""
        now = self._clock()
        self._wait.extend(now, is_answering(prepared, pipe))
        return self._wait.failure() if now >= self._wait.deadline else None

    async def _accept(self, prepared: Prepared, answer: IncomingResponse, held: bytes) -> None:
        """The reply has begun: note whose it is, and send what was held."""
        self._around.note_first_token(self)
        if isinstance(prepared, Translated) and self._ask.continuation is not None:
            self._writer.encoding.accept_continuation(prepared.ledger)
        if isinstance(self.pipe, PassthroughPipe):
            self._around.call.release_reply()
        elif isinstance(self.pipe, TranslationPipe):
            self.pipe.used_before = self._writer.encoding.used_before
        if self._is_over and self._writer.streams:
            await self._writer.commit(prepared, answer.headers, b"")
            self._writer.keep_for_end(held)
        else:
            await self._writer.commit(prepared, answer.headers, held)

    async def _pump(self, prepared: Prepared, answer: IncomingResponse, pipe: Pipe) -> None:
        """Pass on the rest of the reply; its last bytes are kept for the end."""
        count = None if self._writer.streams else self._count_held
        pump = Pump(pipe, self._writer, self._wait, self._server, self._clock, count)
        while True:
            try:
                if await answer.stream_to(pump.pass_on, pump.choose_timeout()):
                    self.ended = True
                    self._writer.keep_for_end(pipe.drain())
                    return
            except UpstreamTimeout:
                if pipe.watch.ended:
                    return
                if self._clock() >= self._wait.deadline:
                    self._break_off(pipe, self._wait.failure())
                    return
                await self._writer.send(self._writer.keep_alive)
            except ConnectionLost as fault:
                if not pipe.watch.ended:
                    self._break_off(pipe, connection_failure(prepared, fault))
                return
            else:
                if pump.failure is not None:
                    self._break_off(pipe, pump.failure)
                if pump.is_over:
                    return
                await self._writer.wait_writable()

    def _count_unsent(self, size: int) -> Failure | None:
        """Count bytes that were read and not sent, of which `size` are new; return the failure if there is no room."""
        if self._writer.streams:
            size = self._writer.held_bytes - self._size
        return self._count_held(size) if size > 0 else None

    def _count_held(self, size: int) -> Failure | None:
        self._size += size
        if self._size > MAX_REPLY_BYTES:
            return oversized_failure(self._ask.provider)
        try:
            charge_bytes(self._around.call.buffered, size)
        except RequestError as refused:
            return refused.failure
        return None

    def _break_off(self, pipe: Pipe, failure: Failure) -> None:
        is_complete = pipe.decoder.progress is Progress.COMPLETE
        self._writer.keep_for_end(pipe.drain() if is_complete else pipe.break_off(failure))

    def _end(self, prepared: Prepared, pipe: Pipe) -> TurnEnd:
        """Return how a turn ended whose reply has begun."""
        failure = pipe.watch.failure
        if failure is not None and not self._writer.committed:
            return NoReply(attribute_failure(prepared, failure))
        if not isinstance(pipe, TranslationPipe):
            return Completed(failure)
        if pipe.failure is not None:
            encoding = self._writer.encoding
            text = None if pipe.has_stopped else encoding.text_to_continue
            encoding.interrupt(pipe.used_so_far())
            return Interrupted(pipe.failure, text)
        return find_unfinished(prepared, pipe) or Completed(failure)

    # Documents: replies that come as one body

    async def _read_document(self, prepared: Prepared, answer: IncomingResponse, begun: bytes) -> TurnEnd:
        whole = answer.take_whole()
        if whole is None:
            rest = await self._receive_document(prepared, answer)
        else:
            rest = self._count_held(len(whole)) or whole
        if type(rest) is Failure:
            return NoReply(rest)
        self.ended = True
        body = begun + rest if begun else rest
        size, streamed = len(body), is_stream(prepared.upstream, answer.headers, body)
        if type(prepared) is Passthrough and isinstance(self._writer, WholeWriter) and not streamed:
            work = partial(peek_events, prepared, body)
            seen = work() if size <= LARGE_BYTES else await run_off_loop(size, work)
            return self._pass_document(prepared, answer, self._writer, body, seen)
        ledger = prepared.ledger if isinstance(prepared, Translated) else Ledger()
        if size <= LARGE_BYTES:
            events = read_events(prepared, body, ledger, streamed)
        else:
            events = await run_off_loop(size, partial(read_events, prepared, body, ledger, streamed))
        splits = self._writer.streams and self._around.call.client.cites_apart  # what is sent whole is split at its end
        known = split_citations(events) if splits else events
        self.pipe = pipe = self._make_translation(prepared, ledger, None)
        held = pipe.push_document(known, are_clean=redact_known(body, prepared.secrets) is body)
        if pipe.watch.failure is not None:
            return NoReply(attribute_failure(prepared, pipe.watch.failure))
        await self._accept(prepared, answer, held)
        return self._end(prepared, pipe)

    async def _receive_document(self, prepared: Prepared, answer: IncomingResponse) -> bytes | Failure:
        timeouts, provider = self._wait.timeouts, prepared.provider
        silence_s = min(timeouts.first_token_s, timeouts.idle_s)  # what has come of a body may hold tokens or none
        total_s = timeouts.first_token_s + timeouts.token_s
        reading = read_reply(self._around.call, answer, silence_s, total_s, provider.name)
        return await receive(prepared, reading, partial(stalled_failure, provider, silence_s, total_s))

    def _pass_document(
        self, prepared: Passthrough, answer: IncomingResponse, writer: WholeWriter, body: bytes, seen: list[Event]
    ) -> TurnEnd:
        watch = self._around.make_watch()
        usage: Usage | None = None
        for event in seen:
            watch.observe(event)
            usage = event.usage if type(event) is UsageReported else usage
        if watch.failure is not None:
            return NoReply(attribute_failure(prepared, watch.failure))
        self.unchanged = UnchangedDocument(watch, usage)
        writer.take_unchanged(answer.headers, redact_known(body, prepared.secrets))
        self._around.note_first_token(self)
        return Completed()

    # The pipe

    def _make_pipe(self, prepared: Prepared, begun: bytes = b"") -> Pipe:
        if isinstance(prepared, Translated) or not self._writer.streams:  # the client cannot read events
            ledger = prepared.ledger if isinstance(prepared, Translated) else Ledger()
            return self._make_translation(prepared, ledger, make_source(prepared, ledger, begun))
        call, watch = self._around.call, self._around.make_watch()
        source = make_source(prepared, Ledger(), begun)
        return PassthroughPipe(source, call.client, watch, prepared.secrets, call.stream_type)

    def _make_translation(self, prepared: Prepared, ledger: Ledger, source: Source | None) -> TranslationPipe:
        watch = self._around.make_watch()
        encoding = self._writer.encoding
        has_rounds = isinstance(prepared, Translated) and (prepared.server_tools is not None or prepared.may_pause)
        is_next_round = self._ask.rounds is not None
        if has_rounds and not is_next_round:
            call = self._around.call
            encoding.sources = find_earlier_sources(call.request(), call.client.read_tool_uses)
        encoding.begin_turn(ledger, self._ask.continuation, watch, has_rounds=has_rounds, is_next_round=is_next_round)
        return TranslationPipe(source, make_stages(prepared), encoding, watch, prepared.secrets)
