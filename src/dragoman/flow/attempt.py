"""Which failures are tried again here, which elsewhere, and how long to wait: a table, and the loop that obeys it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from dragoman.config.settings import Retry
from dragoman.flow.learnt import Learnt
from dragoman.hub.failure import Failure, Kind, Refused
from dragoman.net.headers import Headers
from dragoman.providers.provider import Amend, Pass, Provider
from dragoman.routing.resolve import Route

T = TypeVar("T")


class After(Struct, frozen=True):
    again: bool = False  # ask the same target once more
    elsewhere: bool = False  # then the next one
    another: bool = False  # before both, and at once: another credential of the same provider, if it has one
    rest_s: float | None = None  # how long the refused credential is left alone, where the upstream does not say
    for_all: bool = False  # it is left alone for every model, not only for the one that was asked for


AFTER: dict[Kind, After] = {
    Kind.LOST: After(again=True, elsewhere=True),
    Kind.TIMEOUT: After(elsewhere=True),  # it was sent, and may be paid for; see `may_ask_again`
    Kind.RATE_LIMITED: After(again=True, elsewhere=True, another=True, rest_s=30.0),
    Kind.OVERLOADED: After(again=True, elsewhere=True),
    Kind.UPSTREAM: After(again=True, elsewhere=True),
    Kind.TRUNCATED: After(again=True, elsewhere=True),  # before the first token: an empty reply
    Kind.CORRUPT: After(again=True, elsewhere=True),
    Kind.CREDENTIAL: After(elsewhere=True, another=True, rest_s=3600.0, for_all=True),
    Kind.FORBIDDEN: After(elsewhere=True, another=True, rest_s=3600.0),
    Kind.QUOTA: After(elsewhere=True, another=True, rest_s=3600.0, for_all=True),
    Kind.NOT_FOUND: After(elsewhere=True, another=True),  # accounts differ in the models that they have
    Kind.BAD_REQUEST: After(),
    Kind.TOO_LARGE: After(),
    Kind.REQUEST_TIMEOUT: After(),
    Kind.AUTH: After(),
    Kind.BUSY: After(),
    Kind.CONFLICT: After(),
    Kind.CONTEXT_TOO_LONG: After(),
    Kind.REFUSED: After(),
    Kind.BUG: After(),
    Kind.SHUTDOWN: After(),
}

# What a client is told where every credential was refused, each for a reason of its own: what passes by itself first.
TOLD_FIRST = (Kind.RATE_LIMITED, Kind.QUOTA, Kind.FORBIDDEN, Kind.CREDENTIAL, Kind.NOT_FOUND)


class TurnedAway(Refused):
    """An upstream's error answer, kept as it came for a client of the same protocol."""

    def __init__(self, failure: Failure, status: int, headers: Headers, body: bytes) -> None:
        super().__init__(failure)
        self.status = status
        self.headers = headers
        self.body = body


class SecondChances:
    """What a request may still try after a refusal that it can do something about; each only once."""

    def __init__(self, learnt: Learnt, tenant: str) -> None:
        self._taken: set[tuple[str, int, str]] = set()
        self._learnt = learnt
        self._tenant = tenant
        self.changes: list[Pass] = []

    async def granted(self, provider: Provider, model: str, refused: Refused) -> bool:
        """Whether to ask again at once, perhaps with another credential or a changed request."""
        failure = refused.failure
        if failure.kind is Kind.CREDENTIAL and provider.renew is not None and self._take(provider, "renew"):
            return await provider.renew()
        amend = provider.amend(failure)
        if amend is None or (isinstance(refused, TurnedAway) and not _is_worth_changing(amend, provider)):
            return False
        if not self._take(provider, amend.name):
            return False
        if amend.quirk is not None:
            quirk = f"{amend.quirk}:{model}" if amend.of_model else amend.quirk
            self._learnt.add(self._tenant, provider.name, quirk)
        if amend.change is not None:
            self.changes.append(amend.change)
        return True

    def _take(self, provider: Provider, name: str) -> bool:
        chance = (provider.name, provider.seat, name)
        if chance in self._taken:
            return False
        self._taken.add(chance)
        return True


def _is_worth_changing(amend: Amend, provider: Provider) -> bool:
    """Whether bytes that pass as they are may be built anew: the refusal is of our making.

    We have chosen the way, or moved a conversation to a credential that cannot read what another one's answers hold.
    """
    return amend.reroutes or (amend.change is not None and provider.pool is not None)


async def first_success(
    routes: tuple[Route, ...],
    settings: Retry,
    jitter: Callable[[], float],
    ask: Callable[[Route], Awaitable[T]],
    repeats_timeouts: Callable[[Route], bool],
) -> T:
    """Asks the targets in order, each as often as the table allows; raises the last refusal."""
    last: Refused | None = None
    try:
        for route in routes:
            try:
                return await _persist(route, settings, jitter, ask, repeats_timeouts)
            except Refused as refused:
                last = refused
                if not AFTER[refused.failure.kind].elsewhere:
                    break
        assert last is not None
        raise last
    finally:
        del last  # its traceback holds this frame: only the collector would free the two, and the request's body


async def _persist(
    route: Route,
    settings: Retry,
    jitter: Callable[[], float],
    ask: Callable[[Route], Awaitable[T]],
    repeats_timeouts: Callable[[Route], bool],
) -> T:
    for attempt in range(1, settings.attempts + 1):
        try:
            return await ask(route)
        except Refused as refused:
            failure = refused.failure
            if attempt == settings.attempts or not may_ask_again(failure, repeats_timeouts(route)):
                raise
            wait = wait_before(failure, attempt, settings, jitter)
            if wait is None:
                raise
        await asyncio.sleep(wait)
    raise AssertionError("unreachable: the last attempt returns or raises")


def may_ask_again(failure: Failure, repeats_timeouts: bool) -> bool:
    """Whether the same target may be asked once more; `repeats_timeouts`: it may even where it has not answered."""
    if failure.should_retry is False:
        return False
    return AFTER[failure.kind].again or (failure.kind is Kind.TIMEOUT and repeats_timeouts)


def wait_before(failure: Failure, attempt: int, settings: Retry, jitter: Callable[[], float]) -> float | None:
    """Seconds before asking the same target again; None: longer than we wait."""
    if failure.retry_after is not None:
        return failure.retry_after if failure.retry_after <= settings.max_wait_s else None
    return float(settings.base_s * 2 ** (attempt - 1) * jitter())
