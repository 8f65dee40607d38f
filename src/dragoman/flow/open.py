"""A prepared request goes upstream; what comes back is held until its first token, so that failures are real errors."""

import asyncio
import time

import msgspec
from msgspec import Struct

from dragoman.config.settings import Server
from dragoman.flow.advice import advised
from dragoman.flow.attempt import TurnedAway
from dragoman.flow.blame import named
from dragoman.flow.call import Call
from dragoman.flow.discretion import hide, hide_in_fields
from dragoman.flow.line import Line
from dragoman.flow.machines import LineBuilder, source_of
from dragoman.flow.mend import Mender
from dragoman.flow.prepare import Prepared
from dragoman.flow.shape import begins_document, is_named_stream, is_stream
from dragoman.flow.sink import Sink
from dragoman.hub.events import Event, Used
from dragoman.hub.failure import Failure, Kind, Refused
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import ErrorShape
from dragoman.hub.usage import Usage
from dragoman.net.client import Lost, TimedOut, TooLarge
from dragoman.net.faults import Corrupt
from dragoman.net.headers import Headers
from dragoman.observers.watch import Watch
from dragoman.providers.provider import Answer
from dragoman.stages.hold_cut import HoldCut

MAX_REPLY_BYTES = 256 * 1024 * 1024
MAX_ERROR_BYTES = 1024 * 1024


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
    deadline: float  # for the next byte

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
        idle_s = self._server.idle_timeout_s
        if prepared.streams:
            answer, begun = await self._begun(prepared)
        else:
            answer, begun = await self._send(prepared, idle_s), b""
        try:
            body = begun + await _read(prepared, answer, MAX_REPLY_BYTES, idle_s)
        finally:
            answer.close()
        watch = self._build.watch()
        ledger = prepared.ledger if prepared.ledger is not None else Ledger()
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
            events = self._build.staged(await self._mended(call, prepared, events, watch), prepared)
            body = call.client.whole(events, self._build.asked(call), ledger)
        usage = next((event.usage for event in reversed(events) if isinstance(event, Used)), None)
        return Whole(prepared, answer.headers, body, watch, as_is, usage)

    async def _begun(self, prepared: Prepared) -> tuple[Answer, bytes]:
        """A stream that is to be told as a whole, read to its first token, which must come as soon as anyone's."""
        deadline = asyncio.get_running_loop().time() + self._server.first_token_timeout_s
        answer = await self._send(prepared, self._server.first_token_timeout_s)
        try:
            return answer, await self._first_words(prepared, answer, deadline)
        except BaseException as fault:
            answer.close()
            if isinstance(fault, TimedOut):
                raise Refused(_first_token_late(prepared)) from fault
            if isinstance(fault, Lost):
                raise Refused(_lost(prepared, fault)) from fault
            raise

    async def _first_words(self, prepared: Prepared, answer: Answer, deadline: float) -> bytes:
        clock = asyncio.get_running_loop().time
        source = source_of(prepared, Ledger())
        watch = self._build.watch()
        begun = b""
        while is_named_stream(answer.headers) and not (is_speaking(prepared, watch, source.at_work) or watch.ended):
            chunk = await answer.chunk(max(0.001, deadline - clock()))
            begun += chunk
            if not chunk or begins_document(prepared.upstream, begun):
                break
            for event in source.feed(chunk):
                watch.see(event)
        return begun

    async def _mended(self, call: Call, prepared: Prepared, events: list[Event], watch: Watch) -> list[Event]:
        if not prepared.provider.withholds_cut_calls:
            return events
        hold = HoldCut()
        told = [out for event in events for out in hold.feed(event)]
        if hold.held is None:
            return events
        return told + await self._mender.events(call.request(), prepared, hold, watch.usage)

    async def stream(self, call: Call, prepared: Prepared, sink: Sink | None = None) -> Streaming:
        """`sink`: of a reply that has broken off, and that this one goes on with."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._server.first_token_timeout_s
        answer = await self._send(prepared, self._server.first_token_timeout_s)
        try:
            if not is_named_stream(answer.headers):
                return await self._stream_of_whole(call, prepared, answer, sink)
            line = self._build.line(call, prepared, sink)
            return await self._until_first_token(call, prepared, answer, line, deadline)
        except BaseException:
            answer.close()
            raise

    async def _until_first_token(
        self, call: Call, prepared: Prepared, answer: Answer, line: Line, deadline: float
    ) -> Streaming:
        clock = asyncio.get_running_loop().time
        commit_at = min(deadline, clock() + self._server.keep_alive_s)
        held = b""
        ended, first = False, True
        while not ended:
            try:
                chunk = await answer.chunk(max(0.001, commit_at - clock()))
            except TimedOut as late:
                if commit_at < deadline:
                    break  # slow, but not too slow: from here on the client is kept alive
                raise Refused(_first_token_late(prepared)) from late
            except Lost as lost:
                if not line.is_whole:
                    raise Refused(_lost(prepared, lost)) from lost
                chunk = b""
            if first and begins_document(prepared.upstream, chunk):
                return await self._stream_of_whole(call, prepared, answer, line.sink, chunk)
            first = False
            held += line.feed(chunk) if chunk else line.drain()
            ended = not chunk
            if line.watch.failure is not None and not line.watch.substance:
                raise Refused(named(prepared, line.watch.failure))
            if line.watch.substance:
                deadline = clock() + self._server.idle_timeout_s
                break
            if is_speaking(prepared, line.watch, line.at_work):
                deadline = clock() + self._server.idle_timeout_s
            if clock() >= commit_at:  # bytes without end, and none of them a token
                break
        return Streaming(prepared, answer, line, held, ended, deadline)

    async def _stream_of_whole(
        self, call: Call, prepared: Prepared, answer: Answer, sink: Sink | None, begun: bytes = b""
    ) -> Streaming:
        """The upstream was asked for a stream and answered whole: its events are told all the same."""
        body = begun + await _read(prepared, answer, MAX_REPLY_BYTES, self._server.idle_timeout_s)
        answer.close()
        ledger = prepared.ledger if prepared.ledger is not None else Ledger()
        events = _events(prepared, body, ledger, not begun and is_stream(prepared.upstream, answer.headers, body))
        line = self._build.translation(call, prepared, sink)
        held = line.push(events)
        if line.watch.failure is not None:
            raise Refused(named(prepared, line.watch.failure))
        return Streaming(prepared, answer, line, held, True, 0.0)

    async def _send(self, prepared: Prepared, head_timeout_s: float) -> Answer:
        provider = prepared.provider
        try:
            answer = await provider.ask(prepared.out, head_timeout_s)
        except TimedOut as late:
            if late.phase == "connect":
                raise Refused(_lost(prepared, late)) from late
            raise Refused(_first_token_late(prepared)) from late
        except Lost as lost:
            raise Refused(_lost(prepared, lost)) from lost
        if answer.status < 400:
            return answer
        try:
            body = hide(await _read(prepared, answer, MAX_ERROR_BYTES, head_timeout_s), prepared.secrets)
        finally:
            answer.close()
        failure = named(prepared, prepared.upstream.read(answer.status, dict(answer.headers), body))
        failure = advised(failure, answer.headers, time.time(), provider.spent_until)
        if (
            prepared.passthrough
            and failure.kind not in (Kind.CREDENTIAL, Kind.FORBIDDEN)
            and _is_error_body(prepared, body)
        ):
            raise TurnedAway(failure, answer.status, Headers(hide_in_fields(answer.headers, prepared.secrets)), body)
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
    """What must be known of a body that passes as it came."""
    upstream = prepared.upstream
    return (upstream.glance or upstream.whole)(body, prepared.issuer, Ledger())


async def _read(prepared: Prepared, answer: Answer, limit: int, timeout_s: float) -> bytes:
    try:
        return await answer.read(limit, timeout_s)
    except TimedOut as late:
        message = f"{prepared.provider.name} fell silent in the middle of its answer."
        raise Refused(Failure(Kind.TIMEOUT, message)) from late
    except TooLarge as large:
        raise Refused(Failure(Kind.UPSTREAM, f"{prepared.provider.name} answered with too much data.")) from large
    except Lost as lost:
        raise Refused(_lost(prepared, lost)) from lost


def _lost(prepared: Prepared, lost: Exception) -> Failure:
    kind = Kind.CORRUPT if isinstance(lost, Corrupt) else Kind.LOST
    # A connection that was only old is no reason to wait; it is an attempt all the same.
    at_once = 0.0 if isinstance(lost, Lost) and lost.stale else None
    return Failure(kind, f"The connection to {prepared.provider.name} failed: {lost}", retry_after=at_once)


def _first_token_late(prepared: Prepared) -> Failure:
    return Failure(
        Kind.TIMEOUT,
        f"{prepared.provider.name} gave no token in time; server.first_token_timeout_s sets how long to wait.",
    )
