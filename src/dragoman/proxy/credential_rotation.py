"""Try a provider's credentials in turn, first that of the same conversation; note which to leave alone. No I/O."""

import logging
from collections.abc import Collection, Mapping

from msgspec import Struct

from dragoman.net.headers import Headers
from dragoman.proxy.step import NoReply
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.upstreams.credentials.cooldowns import ALL_MODELS, CredentialCooldown
from dragoman.upstreams.credentials.pool import CredentialChoice
from dragoman.upstreams.provider import Provider
from dragoman.upstreams.routing import Route

log = logging.getLogger(__name__)

SPENT = "spent"
TEMPORARY = (Kind.RATE_LIMITED.value, SPENT)  # reasons for a cooldown that pass by themselves


class Cooldown(Struct, frozen=True):
    """How long a refused credential is left alone where the upstream does not say.

    `seconds` is None where that depends on what else the credential answers: see `UntimedLimits`.
    """

    seconds: float | None
    whole_account: bool = False  # for every model, not only for the requested one


COOLDOWNS: dict[Kind, Cooldown] = {
    Kind.RATE_LIMITED: Cooldown(None),
    Kind.CREDENTIAL: Cooldown(3600.0, whole_account=True),
    Kind.FORBIDDEN: Cooldown(3600.0),
    Kind.QUOTA: Cooldown(3600.0, whole_account=True),
}

# If every credential was refused, each for another reason, the client gets the first of these.
REPORTED_FIRST = (Kind.RATE_LIMITED, Kind.QUOTA, Kind.FORBIDDEN, Kind.CREDENTIAL, Kind.NOT_FOUND)


class CredentialRound:
    """The credentials of one provider, for one request; every attempt is a pass over them.

    `session` names the conversation, which stays with the credential that answered it before. `excluded` are
    credentials that have broken off this reply. `spares`: there is another target. Only then does a provider with a
    single exhausted credential cool down.
    """

    def __init__(
        self, provider: Provider, model: str, session: str | None, excluded: Collection[int] = (), *, spares: bool
    ) -> None:
        self._provider = provider
        self._model = model
        self._session = session
        self._excluded = excluded
        self._pool = (
            provider.account.pool
            if provider.account.pool is not None
            else (provider.account.cooldowns if spares else None)
        )
        self._choice: CredentialChoice | None = None
        self._refusals: dict[int, NoReply] = {}  # of the current attempt
        self._untimed: list[int] = []  # rate limited without a reset time at any attempt, the longest ago first
        self._member: Provider | None = None

    @property
    def member(self) -> Provider:
        """The provider with the credential that is used now."""
        assert self._member is not None
        return self._member

    def begin_attempt(self) -> Provider | None:
        """Choose the first credential of an attempt; None if there is none to use."""
        self._refusals.clear()
        return self.next()

    def next(self) -> Provider | None:
        """Choose the next credential; None if all that may be used have been."""
        account = self._provider.account
        pool = account.pool
        if pool is None:
            if self._refusals:
                return None
            if self._pool is not None:
                self._choice = self._pool.choose(None, self._model, (), self._pool.clock())
            self._member = self._provider
            return self._member
        chooser = account.chooser or pool
        tried = {*self._excluded, *self._refusals}
        self._choice = chooser.choose(self._session, self._model, tried, pool.clock(), tuple(self._untimed))
        self._member = None if self._choice is None else self._provider.members[self._choice.member]
        return self._member

    def record_answer(self, headers: Headers, response: str | None) -> None:
        """Note the first token of a reply; `response` is its id where the upstream keeps it."""
        if self._pool is not None and self._choice is not None:
            now = self._pool.clock()
            self._pool.record_success(self._choice.member, self._model, self._session, response, now=now)
            if self._provider.account.pool is not None:
                # Start a cooldown if a successful response says that the allowance is used up.
                until = self.member.account.exhausted_until(headers, now)
                if until is not None:
                    spent = CredentialCooldown(self._model, until, SPENT)
                    self._pool.start_cooldown(self.member.account.slot, spent, now)
        self.release()

    def record_refusal(self, end: NoReply) -> None:
        """Note that the current credential failed."""
        slot = self.member.account.slot
        self._refusals[slot] = end
        if end.failure.kind in COOLDOWNS:
            self._untimed = [other for other in self._untimed if other != slot]
        if is_untimed(end.failure):
            self._untimed.append(slot)
        self.learn(end.failure)
        self.release()

    def learn(self, failure: Failure) -> None:
        """Note what a failure says about its credential."""
        if self._provider.account.pool is not None:
            start_cooldown(self.member, self._model, failure)
        elif self._pool is not None and _has_account_reset(failure, self._pool.clock()):
            start_cooldown(self.member, self._model, failure)  # there is no other credential to use meanwhile

    def release(self) -> None:
        """Note that the request which tests whether a cooldown is over has ended."""
        if self._pool is not None and self._choice is not None:
            self._pool.release(self._choice)
        self._choice = None

    def choose_failure(self, last: NoReply) -> NoReply:
        """Return the failure for a client whose request every credential refused: the one that passes soonest."""
        pool, model, refusals = self._provider.account.pool, self._model, self._refusals
        if pool is None:
            return last
        if not refusals:
            return self.describe_exhaustion()
        now = pool.clock()
        soonest = min(refusals, key=lambda slot: (_rank(refusals[slot]), pool.free_at(slot, model, now)))
        soon = None if _rank(refusals[soonest]) == 0 else pool.next_free_at(model, TEMPORARY, refusals, now)
        if soon is None or soon >= pool.free_at(soonest, model, now):
            return refusals[soonest]
        message = (
            f"Some credentials of provider {self._provider.name!r} are refused, the others are rate limited for "
            f"{soon - now:.0f} s more."
        )
        return NoReply(Failure(Kind.RATE_LIMITED, message, status=429, retry_after=soon - now))

    def describe_exhaustion(self) -> NoReply:
        """Return the failure of a round in which no credential could be chosen at all."""
        return NoReply(Failure(Kind.QUOTA, f"No other credential of provider {self._provider.name!r} can be used now."))


def start_cooldown(member: Provider, model: str, failure: Failure) -> None:
    """Start a cooldown for as long as the failure says, if it calls for one."""
    pool, cooldown = member.account.cooldowns, COOLDOWNS.get(failure.kind)
    if pool is None or cooldown is None:
        return
    now = pool.clock()
    slot, seconds = member.account.slot, _seconds_left(failure, now)
    if seconds is None:
        seconds = cooldown.seconds
    if seconds is None:
        seconds = pool.start_untimed_cooldown(slot, model, now)
    else:
        models = ALL_MODELS if cooldown.whole_account else model
        pool.start_cooldown(slot, CredentialCooldown(models, now + seconds, failure.kind.value), now)
    if not seconds:
        return
    which = f", credential {member.account.label}" if member.account.label else ""
    log.info("provider %s%s: %s, not used for %.0f s", member.name, which, failure.kind.value, seconds)


def is_untimed(failure: Failure) -> bool:
    """Whether this is a rate limit for which the upstream names no reset."""
    return failure.kind is Kind.RATE_LIMITED and failure.retry_after is None and failure.resets_at is None


def available_targets(routes: tuple[Route, ...], providers: Mapping[str, Provider]) -> tuple[Route, ...]:
    """Return the targets that are not cooling down; all of them if all are."""
    if len(routes) == 1:
        return routes
    return tuple(route for route in routes if not _is_cooling_down(route, providers)) or routes


def choose_least_restricted(provider: Provider, model: str) -> Provider:
    """Return the credential that may be used soonest, for a request outside any conversation."""
    account = provider.account
    if account.pool is None:
        return provider
    chooser = account.chooser or account.pool
    return provider.members[chooser.find_soonest_free(model, account.pool.clock())]


def _is_cooling_down(route: Route, providers: Mapping[str, Provider]) -> bool:
    provider = providers.get(route.provider)
    pool = None if provider is None else provider.account.cooldowns
    return pool is not None and pool.is_cooling_down(route.model, pool.clock())


def _has_account_reset(failure: Failure, now: float) -> bool:
    """Whether the upstream itself says that the whole account must wait, and until when."""
    cooldown = COOLDOWNS.get(failure.kind)
    return cooldown is not None and cooldown.whole_account and _seconds_left(failure, now) is not None


def _seconds_left(failure: Failure, now: float) -> float | None:
    """Return how long the upstream itself says to wait."""
    if failure.resets_at is not None and failure.resets_at > now:
        return failure.resets_at - now
    return failure.retry_after


def _rank(end: NoReply) -> int:
    kind = end.failure.kind
    return REPORTED_FIRST.index(kind) if kind in REPORTED_FIRST else len(REPORTED_FIRST)
