"""One call, from its first upstream turn to the end of its reply: a loop over steps and turns."""

import asyncio
from typing import TYPE_CHECKING

from dragoman.net.sink import ReplySink
from dragoman.proxy.accounts import correct, reserve_turn
from dragoman.proxy.between_turns import CallScope
from dragoman.proxy.continue_elsewhere import record_continuation
from dragoman.proxy.failures import AllTargetsFailed
from dragoman.proxy.moved_sessions import CallTargets
from dragoman.proxy.policy import Policy
from dragoman.proxy.replies.translated import TranslatedReply
from dragoman.proxy.response_writer import ResponseWriter
from dragoman.proxy.rounds import end_at_limit
from dragoman.proxy.sessions import response_name, tenant_session
from dragoman.proxy.step import Ask, Finish, GiveUp, Interrupted, NoReply, Step, TurnEnd
from dragoman.proxy.turn import CallContext, UpstreamTurn
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.upstreams.routing import Route

if TYPE_CHECKING:  # imported when such a request comes
    from dragoman.proxy.replies.relayed import RelayedWriter

SHUTTING_DOWN = Failure(Kind.SHUTDOWN, "The gateway is shutting down. Send the request again.")


class ActiveCall:
    """One call, from its first upstream turn to the end of its reply."""

    def __init__(
        self,
        context: CallContext,
        policy: Policy,
        writer: "ResponseWriter | RelayedWriter",  # the replies of the context write to it
        targets: CallTargets | None = None,  # None: there is one, or it does not matter which one answers
    ) -> None:
        self._call = context.call
        self._targets = targets
        self._policy = policy
        self._writer = writer
        self._context = context
        self._scope: CallScope | None = None  # of the steps between two turns, from the first one on
        self._turn: UpstreamTurn | None = None
        self._current_route: Route | None = None  # the target of the turn that runs now
        self._accepted = False  # this turn has given its first token

    async def run(self, sink: ReplySink, under_way: "set[ActiveCall]") -> None:
        """Answer the call, which is one of those under way until its end."""
        under_way.add(self)
        try:
            step = self._policy.begin()
            while True:
                # Types are compared: a struct's class pattern that does not fit is slow.
                if type(step) is Ask:
                    if self._targets is not None:
                        await self._targets.prepare(step.route)
                    turn = self._begin_turn(step)
                    end = await turn.run()
                    step = self._after(step, await turn.explain(end) if type(end) is NoReply else end)
                    if type(end) is Interrupted and type(step) is Ask and self._call.lease is not None:
                        step = await self._reserve_continuation(step, turn)
                elif type(step) is Finish:
                    assert self._turn is not None
                    assert self._turn.reply is not None
                    await self._turn.reply.finish()
                    break
                elif type(step) is GiveUp:
                    await self._give_up(step)
                    break
                else:
                    self._scope = self._scope or CallScope(self._call, self._context.memory, [])
                    step = self._policy.after_step(await step.run(self._scope))
        except asyncio.CancelledError as cancelled:
            if self._current_route is not None and not self._accepted:
                self._call.record.record_client_gone(self._current_route)
            if not sink.reader_gone:  # the client is still there, and must not wait for more
                await self._break_off(_reason_of(cancelled))
            raise
        else:
            if self._turn is not None and not self._turn.ended:
                await self._turn.let_upstream_end()
        finally:
            under_way.discard(self)
            self._close()

    @property
    def is_streaming(self) -> bool:
        return self._writer.committed

    def _close(self) -> None:
        self._policy.release()
        for release in () if self._scope is None else self._scope.at_end:
            release()
        self._writer.close()
        if self._turn is not None:
            self._turn.close()
        del self._context, self._turn  # they hold the request's body, and the turn refers back to this

    def _begin_turn(self, ask: Ask) -> UpstreamTurn:
        if self._turn is not None:
            self._turn.close()
        self._turn = turn = UpstreamTurn(ask, self._context, self._record_first_token)
        self._current_route, self._accepted = ask.route, False
        return turn

    def _after(self, ask: Ask, end: TurnEnd) -> Step:
        self._current_route = None
        if type(end) is NoReply:
            self._call.release_reply()
            if end.failure is not ask.renew_after:
                self._call.record.record_failure(ask.route, RequestError(end.failure))
        step = self._policy.after(end)
        if type(end) is Interrupted and type(step) is not GiveUp:
            record_continuation(self._call.record, ask.route, end.failure)
        return step

    async def _reserve_continuation(self, step: Ask, turn: UpstreamTurn) -> Step:
        """Return the step, or the end of the reply if no further upstream request may be paid."""
        reply = turn.reply
        if not isinstance(reply, TranslatedReply) or await reserve_turn(self._call.lease, reply.used_so_far()):
            return step
        end_at_limit(self._call, reply)
        return Finish()

    def _record_first_token(self, turn: UpstreamTurn) -> None:
        prepared, reply, call = turn.prepared, turn.reply, self._call
        assert prepared is not None
        assert reply is not None
        self._accepted = True
        if self._targets is not None:
            self._targets.record(prepared.route)
        if self._policy.chances.first is not None:
            self._policy.record_repaired()
        reasoning = self._context.reasoning
        if reasoning is not None and reasoning.unrecorded:
            reasoning.record_answer(prepared.provider.name)
        watches_credentials, stored_id = self._policy.watches_credentials, None
        if watches_credentials or call.state is not None:
            stored_id = prepared.find_stored_id(reply.watch.started)
        if watches_credentials:
            name = None if stored_id is None else response_name(stored_id)
            self._policy.record_first_token(turn.headers, tenant_session(call.tenant, name))
        if call.state is not None:
            call.state.route = str(prepared.route)
            if stored_id is not None:
                call.state.record_keeper(prepared.provider.name, prepared.provider.account.label, stored_id)
        if call.record.recording is not None:
            call.record.recording.why = reply.why
        if turn.ask.continuation is None and prepared.upstream.prompts is not None:
            cache = None if turn.built is None else turn.built.cache
            call.record.record_prompt(None if cache is None else cache.outlook)
            if cache is not None:
                cache.record()
        ledger = prepared.ledger
        call.record.record_reply(prepared.route, prepared.protocol.name, ledger, reply)
        if call.lease is not None:
            correct(call, prepared.route, reply.reported)

    async def _give_up(self, step: GiveUp) -> None:
        stream = self._writer.open_stream
        if stream is None:
            raise AllTargetsFailed(step.failure, step.error_reply)
        self._call.record.record_fault(RequestError(step.failure))
        await stream.finish_failed(step.failure)

    async def _break_off(self, failure: Failure) -> None:
        """End a stream at once, whatever step is running."""
        stream = self._writer.open_stream
        if stream is None:
            return
        if self._accepted and self._turn is not None and self._turn.reply is not None:
            self._turn.reply.interrupt(failure)
        self._call.record.record_fault(RequestError(failure))
        await stream.fail(failure)


def _reason_of(cancelled: asyncio.CancelledError) -> Failure:
    """Return the failure that a task was cancelled with; without one, the gateway is shutting down."""
    reason = cancelled.args[0] if cancelled.args else None
    return reason if isinstance(reason, Failure) else SHUTTING_DOWN
