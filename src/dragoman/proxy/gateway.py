"""Answer a client's call: a loop over upstream turns."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dragoman.net.body_threads import run_off_loop
from dragoman.net.sink import ReplySink
from dragoman.proxy.accounts import Charges
from dragoman.proxy.answer import ActiveCall
from dragoman.proxy.call import Call
from dragoman.proxy.capture.writer import RequestCapture
from dragoman.proxy.client_encoding import ClientEncoding, ReplyShape
from dragoman.proxy.credential_rotation import available_targets
from dragoman.proxy.memories import Memories
from dragoman.proxy.moved_sessions import CallTargets, MovedSessions
from dragoman.proxy.outcome import OutcomeObserver
from dragoman.proxy.policy import Policy, RetryLimits, SecondChances
from dragoman.proxy.ports import OtherProcesses
from dragoman.proxy.rejected_reasoning import CallReasoning, SharedReasoning
from dragoman.proxy.replies.opening import DocumentReplies, Replies, StreamReplies
from dragoman.proxy.reply_monitor import ReplyMonitor
from dragoman.proxy.request_record import ObserverQueue
from dragoman.proxy.response_writer import DocumentWriter, ResponseWriter, StreamWriter
from dragoman.proxy.running_requests import RunningRequests
from dragoman.proxy.runtime import Runtime
from dragoman.proxy.sessions import find_session, tenant_session
from dragoman.proxy.turn import CallContext
from dragoman.tenancy.limiter import Limiter
from dragoman.translate.hub.events import Event
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import ReplyContext
from dragoman.upstreams.credentials.pool import Pool
from dragoman.upstreams.routing import Route

if TYPE_CHECKING:  # imported when such a request comes
    from dragoman.proxy.relay import RelayedCall

log = logging.getLogger("dragoman.requests")


class Gateway:
    """Answers calls with the configuration in force."""

    def __init__(self, runtime: Runtime, memories: Memories, observers: Sequence[OutcomeObserver] = ()) -> None:
        self.runtime = runtime  # of the next request: one that runs keeps its own
        self._memories = memories
        self.moved_sessions = MovedSessions()
        self.observers = ObserverQueue(observers)
        self.running = RunningRequests()
        self.captures = RequestCapture()
        self.limiter: Limiter | None = None  # None: there are no limits
        self.charges: Charges | None = None  # None: no other process writes rows of this one
        self.guard_trips = 0  # how often the grammar guard had to step in
        self.answered = 0
        self.refused = 0
        self._answering: set[ActiveCall] = set()
        self._clock = asyncio.get_running_loop().time
        # What replies say of the time, and their ids; a replay has its own.
        self.now: Callable[[], float] = time.time
        self.new_id: Callable[[str], str] = _mint

    def join_group(self, group: OtherProcesses) -> None:
        """Have one memory of prompts, of moved sessions and of rejected reasoning with the other processes."""
        from dragoman.proxy.shared_prompts import SharedPrompts

        self.moved_sessions.join_group(group)
        prompts, reasoning = self._memories.prompts, self._memories.reasoning
        self._memories = replace(
            self._memories, prompts=SharedPrompts(prompts, group), reasoning=SharedReasoning(reasoning, group)
        )

    async def answer(self, call: Call, sink: ReplySink) -> None:
        """Answer a call at its targets. Raises RequestError if every one failed and nothing was sent to the client."""
        runtime, routes, memories, recording = call.runtime, call.routes, self._memories, call.record.recording
        make_watch: Callable[[], ReplyMonitor] = _make_watch
        on_guard_trip: Callable[[str], None] = self._record_guard_trip
        targets = None
        if len(routes) > 1:
            targets = CallTargets(call, self.moved_sessions)
            routes = await targets.order(available_targets(routes, runtime.providers))
        if recording is not None:
            from dragoman.proxy.capture.lookups import RecordingLookups, look_up_memories

            lookups = RecordingLookups(recording)
            if call.state is not None:
                lookups.record_state(call.state)
            recording.settings.routes, memories = routes, look_up_memories(memories, lookups)
            make_watch, on_guard_trip = recording.make_monitor, recording.record_guard_trips(self._record_guard_trip)
        call.continues = call.stream and runtime.config.retry.continue_streams and _has_fallback(routes, runtime)
        sessions = await _find_sessions(call, runtime, routes) if _has_pool(routes, runtime) else {}
        limits = RetryLimits(runtime.config.retry, call.continues, _jitter)
        chances = SecondChances(runtime.learned_quirks, call.tenant, not call.strict)
        policy = Policy(routes, runtime.providers, limits, chances, sessions)
        writer: ResponseWriter
        replies: Replies
        if call.stream:
            encoding = partial(self._make_encoding, call, on_guard_trip)
            writer = stream = StreamWriter(sink, call, encoding, runtime.config.server.keep_alive_s)
            replies = StreamReplies(call, stream, make_watch, memories.prompts)
        else:
            writer = document = DocumentWriter(sink, call, on_guard_trip, partial(self._encode_whole, call))
            replies = DocumentReplies(call, document, make_watch, memories.prompts)
        reasoning = CallReasoning(call, memories.reasoning)
        context = CallContext(call, memories.lost_calls, replies, self._clock, reasoning)
        await ActiveCall(context, policy, writer, targets).run(sink, self._answering)
        self.answered += 1

    async def answer_relayed(self, call: "RelayedCall", sink: ReplySink) -> None:
        """Answer a call of one of the other OpenAI paths in the same loop; raises as `answer` does."""
        from dragoman.proxy.replies.relayed import RelayedReplies, RelayedWriter

        runtime, recording = call.runtime, call.record.recording
        routes = available_targets(call.routes, runtime.providers)
        make_watch: Callable[[], ReplyMonitor] = _make_watch
        if recording is not None:
            recording.settings.routes, make_watch = routes, recording.make_monitor
        chances = SecondChances(runtime.learned_quirks, call.tenant, False)  # it cannot be rebuilt
        policy = Policy(routes, runtime.providers, RetryLimits(runtime.config.retry, False, _jitter), chances, {})
        replies = RelayedReplies(call, writer := RelayedWriter(sink), make_watch)
        context = CallContext(call, self._memories.lost_calls, replies, self._clock)
        await ActiveCall(context, policy, writer).run(sink, self._answering)
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

    def _make_encoding(self, call: Call, on_guard_trip: Callable[[str], None]) -> ClientEncoding:
        client = call.client
        return ClientEncoding(
            lambda ledger: client.encoder(self._reply_context(call), ledger),
            on_guard_trip,
            ReplyShape(client.serial_blocks, call.continues, client.cites_apart, client.arguments_are_text),
        )

    def _encode_whole(self, call: Call, events: Sequence[Event], ledger: Ledger) -> bytes:
        return call.client.encode_whole(events, self._reply_context(call), ledger)

    def _reply_context(self, call: Call) -> ReplyContext:
        done = self.runtime.config.server.responses_done
        state = None if call.state is None else call.state.reply
        started = int(call.caller.received_at) if state is None else state.created
        request, kind = call.request(), call.stream_type
        new_id, now = self.new_id, self.now
        return ReplyContext(request, call.named_model, started, new_id, now, done, kind, state, call.input_tokens)

    def _record_guard_trip(self, what: str) -> None:
        self.guard_trips += 1
        log.error("the grammar guard stepped in: %s", what)


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
