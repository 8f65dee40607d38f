"""Decide what follows each upstream turn: retry, another credential or target, a continuation, or the end.

No I/O: a `Policy` gets how a turn ended and returns the next step. It learns from refusals.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.settings import Retry
from dragoman.net.headers import Headers
from dragoman.proxy.between_turns import Then
from dragoman.proxy.complete_reply import CompleteCall, CutCalls, DropCutCalls
from dragoman.proxy.continue_elsewhere import Continuation
from dragoman.proxy.credential_rotation import CredentialRound
from dragoman.proxy.prepared import Change
from dragoman.proxy.rounds import ContinuePause, Paused, Rounds, RunTools, ToolsCalled
from dragoman.proxy.step import (
    Ask,
    Completed,
    ErrorReply,
    Finish,
    GiveUp,
    Interrupted,
    NoReply,
    Step,
    TurnEnd,
    Wait,
)
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.upstreams.learned_quirks import LearnedQuirks
from dragoman.upstreams.provider import Adjustment, Provider
from dragoman.upstreams.rejections.rules import Found
from dragoman.upstreams.routing import Route


class After(Struct, frozen=True):
    """What may follow a failure, tried in this order."""

    next_credential: bool = False  # of the same provider, at once
    retry: bool = False  # the same target, after a wait
    next_target: bool = False


GATEWAY_TIMEOUT = 504

AFTER: dict[Kind, After] = {
    Kind.LOST: After(retry=True, next_target=True),
    # What we stopped waiting for may be billed, so only Kiro gets it again; HTTP 504 is an answer, and is retried.
    Kind.TIMEOUT: After(next_target=True),
    Kind.RATE_LIMITED: After(next_credential=True, retry=True, next_target=True),
    Kind.LIMITED: After(next_target=True),  # by a limit of its provider
    Kind.SPENT: After(next_target=True),
    Kind.OVERLOADED: After(retry=True, next_target=True),
    Kind.UPSTREAM: After(retry=True, next_target=True),
    Kind.TRUNCATED: After(retry=True, next_target=True),  # before the first token: an empty reply
    Kind.CORRUPT: After(retry=True, next_target=True),
    Kind.CREDENTIAL: After(next_credential=True, next_target=True),
    Kind.FORBIDDEN: After(next_credential=True, next_target=True),
    Kind.QUOTA: After(next_credential=True, next_target=True),
    Kind.NOT_FOUND: After(next_credential=True, next_target=True),  # accounts differ in the models that they have
    Kind.BAD_REQUEST: After(),
    Kind.TOO_LARGE: After(),
    Kind.REQUEST_TIMEOUT: After(),
    Kind.AUTH: After(),
    Kind.CONFLICT: After(),
    Kind.CONTEXT_TOO_LONG: After(),
    Kind.REFUSED: After(),
    Kind.BUSY: After(),
    Kind.SHUTDOWN: After(),
    Kind.BUG: After(),
}

# Failures that may be over by the time of a retry.
PASSING = frozenset(kind for kind, after in AFTER.items() if after.retry or kind in (Kind.TIMEOUT, Kind.LIMITED))
ADVICE = b"x-should-retry"


class RetryLimits(Struct, frozen=True):
    """What one call may try."""

    retry: Retry
    continues: bool  # whether another upstream may continue a reply that breaks off
    jitter: Callable[[], float]  # a factor for waits, so that clients do not retry all at once


class Policy:
    """Decides for one client call. `sessions` names its conversation, by provider with several credentials."""

    def __init__(
        self,
        routes: tuple[Route, ...],
        providers: Mapping[str, Provider],
        limits: RetryLimits,
        second_chances: "SecondChances",
        sessions: Mapping[str, str | None],
    ) -> None:
        self._routes = routes
        self._providers = providers
        self._limits = limits
        self.chances = second_chances
        self._sessions = sessions
        self._queue = list(routes)  # the targets that are left, the current one first
        self._failed: list[NoReply] = []  # how earlier targets have failed
        self._tries = 0  # of the current target
        self._number = 0  # of upstream requests
        self._round: CredentialRound | None = None  # None: there is nothing to choose and nothing to note
        self._member: Provider | None = None  # the current one, with its credential
        self._broken: dict[str, set[int]] = {}  # provider -> its credentials that have broken off this reply
        self._continuation: Continuation | None = None
        self._rounds: Rounds | None = None  # where the gateway runs tools for this reply

    def begin(self) -> Step:
        """Return the first step towards the target that is first in the queue."""
        self._tries = 1
        self._round = None
        return self._start_attempt()

    def after(self, end: TurnEnd) -> Step:
        match end:
            case Completed(failure=failure):
                if failure is not None:
                    self._learn_from_end(failure)
                return Finish()
            case NoReply():
                return self._after_no_reply(end)
            case Interrupted():
                return self._after_interruption(end)
            case CutCalls(prepared=prepared, calls=calls):
                completes = prepared.provider.replies.completes_cut_calls and len(calls) == 1
                return CompleteCall(end) if completes else DropCutCalls(end)
            case ToolsCalled():
                self._rounds = self._rounds or Rounds()
                return RunTools(end, self._rounds)
            case Paused():
                self._rounds = self._rounds or Rounds()
                return ContinuePause(end, self._rounds)

    def after_step(self, then: Then) -> Step:
        """Return what follows a step between two turns."""
        match then:
            case Then.FINISH:
                return Finish()
            case Then.NEXT_ROUND:
                assert self._member is not None
                self._tries = 1  # each round is a request of its own
                return self._ask(self._member)
            case Then.TRY_AGAIN:
                return self._start_attempt()

    @property
    def watches_credentials(self) -> bool:
        """Whether it matters which credential is used now; else `record_first_token` has nothing to note."""
        return self._round is not None

    def record_first_token(self, headers: Headers, response: str | None) -> None:
        """Note that the credential which is used now is accepted; `response` names a reply that its upstream keeps."""
        if self._round is not None:
            self._round.record_answer(headers, response)

    def record_repaired(self) -> None:
        """Learn what the current target has accepted after a refusal."""
        self.chances.learn(self._queue[0])

    def release(self) -> None:
        """Note that the call is over, perhaps because its client disconnected."""
        if self._round is not None:
            self._round.release()

    def _learn_from_end(self, failure: Failure) -> None:
        """Note what the failure of a reply that had begun says of the credential: its allowance may be used up."""
        if self._round is not None:
            self._round.learn(self._round.member.replies.interpret_failure(failure))

    def _start_attempt(self) -> Step:
        route = self._queue[0]
        provider = self._providers.get(route.provider)
        if provider is None:
            message = f"There is no provider {route.provider!r}."
            return self._after_target_failed(NoReply(Failure(Kind.NOT_FOUND, message, code="model_not_found")))
        spares = len(self._routes) > 1
        if provider.account.pool is None and (provider.account.cooldowns is None or not spares):
            return self._ask(provider)
        if self._round is None:
            session = self._sessions.get(route.provider)
            excluded = self._broken.get(route.provider, ())
            self._round = CredentialRound(provider, route.model, session, excluded, spares=spares)
        member = self._round.begin_attempt()
        return self._after_target_failed(self._round.describe_exhaustion()) if member is None else self._ask(member)

    def _ask(self, member: Provider, renew_after: Failure | None = None, *, drops_reasoning: bool = False) -> Ask:
        self._member = member
        self._number += 1
        changes = self.chances.changes
        if self._continuation is not None:
            changes = (*changes, self._continuation.change)
        route = self._queue[0]
        repairs = self.chances.repairs.get(route, ())
        return Ask(
            route,
            member,
            self._number,
            changes,
            self._continuation,
            self._rounds,
            renew_after,
            repairs,
            drops_reasoning,
        )

    def _after_no_reply(self, end: NoReply) -> Step:
        member = self._member
        assert member is not None
        match self.chances.take(member, self._queue[0], end):
            case SecondChance.RENEWED_CREDENTIAL:
                return self._ask(member, renew_after=end.failure)
            case SecondChance.CHANGED_REQUEST:
                return self._ask(member)
            case SecondChance.WITHOUT_REASONING:
                return self._ask(member, drops_reasoning=True)
            case None:
                pass
        if self._round is None:
            return self._after_target_failed(end)
        self._round.record_refusal(end)
        if not AFTER[end.failure.kind].next_credential:
            return self._after_target_failed(end)
        another = self._round.next()
        return self._after_target_failed(self._round.choose_failure(end)) if another is None else self._ask(another)

    def _after_target_failed(self, end: NoReply) -> Step:
        wait_s = None if end.is_rejection else self._retry_wait_s(end.failure)
        if wait_s is not None and self._tries < self._limits.retry.attempts:
            self._tries += 1
            return Wait(wait_s)
        # Another target would have to be sent the rounds so far, which it may not be able to read.
        if AFTER[end.failure.kind].next_target and len(self._queue) > 1 and self._rounds is None:
            self._queue.pop(0)
            self._failed.append(end)
            return self.begin()
        if self._continuation is not None:  # the client gets the reason why the first upstream broke off
            return GiveUp(self._continuation.failure)
        reported = self.chances.first or choose_failure((*self._failed, end))
        return GiveUp(reported.failure, reported.error_reply)

    def _retry_wait_s(self, failure: Failure) -> float | None:
        """Return the seconds before the same target is tried again; None: it is not."""
        provider = self._providers.get(self._queue[0].provider)
        repeats = failure.kind is Kind.TIMEOUT and (
            failure.status == GATEWAY_TIMEOUT
            or (provider is not None and provider.endpoint.first_token.retries_timeouts)
        )
        if not (AFTER[failure.kind].retry or repeats) or failure.should_retry is False:
            return None
        retry = self._limits.retry
        if failure.retry_after is not None:
            return failure.retry_after if failure.retry_after <= retry.max_wait_s else None
        return float(retry.base_s * 2 ** (self._tries - 1) * self._limits.jitter())

    def _after_interruption(self, end: Interrupted) -> Step:
        self._learn_from_end(end.failure)
        if end.text is None or not self._limits.continues or not AFTER[end.failure.kind].next_target:
            return GiveUp(end.failure)
        queue = self._targets_after(end.failure)
        if not queue:
            return GiveUp(end.failure)
        self._continuation = Continuation(end.text, end.failure)
        self._queue = queue
        return self.begin()

    def _targets_after(self, failure: Failure) -> list[Route]:
        """Return the targets that may continue: those after this one, and this one's other credentials."""
        route, member = self._queue[0], self._member
        assert member is not None
        rest = self._queue[1:]
        broken = self._broken.setdefault(member.name, set())
        broken.add(member.account.slot)
        if member.account.pool is None or len(broken) == len(member.account.pool.members):
            return rest
        return [route, *rest] if AFTER[failure.kind].next_credential else [*rest, route]


def choose_failure(failed: Sequence[NoReply]) -> NoReply:
    """Return the failure for a client whose request these targets have failed, in this order: that of the last one.

    If a retry cannot change that, but another target failed in passing, the client is to try again: it gets that
    failure, of several the one with the shortest wait. What the last target says of the request itself is reported
    all the same, without advice against a retry.
    """
    last = failed[-1]
    passing = [end for end in failed if end.failure.kind in PASSING and end.failure.should_retry is not False]
    is_passing = last in passing
    if not passing or (is_passing and last.failure.retry_after is None):
        return last
    if is_passing or AFTER[last.failure.kind].next_target:
        return min(reversed(passing), key=_known_wait_s)
    own = last.error_reply
    if own is not None:
        own = ErrorReply(own.status, Headers([field for field in own.headers if field[0] != ADVICE]), own.body)
    return NoReply(replace(last.failure, should_retry=None), own)


def _known_wait_s(end: NoReply) -> float:
    return math.inf if end.failure.retry_after is None else end.failure.retry_after


class SecondChance(Enum):
    RENEWED_CREDENTIAL = "renewed credential"
    CHANGED_REQUEST = "changed request"
    WITHOUT_REASONING = "without reasoning"


MAX_REPAIRS = 3  # requests of one call that are sent because of refusals, besides those that were refused


class SecondChances(Struct, eq=False):
    """What may be changed after a refusal, each once: a renewed credential, an adjusted request.

    What was rejected is learned once the request without it has been answered; if it is not, `first` is the failure.
    """

    _learned: LearnedQuirks
    _tenant: str
    _adjusts: bool = True  # the request can be rebuilt, and its client allows it
    _taken: frozenset[tuple[str, int, str]] = frozenset()
    repairs: dict[Route, tuple[Found, ...]] = {}  # tried, and not learned yet
    _requests: int = 0  # that were sent because of refusals
    first: NoReply | None = None  # the refusal that was answered with a repair, until an answer proves that
    changes: tuple[Change, ...] = ()

    def take(self, provider: Provider, route: Route, end: NoReply) -> SecondChance | None:
        """Return the change with which the same provider is tried again at once; None: it is not."""
        failure = end.failure
        auth = provider.auth
        if auth.renew is not None and auth.renews_after(failure) and self._is_first(provider, "renew"):
            return SecondChance.RENEWED_CREDENTIAL
        if self._requests == MAX_REPAIRS:
            return None
        if end.repairs:  # of a strict request: what costs its client nothing
            self._requests += 1
            self.first = self.first or end
            self.repairs = {**self.repairs, route: (*self.repairs.get(route, ()), *end.repairs)}
            return SecondChance.CHANGED_REQUEST
        adjustment = provider.requests.adjust(_restore_words(end)) if self._adjusts else None
        if adjustment is None or (end.error_reply is not None and not _may_change(adjustment, provider, end)):
            return None
        if (adjustment.of_reasoning and end.lacks_reasoning) or not self._is_first(provider, adjustment.name):
            return None
        self._requests += 1
        if adjustment.of_reasoning:
            self.first = self.first or end
        if adjustment.change is not None:
            self.changes += (adjustment.change,)
        return SecondChance.WITHOUT_REASONING if adjustment.drops_reasoning else SecondChance.CHANGED_REQUEST

    def learn(self, route: Route) -> None:
        """Keep what the target rejected, for it has answered the request without it."""
        for found in self.repairs.pop(route, ()):
            self._learned.add(self._tenant, route.provider, route.model, found)
        self.first = None

    def _is_first(self, provider: Provider, name: str) -> bool:
        chance = (provider.name, provider.account.slot, name)
        if chance in self._taken:
            return False
        self._taken |= {chance}
        return True


def _restore_words(end: NoReply) -> Failure:
    """Return the failure with all that the upstream said: its own message is shortened, to be shown."""
    words = "" if end.complaint is None else end.complaint.message
    return replace(end.failure, message=words) if words else end.failure


def _may_change(adjustment: Adjustment, provider: Provider, end: NoReply) -> bool:
    """Whether a request that passed unchanged may be changed.

    Either we moved the conversation to a credential that cannot read another one's reasoning, or the upstream only
    imitates the protocol's vendor, so that its clients do not know how to go on.
    """
    if provider.account.pool is not None:
        return adjustment.change is not None or adjustment.drops_reasoning
    return adjustment.drops_reasoning and not end.is_of_vendor
