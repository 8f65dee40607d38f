"""Run one upstream turn: prepare the request, send it, and feed what comes back to the reply that it opens.

Whatever is expected to go wrong is returned as a `TurnEnd`; the policy decides what follows from it.
"""

from collections.abc import Callable
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from dragoman.net.body_threads import LARGE_BYTES, run_off_loop
from dragoman.net.client import ConnectionLost, UpstreamTimeout
from dragoman.net.headers import Headers
from dragoman.proxy.call import Call
from dragoman.proxy.decoding import is_named_stream, is_stream
from dragoman.proxy.failures import attribute_failure
from dragoman.proxy.ports import LostCallMemory
from dragoman.proxy.prepared import Change, Prepared, Translated
from dragoman.proxy.pump import LINGER_S, Pump, is_answering
from dragoman.proxy.rejected_reasoning import CallReasoning
from dragoman.proxy.replies.opening import Replies
from dragoman.proxy.replies.reply import StreamedReply, TurnReply
from dragoman.proxy.replies.translated import Body
from dragoman.proxy.reply_bounds import read_reply, timeouts_for
from dragoman.proxy.rounds import ToolsCalled, call_unrun_uses
from dragoman.proxy.step import Ask, NoReply, TurnEnd
from dragoman.proxy.upstream import connection_failure, count_held, receive, send, stalled_failure
from dragoman.state.lost_calls import add_notice, digest_conversation
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.ports import Progress
from dragoman.upstreams.provider import IncomingResponse
from dragoman.upstreams.rejections.complaint import read_complaint
from dragoman.upstreams.rejections.repairs import complain, find_repairs, is_own_vendor
from dragoman.upstreams.rejections.rules import list_free
from dragoman.upstreams.rejections.sent import Sent


class CallContext(Struct, frozen=True):
    """What the turns of one call share."""

    call: Call
    memory: LostCallMemory
    replies: Replies
    clock: Callable[[], float]  # of the event loop
    reasoning: CallReasoning | None = None  # None: the call has none


class UpstreamTurn:
    """One upstream request and its reply."""

    def __init__(self, ask: Ask, context: CallContext, record_first_token: Callable[["UpstreamTurn"], None]) -> None:
        self.ask = ask
        self._context = context
        self._record_first_token = record_first_token
        self._replies = context.replies
        self._server = context.call.runtime.config.server
        self._clock = context.clock
        self._answer: IncomingResponse | None = None
        self.ended = False  # the upstream's body has been read to its end
        self.prepared: Prepared | None = None
        self.built: Translated | None = None  # the same, if it is translated
        self.reply: TurnReply | None = None  # from its first bytes on

    async def explain(self, end: NoReply) -> NoReply:
        """Add what a refusal says about the request. Not in `run`: each read of a reply passes all its coroutines."""
        if self.prepared is None:
            return end
        return await self._look_for_reasoning(await self._find_repairs(end))

    async def _look_for_reasoning(self, end: NoReply) -> NoReply:
        """Note where the refusal cannot be about reasoning. What a round of tools added may have some."""
        reasoning = self._context.reasoning
        if end.failure.kind is not Kind.BAD_REQUEST or reasoning is None or self.ask.rounds is not None:
            return end
        return replace(end, lacks_reasoning=not await reasoning.has_any(), is_of_vendor=self._is_of_vendor())

    def _is_of_vendor(self) -> bool:
        prepared = self.prepared
        return prepared is not None and is_own_vendor(prepared.provider, prepared.protocol.name)

    async def _find_repairs(self, end: NoReply) -> NoReply:
        """Add what the refusal says about the request, for a strict one only what costs its client nothing."""
        prepared = self.prepared
        if prepared is None:
            return end
        complaint = end.complaint or (complain(end.failure) if self._answer is not None else None)
        if complaint is None:
            return end
        unsigned = prepared.unsigned
        sent = Sent(prepared.protocol.name, unsigned.body, unsigned.others)
        find = partial(
            find_repairs,
            end.failure,
            complaint,
            sent,
            prepared.provider,
            self._replies.rules,
            passed=prepared.why.passes,
        )
        found = repairs = await run_off_loop(len(unsigned.body), find)
        if self._context.call.strict:
            repairs = () if prepared.why.passes else list_free(found)
        return replace(end, is_rejection=bool(found), repairs=repairs)

    async def run(self) -> TurnEnd:
        ask = self.ask
        if ask.renew_after is not None:
            assert ask.provider.auth.renew is not None
            if not await ask.provider.auth.renew():
                return NoReply(ask.renew_after)
        call = self._context.call
        try:
            if call.lease is not None:
                await call.lease.change_target(ask.route.provider, ask.route.model)
            reasoning = self._context.reasoning
            if ask.provider.replies.withholds_cut_calls or (reasoning is not None and reasoning.may_leave_out(ask)):
                ask = await self._add_changes(ask)
            self.prepared = prepared = await self._replies.prepare(ask)
        except RequestError as refused:
            return NoReply(refused.failure)
        self._replies.begin_turn(ask, prepared)
        self.built = built = prepared if type(prepared) is Translated else None
        if built is not None and built.offered.unrun:
            return await self._begin_with_tools(built)
        provider = prepared.provider
        now = self._clock()
        timeouts = timeouts_for(provider.endpoint.first_token, self._server, is_later_round=ask.rounds is not None)
        self._wait = wait = self._replies.deadline(provider.name, timeouts, now)
        call.record.record_sent(ask.route)
        answer = await send(prepared, wait.seconds_left(now), wait.failure)
        if type(answer) is NoReply:  # compared: `isinstance` of a struct that does not fit is slow
            return answer
        self._answer = answer
        self._is_named = is_named = is_named_stream(answer.headers)
        if self._replies.begin_answer(answer.status, answer.headers, is_stream=is_named):
            if not is_named:
                wait.extend(self._clock(), has_token=False)
            return await self._read_stream(prepared, answer)
        return await self._read_document(prepared, answer, b"")

    async def _add_changes(self, ask: Ask) -> Ask:
        """Add the changes that earlier turns, of this and of other calls, have made necessary."""
        reasoning = self._context.reasoning
        left_out = None
        if reasoning is not None and reasoning.may_leave_out(ask):
            left_out = await reasoning.choose(ask)
        if left_out is not None:
            ask = replace(ask, left_out=left_out)
        if ask.provider.replies.withholds_cut_calls and (notices := await self._notices()):
            ask = replace(ask, changes=(*ask.changes, *notices))
        return ask

    @property
    def headers(self) -> Headers:
        assert self._answer is not None
        return self._answer.headers

    async def let_upstream_end(self) -> None:
        """Read on to the end of the body, if it is near, so that the connection can be used again."""
        if self.ended or self._answer is None or self.reply is None:
            return
        if not self.reply.watch.ended or self.reply.watch.failure is not None:  # its end is not near
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
        lost_calls = await self._context.memory.recall(self._context.call.tenant, self._digest_conversation)
        return (lambda request, ledger: add_notice(request, lost_calls),) if lost_calls else ()

    async def _digest_conversation(self) -> tuple[bytes, ...]:
        call = self._context.call
        await call.read()
        return await run_off_loop(len(call.body), lambda: digest_conversation(call.request()))

    async def _begin_with_tools(self, prepared: Translated) -> ToolsCalled:
        """Begin the reply of a request whose history has tools to run before the first upstream request."""
        self.reply = reply = self._replies.open_for_tools()
        await reply.begin_with_tools()
        return call_unrun_uses(prepared, reply)

    # Streams

    async def _read_stream(self, prepared: Prepared, answer: IncomingResponse) -> TurnEnd:
        begun = await self._next_chunk(prepared, answer, None)
        if type(begun) is Failure:
            return NoReply(begun)
        if not self._replies.reads_events(begun):
            return await self._read_document(prepared, answer, begun)
        self.reply = reply = self._replies.open_stream(begun)
        failure = await self._until_first_token(prepared, answer, reply, begun)
        if failure is not None:
            return NoReply(failure)
        self._record_first_token(self)
        await reply.commit()
        if not reply.is_over:
            await self._pump(prepared, answer, reply)
        return reply.conclude()

    async def _until_first_token(
        self, prepared: Prepared, answer: IncomingResponse, reply: StreamedReply, chunk: bytes
    ) -> Failure | None:
        """Feed the reply, which holds it, until its first token; return the failure if there is one first."""
        while chunk:
            has_room = reply.feed(chunk)
            if (failure := reply.early_failure) is not None:
                return attribute_failure(prepared, failure)
            if reply.has_begun:
                self._wait.extend(self._clock(), has_token=True)
                return None
            failure = None if has_room else await reply.wait_for_room()
            failure = failure or self._record_sign_of_life(prepared, reply)
            if failure is not None:
                return failure
            read = await self._next_chunk(prepared, answer, reply)
            if type(read) is Failure:
                return read
            chunk = read
        reply.end()
        self.ended = True
        failure = reply.early_failure
        return None if failure is None else attribute_failure(prepared, failure)

    async def _next_chunk(
        self, prepared: Prepared, answer: IncomingResponse, reply: StreamedReply | None
    ) -> bytes | Failure:
        """Return the next bytes of an answer without a token, b"" at its end."""
        try:
            return await answer.chunk(self._wait.seconds_left(self._clock()))
        except UpstreamTimeout:
            return self._wait.failure()
        except ConnectionLost as fault:
            is_complete = reply is not None and reply.progress is Progress.COMPLETE
            return b"" if is_complete else connection_failure(prepared, fault)

    def _record_sign_of_life(self, prepared: Prepared, reply: StreamedReply) -> Failure | None:
        """Extend the wait for bytes without a token, up to a limit; return the failure beyond it."""
        now = self._clock()
        self._wait.extend(now, is_answering(prepared, reply))
        return self._wait.failure() if now >= self._wait.deadline else None

    async def _pump(self, prepared: Prepared, answer: IncomingResponse, reply: StreamedReply) -> None:
        """Pass on the rest of the reply; its last bytes are kept for the end."""
        pump = Pump(reply, self._wait, self._server, self._clock)
        failure: Failure | None = None
        while failure is None and not pump.is_over:
            try:
                if await answer.stream_to(pump.pass_on, pump.choose_timeout()):
                    self.ended = True
                    reply.end()
                    return
                if not pump.is_over:
                    failure = await reply.wait_for_room()
            except UpstreamTimeout:
                if reply.watch.ended:
                    return
                if self._clock() >= self._wait.deadline:
                    failure = self._wait.failure()
                elif reply.keep_alive is not None:
                    await reply.keep_alive()
            except ConnectionLost as fault:
                if reply.watch.ended:
                    return
                failure = connection_failure(prepared, fault)
        if failure is not None:
            reply.end() if reply.progress is Progress.COMPLETE else reply.interrupt(failure)

    # Documents: replies that come as one body

    async def _read_document(self, prepared: Prepared, answer: IncomingResponse, begun: bytes) -> TurnEnd:
        whole = answer.take_whole()
        if whole is None:
            rest = await self._receive_document(prepared, answer)
        else:
            size = len(whole)
            rest = count_held(self._context.call.buffered, prepared.provider, size, size) or whole
        if type(rest) is Failure:
            return NoReply(rest)
        self.ended = True
        body = begun + rest if begun else rest
        size = len(body)
        came = Body(body, is_stream(prepared.upstream, body, is_named=self._is_named))
        self.reply = reply = self._replies.open_document(came)
        reply.take(reply.read() if size <= LARGE_BYTES else await run_off_loop(size, reply.read))
        if reply.watch.failure is not None:
            complaint = read_complaint(answer.status, body if size <= LARGE_BYTES else b"")
            found = complaint if complaint.message else None
            return NoReply(attribute_failure(prepared, reply.watch.failure), complaint=found)
        self._record_first_token(self)
        await reply.commit()
        return reply.conclude()

    async def _receive_document(self, prepared: Prepared, answer: IncomingResponse) -> bytes | Failure:
        timeouts, provider = self._wait.timeouts, prepared.provider
        silence_s = min(timeouts.first_token_s, timeouts.idle_s)  # what has come of a body may hold tokens or none
        total_s = timeouts.first_token_s + timeouts.token_s
        reading = read_reply(self._context.call, answer, silence_s, total_s, provider.name)
        return await receive(prepared, reading, partial(stalled_failure, provider, silence_s, total_s))
