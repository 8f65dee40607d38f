"""The credentials of one provider: which one a conversation uses, and which are cooling down.

Times are seconds since the epoch and are passed in; nothing here waits or does I/O.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Protocol

from msgspec import Struct

from dragoman.upstreams.credentials.cooldowns import (
    ALL_MODELS,
    ActiveCooldown,
    Cooldowns,
    CredentialCooldown,
    MemoryCooldowns,
    UntimedLimits,
)

MAX_SESSIONS = 10_000
MAX_UNTIMED = 2  # credentials of one request; if two are limited without a reset time, the others are too


class Member(Struct, frozen=True):
    id: str  # the same after the configuration was edited; never shown
    label: str  # shown to people: its number, and where it comes from


class CredentialChoice(Struct, frozen=True):
    """The credential to use, and the cooldowns that this request probes."""

    member: int
    probes: tuple[ActiveCooldown, ...] = ()


class CredentialChooser(Protocol):
    """Chooses among several credentials: a pool, or what records or replays its choices."""

    def choose(
        self, session: str | None, model: str, tried: Collection[int], now: float, untimed: Sequence[int] = ()
    ) -> CredentialChoice | None:
        """Return the credential to use next; None if all that may be used were tried.

        `untimed` are those that were rate limited without a reset time at any attempt of this request, the longest
        ago first; `tried` are those of the current attempt.
        """

    def find_soonest_free(self, model: str, now: float) -> int:
        """Return the credential that may be used soonest."""


class MemberState(Struct, frozen=True):
    """`free_at` is None where the credential may be used now; `model` is empty where the state is of all models."""

    label: str
    free_at: float | None = None
    reason: str = ""
    model: str = ""


class Pool:
    """The credentials of one provider, identified by their index; by their id where others know them too."""

    def __init__(
        self, members: tuple[Member, ...], clock: Callable[[], float] = time.time, cooldowns: Cooldowns | None = None
    ) -> None:
        self.members = members
        self.clock = clock  # for callers: what to pass as `now`
        self._cooldowns: Cooldowns = MemoryCooldowns() if cooldowns is None else cooldowns
        self._untimed = UntimedLimits()
        self._sessions: OrderedDict[bytes, int] = OrderedDict()  # session -> the member that answered it last
        self._by_last_use: list[int] = list(range(len(members)))  # least recently used first

    def choose(
        self, session: str | None, model: str, tried: Collection[int], now: float, untimed: Sequence[int] = ()
    ) -> CredentialChoice | None:
        """Return the credential to use now, or None if all others were tried.

        A request that has tried none always gets one, even if all are cooling down: the cooldown may be out of date.
        After untimed limits of two credentials, each further attempt uses one of these two.
        """
        if len(untimed) < MAX_UNTIMED:
            chosen = self._choose_free(session, model, tried, now)
        elif any(member in tried for member in untimed):
            chosen = None
        else:
            chosen = min(untimed, key=lambda member: _last_end(self._timed(member, model, now), now))
        if chosen is None:
            return None
        probes = self._cooldowns.begin_probes(self.members[chosen].id, model, now)
        self._by_last_use.remove(chosen)
        self._by_last_use.append(chosen)
        return CredentialChoice(chosen, probes)

    def record_success(self, member: int, model: str, *sessions: str | None, now: float) -> None:
        """End the member's cooldowns, and bind these sessions to it."""
        self._cooldowns.end(self.members[member].id, model)
        self._untimed.record_answer(member, model, now)
        for session in sessions:
            if session is not None:
                self._sessions[_key(session)] = member
                self._sessions.move_to_end(_key(session))
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)

    def start_cooldown(self, member: int, cooldown: CredentialCooldown, now: float) -> None:
        """Do not use the member until then. After a probe that failed, the next one is twice as far away."""
        self._cooldowns.start(self.members[member].id, cooldown, now)

    def start_untimed_cooldown(self, member: int, model: str, now: float) -> float:
        """Note a rate limit without a reset time; return the seconds for which no other session comes to the member."""
        return self._untimed.record_limit(member, model, now)

    def end_cooldowns(self) -> int:
        """Let every member be used from the next request on; return how many cooldowns that ends."""
        return self._cooldowns.end_all({member.id for member in self.members}) + self._untimed.end_all()

    def release(self, choice: CredentialChoice) -> None:
        """End a request's probes, whatever its result."""
        self._cooldowns.end_probes(choice.probes)

    def is_cooling_down(self, model: str, now: float) -> bool:
        """Return whether no member may be used for this model now, not even by a session that it answered last."""
        return not any(self._is_free(member, model, now, member) for member in range(len(self.members)))

    def next_free_at(self, model: str, reasons: Collection[str], excluded: Collection[int], now: float) -> float | None:
        """Return when the first member is free again among those that cool down for these reasons only."""
        times: list[float] = []
        for member in range(len(self.members)):
            cooldowns = list(self._active(member, model, now))
            if cooldowns and member not in excluded and all(cooldown.reason in reasons for cooldown in cooldowns):
                times.append(max(cooldown.until for cooldown in cooldowns))
        return min(times, default=None)

    def last_member(self, session: str | None) -> int | None:
        """Return the member that answered the session last."""
        return None if session is None else self._sessions.get(_key(session))

    def find_soonest_free(self, model: str, now: float) -> int:
        """Return the member with the shortest cooldown, or with none."""
        return min(range(len(self.members)), key=lambda member: self.free_at(member, model, now))

    def free_at(self, member: int, model: str, now: float) -> float:
        return _last_end(self._active(member, model, now), now)

    def states(self, now: float) -> list[MemberState]:
        """Return one state for every member, and one more for every model that it is cooling down for."""
        return [state for member in range(len(self.members)) for state in self._states(member, now)]

    def inherit(self, old: "Pool") -> None:
        """Take over what is known of members that were there before the configuration was edited."""
        indexes = {member.id: index for index, member in enumerate(self.members)}
        moved = {index: indexes[member.id] for index, member in enumerate(old.members) if member.id in indexes}
        self._cooldowns = old._cooldowns
        self._untimed = old._untimed.renumber(moved)
        for session, index in old._sessions.items():
            if index in moved:
                self._sessions[session] = moved[index]

    def _choose_free(self, session: str | None, model: str, tried: Collection[int], now: float) -> int | None:
        order = self._order(session)
        home = self.last_member(session)
        for member in order:
            if member not in tried and self._is_free(member, model, now, home):
                return member
        return None if tried else min(order, key=lambda member: self.free_at(member, model, now))

    def _order(self, session: str | None) -> list[int]:
        """Put the session's last member first, then order by a hash: every process finds the same order by itself."""
        if session is None:
            return list(self._by_last_use)
        key = _key(session)
        last = self._sessions.get(key)
        weights = [int.from_bytes(blake2b(key + member.id.encode(), digest_size=8).digest()) for member in self.members]
        return sorted(range(len(self.members)), key=lambda member: (member != last, -weights[member]))

    def _is_free(self, member: int, model: str, now: float, home: int | None) -> bool:
        """Whether the member may be used; untimed limits do not keep a session from `home`, which answered it last."""
        cooldowns = self._timed if member == home else self._active
        return not any(cooldown.blocks(now) for cooldown in cooldowns(member, model, now))

    def _timed(self, member: int, model: str, now: float) -> Iterable[ActiveCooldown]:
        return self._cooldowns.active(self.members[member].id, model, now)

    def _active(self, member: int, model: str, now: float) -> Iterator[ActiveCooldown]:
        return chain(self._timed(member, model, now), self._untimed.active(member, model, now))

    def _states(self, member: int, now: float) -> Iterator[MemberState]:
        id, label = self.members[member].id, self.members[member].label
        whole = next(iter(self._cooldowns.active(id, ALL_MODELS, now)), None)
        yield MemberState(label) if whole is None else MemberState(label, whole.until, whole.reason)
        models: dict[str, ActiveCooldown] = {}
        for model, cooldown in chain(self._cooldowns.list_models(id, now), self._untimed.list_models(member, now)):
            if model not in models or models[model].until < cooldown.until:
                models[model] = cooldown
        for model, cooldown in models.items():
            yield MemberState(label, cooldown.until, cooldown.reason, model)


def _last_end(cooldowns: Iterable[ActiveCooldown], now: float) -> float:
    return max((cooldown.until for cooldown in cooldowns), default=now)


def _key(session: str) -> bytes:
    return blake2b(session.encode(errors="surrogatepass"), digest_size=16).digest()
