"""Answer a client's call: a loop over upstream turns."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from dragoman.accounts.pool import Pool
from dragoman.flow.call import Call
from dragoman.flow.capture.writer import RequestCapture
from dragoman.flow.client_encoding import ClientEncoding
from dragoman.flow.credential_rotation import available_targets, find_session, response_name, tenant_session
from dragoman.flow.failures import AllTargetsFailed
from dragoman.flow.policy import Limits, Policy, SecondChances
from dragoman.flow.ports import CallState, LostCallMemory
from dragoman.flow.prepare import Passthrough, Prepared
from dragoman.flow.request_record import Awaited, ObserverQueue
from dragoman.flow.response_writer import OpenReply, ResponseWriter, StreamWriter, WholeWriter
from dragoman.flow.runtime import Runtime
from dragoman.flow.step import (
    Ask,
    Finish,
    GiveUp,
    Interrupted,
    NoReply,
    Step,
    TurnEnd,
)
from dragoman.flow.turn import CallContext, Turn
from dragoman.hub.events import Event, Started
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.hub.loss import Ledger
from dragoman.hub.outcome import OutcomeObserver
from dragoman.hub.ports import ReplyContext
from dragoman.net.sink import ReplySink
from dragoman.net.tasks import run_off_loop
from dragoman.observers.reply_monitor import ReplyMonitor
from dragoman.routing import Route

if TYPE_CHECKING:  # imported when such a request comes
    from dragoman.flow.relay import RelayedCall

log = logging.getLogger("dragoman.requests")

SHUTTING_DOWN = Failure(Kind.SHUTDOWN, "The gateway is shutting down. Send the request again.")


class Gateway:
    """Answers calls with the configuration in force."""

    def __init__(self, runtime: Runtime, memory: LostCallMemory, observers: Sequence[OutcomeObserver] = ()) -> None:
        self.runtime = runtime
        self._memory = memory
        self.observers = ObserverQueue(observers)
        self.captures = RequestCapture()
        self.guard_trips = 0  # how often the grammar guard had to step in
        self.answered = 0
        self.refused = 0
        self._answering: set[ActiveCall] = set()
        self._clock = asyncio.get_running_loop().time

    def adopt(self, runtime: Runtime) -> None:
        """Use this configuration from the next request on."""
        self.runtime = runtime

    async def answer(self, call: Call, sink: ReplySink) -> None:
        """Answer a call at its targets. Raises RequestError if every one failed and nothing was sent to the client."""
        runtime, routes, memory, recording = call.runtime, call.routes, self._memory, call.record.recording
        make_watch: Callable[[], ReplyMonitor] = _make_watch
        on_guard_trip: Callable[[str], None] = self._note_guard_trip
        if len(routes) > 1:
            routes = available_targets(routes, runtime.providers)
        if recording is not None:
            from dragoman.flow.capture.recording_runtime import RecordingMemory, record_state

            if call.state is not None:
                record_state(call.state, recording)
            recording.routes, memory = routes, RecordingMemory(memory, recording)
            make_watch, on_guard_trip = recording.make_monitor, recording.record_guard_trips(self._note_guard_trip)
        call.continues = call.stream and runtime.config.retry.continue_streams and _has_fallback(routes, runtime)
        sessions = await _find_sessions(call, runtime, routes) if _has_pool(routes, runtime) else {}
        policy = _make_policy(call, runtime, routes, sessions)
        writer = self._make_writer(call, sink, runtime.config.server.keep_alive_s, on_guard_trip)
        answering = ActiveCall(call, runtime, memory, policy, writer, make_watch, self._clock)
        self._answering.add(answering)
        try:
            await answering.run(sink)
        finally:
            self._answering.discard(answering)
            answering.close()
        self.answered += 1

    async def relay(self, call: "RelayedCall", sink: ReplySink) -> None:
        """Answer a call of one of the other OpenAI paths; raises as `answer` does."""
        from dragoman.flow.relay import relay

        await relay(call, sink)
        self.answered += 1

    def describe_stop(self, requests: int, signals: int) -> str:
        """Return what the stop signals that were received so far do to the requests in progress."""
        if not requests:
            return "stopping: no requests are in progress"
        busy = f"{requests} request{'s' if requests > 1 else ''} ({self.streams} streamed)"
        if signals == 1:
            drain_s = self.runtime.config.server.drain_s
            return f"stopping: waiting up to {drain_s:g} s for {busy}; a second signal (Ctrl-C) stops at once"
        return f"stopping now: ending {busy} with an error; a third signal ends the process at once"

    @property
    def streams(self) -> int:
        """Return how many streamed replies are being written to their clients."""
        return sum(answering.is_streaming for answering in self._answering)

    def _make_writer(
        self, call: Call, sink: ReplySink, keep_alive_s: float, on_guard_trip: Callable[[str], None]
    ) -> ResponseWriter:
        client = call.client
        if call.stream:
            encoding = ClientEncoding(
                lambda ledger: client.encoder(self._reply_context(call), ledger),
                on_guard_trip,
                serial=client.serial_blocks,
                joins=call.continues,
                cites_apart=client.cites_apart,
                any_arguments=client.arguments_are_text,
            )
            return StreamWriter(sink, call, encoding, keep_alive_s)
        return WholeWriter(sink, call, on_guard_trip, partial(self._encode_whole, call))

    def _encode_whole(self, call: Call, events: Sequence[Event], ledger: Ledger) -> bytes:
        return call.client.encode_whole(events, self._reply_context(call), ledger)

    def _reply_context(self, call: Call) -> ReplyContext:
        done = self.runtime.config.server.responses_done
        state = None if call.state is None else call.state.reply
        started = int(call.caller.received_at) if state is None else state.created
        request, kind = call.request(), call.stream_type
        return ReplyContext(request, call.model, started, _mint, time.time, done, kind, state, call.input_tokens)

    def _note_guard_trip(self, what: str) -> None:
        self.guard_trips += 1
        log.error("the grammar guard stepped in: %s", what)


class ActiveCall:
    """One call, from its first upstream turn to the end of its reply."""

    def __init__(
        self,
        call: Call,
        runtime: Runtime,
        memory: LostCallMemory,
        policy: Policy,
        writer: ResponseWriter,
        make_watch: Callable[[], ReplyMonitor],
        clock: Callable[[], float],
    ) -> None:
        self._call = call
        self._policy = policy
        self._writer = writer
        self._around = CallContext(call, runtime, memory, writer, make_watch, self._note_first_token, clock)
        self._turn: Turn | None = None
        self._current_route: Route | None = None  # the target of the turn that runs now
        self._accepted = False  # this turn has given its first token

    async def run(self, sink: ReplySink) -> None:
        try:
            step = self._policy.begin()
            while True:
                # Types are compared: a struct's class pattern that does not fit is slow.
                if type(step) is Ask:
                    turn = self._begin_turn(step)
                    step = self._after(step, await turn.run())
                elif type(step) is Finish or type(step) is GiveUp:
                    await self._end(step)
                    break
                else:
                    step = self._policy.after(await step.run(self._open_reply()))
        except asyncio.CancelledError as cancelled:
            if self._current_route is not None and not self._accepted:
                self._call.record.note_client_gone(self._current_route)
            if not sink.reader_gone and self._writer.head_sent:  # the client is still there, and must not wait for more
                await self._break_off(_reason_of(cancelled))
            raise
        if self._turn is not None and not self._turn.ended:
            await self._turn.let_upstream_end()

    @property
    def is_streaming(self) -> bool:
        return self._writer.committed

    def close(self) -> None:
        self._policy.release()
        self._writer.close()
        if self._turn is not None:
            self._turn.close()
        del self._around, self._turn  # which refer back to this, and hold the request's body

    def _begin_turn(self, ask: Ask) -> Turn:
        if self._turn is not None:
            self._turn.close()
        self._turn = turn = Turn(ask, self._around)
        self._current_route, self._accepted = ask.route, False
        return turn

    def _after(self, ask: Ask, end: TurnEnd) -> Step:
        self._current_route = None
        if type(end) is NoReply:
            self._call.release_reply()
            if end.failure is not ask.renew_after:
                self._call.record.note_failure(ask.route, RequestError(end.failure))
        step = self._policy.after(end)
        if type(end) is Interrupted and type(step) is not GiveUp:
            self._call.record.note_failure(ask.route, RequestError(end.failure))
            self._call.record.awaits = Awaited.MORE
            self._writer.resume_keep_alives()
            log.warning("%s broke off (%s), another upstream continues", ask.route, end.failure.kind.value)
        return step

    def _note_first_token(self, turn: Turn) -> None:
        prepared, reply = turn.prepared, turn.reply
        assert prepared is not None
        self._accepted = True
        if self._policy.watches_credentials:
            started = reply.watch.started
            kept = response_name(started.id) if started is not None and isinstance(prepared, Passthrough) else None
            self._policy.note_first_token(turn.headers, tenant_session(self._call.tenant, kept))
        if self._call.state is not None:
            _note_route(self._call.state, prepared, reply.watch.started)
        ledger = None if type(prepared) is Passthrough else prepared.ledger
        self._call.record.note_reply(prepared.route, prepared.protocol.name, ledger, reply)

    def _open_reply(self) -> OpenReply:
        pipe = None if self._turn is None else self._turn.pipe
        return OpenReply(self._call, self._around.memory, self._writer, pipe)

    async def _end(self, step: GiveUp | Finish) -> None:
        if type(step) is GiveUp:
            if not self._writer.head_sent:
                raise AllTargetsFailed(step.failure, step.error_reply)
            self._call.record.note_fault(RequestError(step.failure))
            await self._writer.finish_failed(step.failure)
            return
        turn = self._turn
        assert turn is not None
        if turn.pipe is not None:
            self._writer.keep_for_end(turn.pipe.finish())
            self._writer.keep_apart(turn.pipe.last_write)
        await self._writer.finish()

    async def _fail(self, failure: Failure) -> None:
        """End a stream whose head has been sent with the protocol's error event."""
        self._call.record.note_fault(RequestError(failure))
        await self._writer.fail(failure)

    async def _break_off(self, failure: Failure) -> None:
        """End a stream at once, whatever step is running."""
        if self._accepted and self._turn is not None and self._turn.pipe is not None:
            self._writer.keep_for_end(self._turn.pipe.break_off(failure))
            self._writer.keep_apart(self._turn.pipe.last_write)
        await self._fail(failure)


def _note_route(state: CallState, prepared: Prepared, started: Started | None) -> None:
    state.route = str(prepared.route)
    if type(prepared) is Passthrough and started is not None:
        state.note_keeper(prepared.provider.name, prepared.provider.account.label, started.id)


def _reason_of(cancelled: asyncio.CancelledError) -> Failure:
    """Return the failure that a task was cancelled with; without one, the gateway is shutting down."""
    reason = cancelled.args[0] if cancelled.args else None
    return reason if isinstance(reason, Failure) else SHUTTING_DOWN


def _make_policy(call: Call, runtime: Runtime, routes: tuple[Route, ...], sessions: Mapping[str, str | None]) -> Policy:
    limits = Limits(runtime.config.retry, call.continues, _jitter)
    return Policy(routes, runtime.providers, limits, SecondChances(runtime.learned_quirks, call.tenant), sessions)


def _has_pool(routes: tuple[Route, ...], runtime: Runtime) -> bool:
    """Whether a target has several credentials, so that it matters which conversation this is."""
    for route in routes:
        provider = runtime.providers.get(route.provider)
        if provider is not None and provider.account.pool is not None:
            return True
    return False


async def _find_sessions(call: Call, runtime: Runtime, routes: tuple[Route, ...]) -> dict[str, str | None]:
    """Return the name of this conversation for each provider with several credentials."""
    sessions: dict[str, str | None] = {}
    for route in routes:
        provider = runtime.providers.get(route.provider)
        if provider is not None and provider.account.pool is not None and provider.name not in sessions:
            sessions[provider.name] = await _session_with(call, provider.account.pool)
    return sessions


async def _session_with(call: Call, pool: Pool) -> str | None:
    """Return this call's conversation name in a pool of credentials."""

    def is_known(name: str) -> bool:
        return pool.last_member(tenant_session(call.tenant, name)) is not None

    name = await run_off_loop(len(call.body), lambda: find_session(call, is_known))
    return tenant_session(call.tenant, name)


def _has_fallback(routes: tuple[Route, ...], runtime: Runtime) -> bool:
    """Whether another target or another credential could continue a reply that breaks off."""
    first = runtime.providers.get(routes[0].provider)
    return len(routes) > 1 or (first is not None and first.account.pool is not None)


def _make_watch() -> ReplyMonitor:
    return ReplyMonitor(time.monotonic)


def _jitter() -> float:
    return random.uniform(0.75, 1.25)  # spreads retries; not for security


def _mint(prefix: str) -> str:
    # Ids only have to be unique, so the system's randomness is not needed.
    return f"{prefix}{random.getrandbits(128):032x}"
