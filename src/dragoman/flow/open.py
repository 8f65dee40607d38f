"""A prepared request goes upstream; what comes back is held until its first token, so that failures are real errors."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.settings import Server
from dragoman.flow.advice import advised, resets_by_our_clock
from dragoman.flow.attempt import TurnedAway
from dragoman.flow.blame import named, redirected
from dragoman.flow.call import Call
from dragoman.flow.client_stream import MAX_HELD_BYTES, ClientStream
from dragoman.flow.discretion import redact_events
from dragoman.flow.headers import without_account
from dragoman.flow.line import Line
from dragoman.flow.machines import LineBuilder, source_of
from dragoman.flow.mend import Mender
from dragoman.flow.patience import Wait, patience_with
from dragoman.flow.prepare import Prepared
from dragoman.flow.reading import ERROR_BODY_S, MAX_REPLY_BYTES, hold, read_error, read_reply
from dragoman.flow.shape import begins_document, begins_events, is_named_stream, is_stream
from dragoman.flow.sink import Sink
from dragoman.framing.jsonread import is_object
from dragoman.framing.known_secrets import hide, hide_in_fields
from dragoman.hub.events import Event, Failed, Used
from dragoman.hub.failure import NO_REPLY, Failure, Kind, Refused
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import ErrorShape
from dragoman.hub.usage import Usage
from dragoman.net.client import Lost, TimedOut, TooLarge
from dragoman.net.faults import Corrupt
from dragoman.net.headers import Headers
from dragoman.net.tasks import place_of
from dragoman.observers.watch import Watch
from dragoman.providers.provider import Answer
from dragoman.stages.hold_cut import HoldCut

log = logging.getLogger(__name__)


class Whole(Struct, frozen=True):
    """A reply that was read to its end."""

    prepared: Prepared
    headers: Headers
    body: bytes
    watch: Watch
    as_is: bool  # the body is the upstream's
    usage: Usage | None = None  # where it is not the upstream's own word


class Streaming(Struct, frozen=True):
    """A reply under way: what the line has given so far, and whether there is more."""

    prepared: Prepared
    answer: Answer
    line: Line
    held: bytes
    ended: bool
    wait: Wait  # for the next byte

    @property
    def watch(self) -> Watch:
        return self.line.watch

    @property
    def usage(self) -> Usage | None:
        return self.line.usage


class Opener:
    """Sends prepared requests and brings their replies to the point where the client may see them."""

    def __init__(self, server: Server, build: LineBuilder, mender: Mender) -> None:
        self._server = server
        self._build = build
        self._mender = mender

    async def whole(self, call: Call, prepared: Prepared) -> Whole:
        watch = self._build.watch()
        ledger = prepared.ledger if prepared.ledger is not None else Ledger()
        answer, events, body = await self._read(call, prepared, watch, ledger)
        as_is = False
        if events is None:
            streamed = is_stream(prepared.upstream, answer.headers, body)
            as_is = prepared.passthrough and not streamed  # events are no answer to who asked for the whole
            events = _glanced(prepared, body) if as_is else _events(prepared, body, ledger, streamed)
            for event in events:
                watch.see(event)
        if watch.failure is not None:
            raise Refused(named(prepared, watch.failure))
        if as_is:
            body = hide(body, prepared.secrets)
        else:
            clean = redact_events(await self._mended(call, prepared, events, watch), prepared.secrets)
            events = self._build.staged(clean, prepared)
            if events and isinstance(events[-1], Failed):
                raise Refused(named(prepared, events[-1].failure))
            body = call.client.whole(events, self._build.asked(call), ledger)
        usage = next((event.usage for event in reversed(events) if isinstance(event, Used)), None)
        return Whole(prepared, answer.headers, body, watch, as_is, usage)

    async def _read(
        self, call: Call, prepared: Prepared, watch: Watch, ledger: Ledger
    ) -> tuple[Answer, list[Event] | None, bytes]:
        """An answer to its end: what it told, where it is the stream that was asked for, else its body."""
        wait = self._wait(prepared)
        if not prepared.streams:  # then all of its tokens come at once, at the end
            wait.extend(_now(), has_token=True)
        answer = await self._send(prepared, wait)
        events: list[Event] | None = None
        begun = b""
        try:
            if prepared.streams and is_named_stream(answer.headers):
                events, begun = await self._listened(call, prepared, answer, watch, ledger, wait)
            if events is None:
                begun += await self._body(call, prepared, answer)
        finally:
            answer.close()
        return answer, events, begun

    async def _listened(
        self, call: Call, prepared: Prepared, answer: Answer, watch: Watch, ledger: Ledger, wait: Wait
    ) -> tuple[list[Event] | None, bytes]:
        """What a stream tells until it is over or fails; None, and how it begins, where it is a document after all.

        Its first token must come as soon as anyone's.
        """
        source = source_of(prepared, ledger)
        events: list[Event] = []
        begun, size, speaking, chunk = b"", 0, False, b" "
        while chunk and watch.failure is None:
            speaking = speaking or is_speaking(prepared, watch, source.at_work)
            now = _now()
            wait.extend(now, speaking)
            if now >= wait.deadline:
                raise Refused(wait.failure())
            chunk = await _received(prepared, answer.chunk(wait.left(now)), wait.failure)
            size += len(chunk)
            hold(call.buffered, len(chunk))
            if size > MAX_REPLY_BYTES:
                raise Refused(_too_much(prepared))
            if not begun.strip():
                begun += chunk
                if begins_document(prepared.upstream, begun):
                    return None, begun
            told = source.feed(chunk) if chunk else source.finish()
            for event in told:
                watch.see(event)
            events += told
        return events, b""

    async def _mended(self, call: Call, prepared: Prepared, events: list[Event], watch: Watch) -> list[Event]:
        if not prepared.provider.withholds_cut_calls:
            return events
        hold = HoldCut()
        told = [out for event in events for out in hold.feed(event)]
        if hold.held is None:
            return events
        return told + await self._mender.events(call, prepared, hold, watch.usage)

    async def stream(
        self, call: Call, prepared: Prepared, sink: Sink | None = None, client: ClientStream | None = None
    ) -> Streaming:
        """Ask for a stream and hold it until its first token; raises Refused where that does not come.

        `sink`: of a reply that has broken off, and that this one goes on with. `client`: who waits for a first reply.
        """
        if client is not None:
            client.attempt(prepared)
        wait = self._wait(prepared)
        answer = await self._send(prepared, wait)
        try:
            wait.extend(_now(), has_token=False)
            begun = b""
            if not is_named_stream(answer.headers):
                begun = await _received(prepared, answer.chunk(wait.left(_now())), wait.failure)
                if not begins_events(prepared.upstream, begun):
                    return await self._stream_of_whole(call, prepared, answer, sink, begun)
            line = self._build.line(call, prepared, sink)
            reply = Streaming(prepared, answer, line, b"", False, wait)
            return await self._until_first_token(call, reply, begun, client if prepared.passthrough else None)
        except BaseException:
            answer.close()
            raise

    async def _until_first_token(
        self, call: Call, reply: Streaming, begun: bytes, client: ClientStream | None
    ) -> Streaming:
        """`client` is sent the upstream's own keep-alives where the reply passes through; None: it is sent nothing."""
        prepared, answer, line, wait = reply.prepared, reply.answer, reply.line, reply.wait
        held, first = b"", True
        while True:
            due_at = math.inf if client is None else client.due_at_most(held)
            chunk = begun or await _next_chunk(reply, due_at)
            begun = b""
            if chunk is not None:
                if first and begins_document(prepared.upstream, chunk):
                    return await self._stream_of_whole(call, prepared, answer, line.sink, chunk)
                first = False
                held += line.feed(chunk) if chunk else line.drain()
                watch = line.watch
                if watch.failure is not None and not watch.substance:
                    raise Refused(named(prepared, watch.failure))
                if watch.substance or not chunk:
                    wait.extend(_now(), has_token=True)
                    return replace(reply, held=held, ended=not chunk)
                _go_on_waiting(reply)
            if client is None or not client.is_due(held):
                continue
            if line.watch.started is not None or len(held) > MAX_HELD_BYTES:
                return replace(reply, held=held)
            held = await client.pass_on(prepared, answer.headers, held)

    async def _stream_of_whole(
        self, call: Call, prepared: Prepared, answer: Answer, sink: Sink | None, begun: bytes
    ) -> Streaming:
        """The upstream was asked for a stream and answered whole: its events are told all the same."""
        body = begun + await self._body(call, prepared, answer)
        answer.close()
        ledger = prepared.ledger if prepared.ledger is not None else Ledger()
        events = _events(prepared, body, ledger, is_stream(prepared.upstream, answer.headers, body))
        line = self._build.translation(call, prepared, sink)
        held = line.push(events)
        if line.watch.failure is not None:
            raise Refused(named(prepared, line.watch.failure))
        return Streaming(prepared, answer, line, held, True, self._wait(prepared))

    def _wait(self, prepared: Prepared) -> Wait:
        provider = prepared.provider
        return Wait(provider.name, patience_with(provider, self._server), _now())

    async def _body(self, call: Call, prepared: Prepared, answer: Answer) -> bytes:
        patience, name = patience_with(prepared.provider, self._server), prepared.provider.name
        total_s = patience.first_token_s + patience.token_s
        reading = read_reply(call, answer, patience.idle_s, total_s, name)
        return await _received(prepared, reading, partial(_stopped, name, patience.idle_s, total_s))

    async def _send(self, prepared: Prepared, wait: Wait) -> Answer:
        provider, head_timeout_s = prepared.provider, wait.left(_now())
        try:
            answer = await provider.ask(prepared.out, head_timeout_s)
        except TimedOut as fault:
            if fault.phase == "connect":
                raise Refused(_lost(prepared, fault)) from fault
            raise Refused(wait.failure()) from fault
        except Lost as lost:
            raise Refused(_lost(prepared, lost)) from lost
        if answer.status < 300:
            return answer
        if answer.status < 400:
            answer.close()
            raise Refused(redirected(prepared.provider.name, answer.status, answer.headers))
        try:
            silence_s = min(head_timeout_s, ERROR_BODY_S)
            late = partial(_stopped, provider.name, silence_s, ERROR_BODY_S)
            body = hide(await _received(prepared, read_error(answer, silence_s), late), prepared.secrets)
        finally:
            answer.close()
        now = time.time()
        failure = prepared.upstream.read(answer.status, dict(answer.headers), body)
        failure = named(prepared, resets_by_our_clock(failure, answer.headers, now))
        failure = advised(failure, answer.headers, now, provider.spent_until)
        if (
            prepared.passthrough
            and failure.kind not in (Kind.CREDENTIAL, Kind.FORBIDDEN)
            and _is_error_body(prepared, body)
        ):
            headers = answer.headers if prepared.owner else without_account(answer.headers)
            raise TurnedAway(failure, answer.status, Headers(hide_in_fields(headers, prepared.secrets)), body)
        raise Refused(failure)


def _is_error_body(prepared: Prepared, body: bytes) -> bool:
    """Whether a client's SDK can read this; anything else is told in the protocol's own shape instead."""
    client = prepared.protocol.client
    try:
        msgspec.json.decode(body, type=client.error_shape if client is not None else ErrorShape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def is_speaking(prepared: Prepared, watch: Watch, at_work: bool) -> bool:
    """Whether the model answers, perhaps with hidden thoughts, or a tool call that is withheld until it is whole."""
    return at_work or watch.substance or (prepared.provider.withholds_cut_calls and watch.started is not None)


def _events(prepared: Prepared, body: bytes, ledger: Ledger, streamed: bool) -> list[Event]:
    """What a body tells that was read to its end."""
    if not streamed:
        return prepared.upstream.whole(body, prepared.issuer, ledger)
    source = source_of(prepared, ledger)
    return source.feed(body) + source.finish()


def _glanced(prepared: Prepared, body: bytes) -> list[Event]:
    """What must be known of a body that passes as it came; nothing where we cannot read what the client perhaps can."""
    upstream = prepared.upstream
    try:
        events = (upstream.glance or upstream.whole)(body, prepared.issuer, Ledger())
    except Exception as bug:  # a watcher's bug costs no byte
        log.error("the reply passes unread: %s", place_of(bug))
        return []
    last = events[-1]
    unreadable = isinstance(last, Failed) and last.failure.kind is Kind.CORRUPT and last.failure.code != NO_REPLY
    return [] if unreadable and is_object(body) else events


async def _next_chunk(reply: Streaming, due_at: float) -> bytes | None:
    """The next bytes of a reply without a token, b"" at its end; None where `due_at` has come first."""
    prepared, line, wait = reply.prepared, reply.line, reply.wait
    try:
        return await reply.answer.chunk(min(wait.left(_now()), max(0.001, due_at - _now())))
    except TimedOut as late:
        if _now() < wait.deadline:
            return None
        raise Refused(wait.failure()) from late
    except Lost as lost:
        if not line.is_whole:
            raise Refused(_lost(prepared, lost)) from lost
        return b""


def _go_on_waiting(reply: Streaming) -> None:
    """Bytes without a token are a sign of life, but not for ever; raises Refused."""
    prepared, line, wait, now = reply.prepared, reply.line, reply.wait, _now()
    wait.extend(now, is_speaking(prepared, line.watch, line.at_work))
    if now >= wait.deadline:
        raise Refused(wait.failure())


def _now() -> float:
    return asyncio.get_running_loop().time()


def _stopped(name: str, silence_s: float, total_s: float) -> Failure:
    why = f"Provider {name!r} sent no data for {silence_s:g} s in its answer, or has not ended it after {total_s:g} s."
    return Failure(Kind.TIMEOUT, why)


async def _received(prepared: Prepared, coming: Awaitable[bytes], late: Callable[[], Failure]) -> bytes:
    """What comes from the upstream; Refused where it does not, with `late` if that is all that is wrong."""
    try:
        return await coming
    except TimedOut as fault:
        raise Refused(late()) from fault
    except TooLarge as large:
        raise Refused(_too_much(prepared)) from large
    except Lost as lost:
        raise Refused(_lost(prepared, lost)) from lost


def _too_much(prepared: Prepared) -> Failure:
    return Failure(Kind.UPSTREAM, f"{prepared.provider.name} answered with too much data.")


def _lost(prepared: Prepared, lost: Exception) -> Failure:
    kind = Kind.CORRUPT if isinstance(lost, Corrupt) else Kind.LOST
    # A connection that was only old is no reason to wait; it is an attempt all the same.
    at_once = 0.0 if isinstance(lost, Lost) and lost.stale else None
    return Failure(kind, f"The connection to {prepared.provider.name} failed: {lost}", retry_after=at_once)
