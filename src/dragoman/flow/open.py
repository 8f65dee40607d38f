"""A prepared request goes upstream; what comes back is held until its first token, so that failures are real errors."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct

from dragoman.config.settings import Server
from dragoman.flow.advice import advised
from dragoman.flow.attempt import TurnedAway
from dragoman.flow.blame import named
from dragoman.flow.call import Call
from dragoman.flow.discretion import redact_events
from dragoman.flow.line import Line
from dragoman.flow.machines import LineBuilder, source_of
from dragoman.flow.mend import Mender
from dragoman.flow.prepare import Prepared
from dragoman.flow.shape import begins_document, begins_events, is_named_stream, is_stream
from dragoman.flow.sink import Sink
from dragoman.framing.jsonread import is_object
from dragoman.framing.known_secrets import hide, hide_in_fields
from dragoman.hub.events import Event, Failed, Used
from dragoman.hub.failure import NO_REPLY, Failure, Kind, Refused
from dragoman.hub.limits import ReplySize
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
        watch = self._build.watch()
        ledger = prepared.ledger if prepared.ledger is not None else Ledger()
        answer, events, body = await self._read(prepared, watch, ledger)
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

    async def _read(self, prepared: Prepared, watch: Watch, ledger: Ledger) -> tuple[Answer, list[Event] | None, bytes]:
        """An answer to its end: what it told, where it is the stream that was asked for, else its body."""
        head_s = self._server.first_token_timeout_s if prepared.streams else self._server.idle_timeout_s
        deadline = asyncio.get_running_loop().time() + head_s
        answer = await self._send(prepared, head_s)
        events: list[Event] | None = None
        begun = b""
        try:
            if prepared.streams and is_named_stream(answer.headers):
                events, begun = await self._listened(prepared, answer, watch, ledger, deadline)
            if events is None:
                begun += await _body(prepared, answer, MAX_REPLY_BYTES, self._server.idle_timeout_s)
        finally:
            answer.close()
        return answer, events, begun

    async def _listened(
        self, prepared: Prepared, answer: Answer, watch: Watch, ledger: Ledger, deadline: float
    ) -> tuple[list[Event] | None, bytes]:
        """What a stream tells until it is over or fails; None, and how it begins, where it is a document after all.

        Its first token must come as soon as anyone's.
        """
        clock = asyncio.get_running_loop().time
        source = source_of(prepared, ledger)
        events: list[Event] = []
        begun, size, speaking, chunk = b"", 0, False, b" "
        while chunk and watch.failure is None:
            speaking = speaking or is_speaking(prepared, watch, source.at_work)
            late = _fell_silent if speaking else _first_token_late
            wait_s = self._server.idle_timeout_s if speaking else max(0.001, deadline - clock())
            chunk = await _received(prepared, answer.chunk(wait_s), late)
            size += len(chunk)
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

    async def stream(self, call: Call, prepared: Prepared, sink: Sink | None = None) -> Streaming:
        """`sink`: of a reply that has broken off, and that this one goes on with."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._server.first_token_timeout_s
        answer = await self._send(prepared, self._server.first_token_timeout_s)
        try:
            begun = b""
            if not is_named_stream(answer.headers):
                begun = await _received(prepared, answer.chunk(self._server.idle_timeout_s), _fell_silent)
                if not begins_events(prepared.upstream, begun):
                    return await self._stream_of_whole(call, prepared, answer, sink, begun)
            line = self._build.line(call, prepared, sink)
            return await self._until_first_token(call, prepared, answer, line, deadline, begun)
        except BaseException:
            answer.close()
            raise

    async def _until_first_token(
        self, call: Call, prepared: Prepared, answer: Answer, line: Line, deadline: float, begun: bytes
    ) -> Streaming:
        clock = asyncio.get_running_loop().time
        commit_at = min(deadline, clock() + self._server.keep_alive_s)
        held = b""
        ended, first = False, True
        while not ended:
            try:
                chunk = begun or await answer.chunk(max(0.001, commit_at - clock()))
                begun = b""
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
        self, call: Call, prepared: Prepared, answer: Answer, sink: Sink | None, begun: bytes
    ) -> Streaming:
        """The upstream was asked for a stream and answered whole: its events are told all the same."""
        body = begun + await _body(prepared, answer, MAX_REPLY_BYTES, self._server.idle_timeout_s)
        answer.close()
        ledger = prepared.ledger if prepared.ledger is not None else Ledger()
        events = _events(prepared, body, ledger, is_stream(prepared.upstream, answer.headers, body))
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
            body = hide(await _body(prepared, answer, MAX_ERROR_BYTES, head_timeout_s), prepared.secrets)
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
        return ReplySize().admit(prepared.upstream.whole(body, prepared.issuer, ledger))
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


async def _body(prepared: Prepared, answer: Answer, limit: int, timeout_s: float) -> bytes:
    return await _received(prepared, answer.read(limit, timeout_s), _fell_silent)


async def _received(prepared: Prepared, coming: Awaitable[bytes], late: Callable[[Prepared], Failure]) -> bytes:
    """What comes from the upstream; Refused where it does not, with `late` if that is all that is wrong."""
    try:
        return await coming
    except TimedOut as fault:
        raise Refused(late(prepared)) from fault
    except TooLarge as large:
        raise Refused(_too_much(prepared)) from large
    except Lost as lost:
        raise Refused(_lost(prepared, lost)) from lost


def _fell_silent(prepared: Prepared) -> Failure:
    return Failure(Kind.TIMEOUT, f"{prepared.provider.name} fell silent in the middle of its answer.")


def _too_much(prepared: Prepared) -> Failure:
    return Failure(Kind.UPSTREAM, f"{prepared.provider.name} answered with too much data.")


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
