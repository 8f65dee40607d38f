"""The record of one request, kept for the log, metrics, usage and captures, and the queue that passes it to them."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from contextvars import Context
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from dragoman.net.errors import ClientDisconnected, describe_fault
from dragoman.net.errors import RequestRejected as Unreadable
from dragoman.net.headers import Headers, LastingFields
from dragoman.proxy.cache_use import judge_use
from dragoman.proxy.capture.recording import Recording
from dragoman.proxy.outcome import (
    CLIENT_GONE,
    OK,
    UNKNOWN_CACHE_USE,
    UNKNOWN_ORIGIN,
    FailedAttempt,
    Origin,
    Outcome,
    OutcomeObserver,
    ToolRun,
    TurnUsage,
)
from dragoman.proxy.reply_monitor import ReplyMonitor
from dragoman.proxy.source import EventSource
from dragoman.tenancy.limiter import Lease
from dragoman.translate.caching.outlook import CacheOutlook
from dragoman.translate.framing.known_secrets import Secrets
from dragoman.translate.framing.redaction import cut_text
from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.usage import Usage, UsageSource, sum_usages
from dragoman.translate.profiles.token_count import estimate_body_tokens, estimate_written_tokens
from dragoman.upstreams.routing import Route

CLIENT_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
PRINTABLE = re.compile(r"[!-~](?:[ -~]{0,198}[!-~])?")  # what is kept of a client's names
TAG = re.compile(r"[!-~](?:[ -~]{0,62}[!-~])?")
MAX_TAGS = 10
VERSION = re.compile(r"v?\d")
NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._@+-]")
NAME_LENGTH = 40
MAX_NAME_BYTES = 1024  # of what an upstream calls its model
MAX_CODE_BYTES = 256  # of its error codes
KIND_BY_STATUS = {413: Kind.TOO_LARGE, 408: Kind.REQUEST_TIMEOUT, 503: Kind.BUSY}

SHUTDOWN = Kind.SHUTDOWN.value
INTERRUPTIONS = (CLIENT_GONE, SHUTDOWN)
NO_REPLY = ReplyMonitor(time.monotonic)
GATHER_S = 0.02  # between two batches of outcomes
MAX_QUEUED = 64  # records that wait

log = logging.getLogger(__name__)


class Awaited(Enum):
    """What a reply waits for whose last upstream request has ended; the values are what the console shows."""

    TOOLS = "running tools"
    MORE = "waiting"  # the rest of a reply that was paused, broke off, or has a cut call


class ReplyProgress(Protocol):
    """A reply, as far as it has come."""

    @property
    def watch(self) -> ReplyMonitor: ...
    @property
    def usage(self) -> Usage | None: ...  # as the client gets it
    @property
    def used_alone(self) -> Usage | None: ...  # of its own turn, without earlier ones
    def tap(self, wrap: Callable[[EventSource], EventSource]) -> Secrets:
        """Read through another source from now on; return the secrets that may stand in what it reads."""


class RequestRecord:
    """What is noted of one request, from its head to its outcome."""

    __slots__ = (
        *(
            "attempts",
            "awaits",
            "body",
            "client",
            "client_protocol",
            "earlier_turns",
            "failed_attempts",
            "id",
            "is_answered",
            "key",
            "lease",
            "ledger",
            "origin",
            "outlooks",
            "recording",
        ),
        *("requested_model", "rounds", "route", "run", "started_at", "stream", "team", "tenant", "tool_runs"),
        *("upstream_protocol", "user"),
        *("_code", "_ended", "_guessed_input", "_outcome", "_reported_usage", "_reply", "_result", "_sender"),
        *("_sent_to", "_started", "_unanswered", "_watch"),
    )

    def __init__(
        self,
        id: str,
        client_protocol: str,
        headers: Headers,
        key: str = "",
        tenant: str = "",
        received_at: float = 0.0,  # 0: now
    ) -> None:
        self.id = id
        self.client_protocol = client_protocol
        self.key = key
        self.tenant = tenant
        sender = read_sender(headers) if headers.lasting is None else _read_lasting_sender(headers.lasting)
        self.client, self.origin, self._sender = sender.client, sender.origin, sender
        self.requested_model = ""
        self.stream = False
        self.body = b""  # the request's, until its end
        self.route: Route | None = None
        self.upstream_protocol = ""
        self.ledger: Ledger | None = None  # None: passed through
        self.failed_attempts: tuple[FailedAttempt, ...] = ()
        self.attempts = 0  # upstream requests that were sent
        self.is_answered = False  # the last of them was answered
        self.rounds = 1  # of this reply: more after server tools or pauses, none if it is queued
        self.tool_runs: tuple[ToolRun, ...] = ()
        self.awaits: Awaited | None = None  # None: how the last upstream request ends is how the reply ends
        self.run = ""  # the resumable reply that the client gets; empty: it is not resumable
        self.outlooks: tuple[CacheOutlook | None, ...] = ()  # on the prompt cache: the first round's and the last one's
        self.recording: Recording | None = None  # None: nothing is captured
        self.lease: Lease | None = None  # None: no limit applies
        self.user = self.team = ""
        self._outcome: Outcome | None = None  # once it has been charged
        self._sent_to: Route | None = None  # the target of a request that was sent and has not been answered
        self._unanswered: tuple[Route, ...] = ()  # targets that were paid for nothing, as far as one can know
        self.earlier_turns: tuple[TurnUsage, ...] = ()  # before the upstream request that was answered last
        self._reply: ReplyProgress | None = None
        self._watch: ReplyMonitor | None = None
        self._reported_usage: Usage | None = None
        self._guessed_input = 0  # tokens
        self._ended = 0.0
        self._result = OK
        self._code: str | None = None
        self.started_at = received_at or time.time()  # seconds since the epoch
        self._started = time.monotonic()

    def record_failure(self, route: Route, refused: RequestError) -> None:
        failure, self._sent_to = refused.failure, None
        self._add_failure(route, failure.kind.value)
        if failure.kind is Kind.TIMEOUT and failure.status is None:  # it was sent, and may be paid for
            self._unanswered += (route,)

    def record_sent(self, route: Route) -> None:
        """Note that a request is sent to this target."""
        self.attempts += 1
        self._sent_to = route

    def record_session(self, name: str) -> None:
        """Note the session of a request, unless something has named it before."""
        if name and not self.origin.session:
            is_unknown = self.origin is UNKNOWN_ORIGIN
            self.origin = Origin(session=name) if is_unknown else replace(self.origin, session=name)

    def record_prompt(self, outlook: CacheOutlook | None) -> None:
        """Note what the upstream's prompt cache can have of a round that has begun; None: nothing is known of it."""
        self.outlooks = (self.outlooks[0], outlook) if self.outlooks else (outlook,)

    def record_tool_run(self, run: ToolRun) -> None:
        self.tool_runs += (run,)

    def record_client_gone(self, route: Route) -> None:
        """Note that the client disconnected before this target answered."""
        self._add_failure(route, CLIENT_GONE)

    def _add_failure(self, route: Route, why: str) -> None:
        self.failed_attempts += (FailedAttempt(str(route), why),)
        self.is_answered = False

    def record_reply(self, route: Route, upstream_protocol: str, ledger: Ledger | None, reply: ReplyProgress) -> None:
        """Note the first token, from this target."""
        if self._reply is not None and self.route is not None and self.awaits is not None:  # this one goes on with it
            self._add_turn(self.route, self._reply)
        self._sent_to = None
        self.route, self.upstream_protocol, self.ledger, self._reply = route, upstream_protocol, ledger, reply
        self.is_answered, self.awaits = True, None

    def record_joined(self, run: str, model: str) -> None:
        """Note that the client gets the reply of an earlier request, which alone has used tokens."""
        self.run, self.requested_model, self._reported_usage = run, model, Usage()

    def record_fault(self, fault: BaseException) -> None:
        """Note the failure that ends the request."""
        match fault:
            case RequestError(failure=failure):
                self._result, self._code = failure.kind.value, failure.code
            case asyncio.CancelledError() | ClientDisconnected():
                self._result = CLIENT_GONE
            case Unreadable(status=status):
                self._result = KIND_BY_STATUS.get(status, Kind.BAD_REQUEST).value
            case _:
                self._result = Kind.BUG.value

    def record_shutdown(self) -> None:
        """Note that the gateway stopped before the reply was complete."""
        self._result = SHUTDOWN
        if self.failed_attempts and self.failed_attempts[-1].why == CLIENT_GONE:
            *before, last = self.failed_attempts
            self.failed_attempts = (*before, FailedAttempt(last.route, SHUTDOWN))

    def end(self) -> None:
        """Note the time of the end, and release the reply: its bytes must not wait for observers.

        A request under limits pays for the input of what was sent and never answered, estimated from its size.
        """
        if self._ended:
            return
        self._ended = time.monotonic()
        reply, self._reply = self._reply, None
        body, self.body = self.body, b""
        if self.ledger is not None:
            self.ledger.close()
        if self._sent_to is not None:
            self._unanswered += (self._sent_to,)
        if reply is not None:
            if self.earlier_turns and self.route is not None:
                self._add_turn(self.route, reply)
            self._watch, self._reported_usage = reply.watch, reply.usage
            if self._reported_usage is None and self._watch.final_usage is None:
                self._guessed_input = estimate_body_tokens(body, self._model)
        if self._unanswered and not self._guessed_input and self.lease is not None:
            self._guessed_input = estimate_body_tokens(body, self._unanswered[0].model)

    def _add_turn(self, route: Route, reply: ReplyProgress) -> None:
        self.earlier_turns += (TurnUsage(route.provider, route.model, reply.used_alone or Usage()),)

    def keep_outcome(self, outcome: Outcome) -> None:
        """Note the outcome of an ended request, with what it was charged: it stays so."""
        self._outcome = outcome

    @property
    def reply(self) -> ReplyProgress | None:
        """The reply to which the last upstream has begun; None before its first token, and after the end."""
        return self._reply

    @property
    def monitor(self) -> ReplyMonitor | None:
        """The monitor of the reply; None before its first token."""
        return self._watch if self._reply is None else self._reply.watch

    @property
    def has_ended(self) -> bool:
        return self._ended > 0

    def outcome(self) -> Outcome:
        """Return the outcome; before the end, what it would be if the request ended now."""
        if self._outcome is not None:
            return self._outcome
        seen = (self._watch if self._reply is None else self._reply.watch) or NO_REPLY
        result, code = self._result, self._code
        has_ended = self.awaits is None  # with its last upstream request
        if has_ended and seen.failure is not None:
            result, code = seen.failure.kind.value, seen.failure.code
        elif has_ended and result in INTERRUPTIONS and seen.stop is not None:
            result = OK  # the reply was complete by then
        route, ledger, lease = self.route, self.ledger, self.lease
        model = "" if seen.started is None else seen.started.model
        usage = self._reported_usage or self._determine_usage(seen)
        turns = self.earlier_turns
        if lease is not None and self._unanswered and self._ended:
            turns = self._add_unanswered(usage)
            usage = sum_usages(turn.usage for turn in turns)
        # By position: a call with more than 15 keywords makes dictionaries of them, and takes four times as long.
        outcome = Outcome(
            self.id, self.started_at,
            self.client_protocol, self.key, self.client, self.upstream_protocol, self.requested_model,
            "" if route is None else route.provider,
            "" if route is None else route.model,
            model if len(model) * 4 <= MAX_NAME_BYTES else cut_text(model, MAX_NAME_BYTES),
            self.stream,
            route is not None and ledger is None,  # passed through
            usage,
            None if seen.first_token is None else seen.first_token - self._started,
            (self._ended or time.monotonic()) - self._started,
            result,
            None if code is None else cut_text(code, MAX_CODE_BYTES),
            len(ledger) if ledger else 0,
            ledger.count_by_kind() if ledger else (),
            seen.deltas,
            self.failed_attempts, self.rounds, self.attempts, self.is_answered, self.tool_runs, self.origin,
            judge_use(self.outlooks, usage) if self.outlooks else UNKNOWN_CACHE_USE,
        )  # fmt: skip
        # What is nearly always as by default is set only where it differs.
        if seen.read_chunks:
            outcome.upstream_bytes, outcome.upstream_chunks = seen.read_bytes, seen.read_chunks
        if turns:
            outcome.turns = turns
        if self.run:
            outcome.run = self.run
        if self.user or self.team:
            outcome.user, outcome.team = self.user, self.team
        if self._sender.has_more:
            outcome.traceparent, outcome.tags = self._sender.traceparent, self._sender.tags
            outcome.client_request_id = self._sender.client_request_id
        if lease is not None:
            outcome.lease = lease.id
        return outcome

    def _add_unanswered(self, usage: Usage | None) -> tuple[TurnUsage, ...]:
        """Return the turns with those that were sent and not answered, for which the input is charged."""
        turns = list(self.earlier_turns)
        if not turns and usage is not None and self.route is not None:
            turns.append(TurnUsage(self.route.provider, self.route.model, usage))
        for route in self._unanswered:
            read = Usage(input=self._guessed_input, source=UsageSource.ESTIMATED)
            turns.append(TurnUsage(route.provider, route.model, read))
        return tuple(turns)

    def _determine_usage(self, seen: ReplyMonitor) -> Usage | None:
        """Return the usage; for a reply that broke off, the upstream may have reported only part of the output."""
        if seen.usage_is_final and seen.usage is not None:
            return seen.usage
        reported, guess = seen.usage, self._estimate_usage(seen)
        if reported is None or guess is None:
            return reported or guess
        return replace(reported, output=max(reported.output, guess.output), source=UsageSource.ESTIMATED)

    def _estimate_usage(self, seen: ReplyMonitor) -> Usage | None:
        """Estimate the usage from sizes if the upstream reported none."""
        if not seen.deltas and not seen.blocks:
            return None
        output = estimate_written_tokens(seen.text_bytes, self._model)
        return Usage(input=self._guessed_input, output=output, source=UsageSource.ESTIMATED)

    @property
    def written_tokens(self) -> int:
        """How many tokens the reply has so far, estimated from its size."""
        watch = self.monitor
        return 0 if watch is None else estimate_written_tokens(watch.text_bytes, self._model)

    @property
    def _model(self) -> str:
        """The upstream's name of the model; empty before an upstream has answered."""
        return "" if self.route is None else self.route.model


class Sender(Struct, frozen=True):
    """What the headers of a request say about who sends it, and why."""

    client: str
    client_request_id: str
    origin: Origin
    traceparent: str
    tags: str
    has_more: bool  # than the client and the origin


def read_sender(headers: Headers) -> Sender:
    id, tags = find_client_request_id(headers), find_tags(headers)
    traceparent = (headers.get(b"traceparent") or b"").decode("latin-1")
    client = client_name(headers.get(b"user-agent") or b"")
    return Sender(client, id, find_origin(headers), traceparent, tags, bool(id or tags or traceparent))


@lru_cache(maxsize=256)
def _read_lasting_sender(lasting: LastingFields) -> Sender:
    """Do the same for fields that a client sends again and again."""
    return read_sender(Headers(list(lasting.fields)))


def find_client_request_id(headers: Headers) -> str:
    """Return the id that the client has given to its request; empty if there is none, or it is long or malformed.

    It is only shown and sent back: clients may use one id for several requests.
    """
    given = headers.get(b"x-request-id")
    return given.decode() if given is not None and CLIENT_REQUEST_ID.fullmatch(given) else ""


def find_origin(headers: Headers) -> Origin:
    """Return what the headers of Claude Code and Codex say about the session and the agent of a request."""
    session = find_session_header(headers)
    agent = headers.get(b"x-claude-code-agent-id")
    if session is None and agent is None:
        return UNKNOWN_ORIGIN
    names = (session, agent, headers.get(b"x-claude-code-parent-agent-id"))
    session_name, agent_name, parent_name = [keep_name((name or b"").decode("latin-1")) for name in names]
    return Origin(session=session_name, agent=agent_name, parent_agent=parent_name)


def find_session_header(headers: Headers) -> bytes | None:
    return headers.get(b"x-claude-code-session-id") or headers.get(b"session-id")


def find_tags(headers: Headers) -> str:
    """Return the tags of a request: the first ones that are short and printable, as `job=7,branch=main`."""
    given = headers.get(b"x-dragoman-tags")
    if given is None:
        return ""
    tags = (tag.strip() for tag in given.decode("latin-1").split(","))
    return ",".join(islice(dict.fromkeys(filter(TAG.fullmatch, tags)), MAX_TAGS))


def keep_name(name: str) -> str:
    """Return a name that a client has chosen; empty if it is long or not printable."""
    return name if PRINTABLE.fullmatch(name) else ""


@lru_cache(maxsize=256)
def client_name(user_agent: bytes) -> str:
    """Return the product without versions and platforms: `claude-cli`, `OpenAI/Python`, `ai-sdk/openai`."""
    product = user_agent.decode("latin-1").partition(" ")[0].split("/")
    parts: list[str] = []
    for part in product[:3]:
        if parts and VERSION.match(part):
            break
        parts.append(NOT_IN_A_NAME.sub("", part))
    return "/".join(filter(None, parts))[:NAME_LENGTH]


NoteEnd = Callable[[RequestRecord, Outcome], None]  # called for requests that were queued, too


class ObserverQueue:
    """Passes outcomes of ended requests to the observers: after the current turn of the event loop, then in batches.

    A batch costs half as much as the same outcomes one by one between requests.
    """

    def __init__(self, observers: Sequence[OutcomeObserver]) -> None:
        self._observers = tuple(observers)
        self.on_end: NoteEnd | None = None  # called first
        self._ended: list[RequestRecord] = []
        self._passed_at = 0.0  # by the loop's clock
        self.failures = 0

    def add(self, record: RequestRecord) -> None:
        record.end()
        self._ended.append(record)
        if len(self._ended) >= MAX_QUEUED:
            self.flush()
        elif len(self._ended) == 1:
            self._schedule()

    def flush(self) -> None:
        """Pass on all outcomes so far; a failing observer does not affect the others."""
        ended, self._ended = self._ended, []
        outcomes = [record.outcome() for record in ended]
        if self.on_end is not None:
            for record, outcome in zip(ended, outcomes, strict=True):
                self.on_end(record, outcome)
        observed = [outcome for outcome in outcomes if outcome.rounds]  # of a queued request, its run is observed
        for observe in self._observers:
            for outcome in observed:
                try:
                    observe(outcome)
                except Exception as bug:
                    self.failures += 1
                    log.error("%s was not passed to an observer: %s", outcome.request_id, describe_fault(bug))

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        wait = 0.0 if now - self._passed_at >= GATHER_S else GATHER_S
        self._passed_at = now + wait
        # In a context of its own: the batch does not belong to the request that ended first.
        if wait:
            loop.call_later(wait, self.flush, context=Context())
        else:
            loop.call_soon(self.flush, context=Context())
