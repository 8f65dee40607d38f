"""The credentials of one provider: which one a conversation uses, and which are cooling down.

Times are seconds since the epoch and are passed in; nothing here waits or does I/O.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from hashlib import blake2b
from typing import Protocol

from msgspec import Struct

from dragoman.upstreams.credentials.cooldowns import (
    ALL_MODELS,
    ActiveCooldown,
    Cooldowns,
    CredentialCooldown,
    MemoryCooldowns,
)

MAX_SESSIONS = 10_000


class Member(Struct, frozen=True):
    id: str  # the same after the configuration was edited; never shown
    label: str  # shown to people: its number, and where it comes from


class CredentialChoice(Struct, frozen=True):
    """The credential to use, and the cooldowns that this request probes."""

    member: int
    probes: tuple[ActiveCooldown, ...] = ()


class CredentialChooser(Protocol):
    """Chooses among several credentials: a pool, or what records or replays its choices."""

    def choose(self, session: str | None, model: str, tried: Collection[int], now: float) -> CredentialChoice | None:
        """Return the credential to use next; None if all that may be used were tried."""

    def find_soonest_free(self, model: str, now: float) -> int:
        """Return the credential that may be used soonest."""


class MemberState(Struct, frozen=True):
    """`free_at` is None where the credential may be used now; `model` is empty where the state is of all models."""

    label: str
    free_at: float | None = None
    reason: str = ""
    model: str = ""


class Pool:
    """The credentials of one provider, identified by their index."""

    def __init__(
        self, members: tuple[Member, ...], clock: Callable[[], float] = time.time, cooldowns: Cooldowns | None = None
    ) -> None:
        self.members = members
        self.clock = clock  # for callers: what to pass as `now`
        self._cooldowns: Cooldowns = MemoryCooldowns() if cooldowns is None else cooldowns
        self._sessions: OrderedDict[bytes, int] = OrderedDict()  # session -> the member that answered it last
        self._by_last_use: list[int] = list(range(len(members)))  # least recently used first

    def choose(self, session: str | None, model: str, tried: Collection[int], now: float) -> CredentialChoice | None:
        """Return the credential to use now, or None if all others were tried.

        A request that has tried none always gets one, even if all are cooling down: the cooldown may be out of date.
        """
        free = (member for member in self._order(session) if member not in tried and self._is_free(member, model, now))
        chosen = next(free, None)
        if chosen is None:
            if tried:
                return None
            chosen = min(self._order(session), key=lambda member: self.free_at(member, model, now))
        probes = self._cooldowns.begin_probes(chosen, model, now)
        self._by_last_use.remove(chosen)
        self._by_last_use.append(chosen)
        return CredentialChoice(chosen, probes)

    def record_success(self, member: int, model: str, *sessions: str | None) -> None:
        """End the member's cooldowns, and bind these sessions to it."""
        self._cooldowns.end(member, model)
        for session in sessions:
            if session is not None:
                self._sessions[_key(session)] = member
                self._sessions.move_to_end(_key(session))
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)

    def start_cooldown(self, member: int, cooldown: CredentialCooldown, now: float) -> None:
        """Do not use the member until then. After a probe that failed, the next one is twice as far away."""
        self._cooldowns.start(member, cooldown, now)

    def end_cooldowns(self) -> int:
        """Let every member be used from the next request on; return how many cooldowns that ends."""
        return self._cooldowns.end_all()

    def release(self, choice: CredentialChoice) -> None:
        """End a request's probes, whatever its result."""
        self._cooldowns.end_probes(choice.probes)

    def is_cooling_down(self, model: str, now: float) -> bool:
        """Return whether no member may be used for this model now."""
        return not any(self._is_free(member, model, now) for member in range(len(self.members)))

    def next_free_at(self, model: str, reasons: Collection[str], excluded: Collection[int], now: float) -> float | None:
        """Return when the first member is free again among those that cool down for these reasons only."""
        times: list[float] = []
        for member in range(len(self.members)):
            cooldowns = list(self._cooldowns.active(member, model, now))
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
        return max((cooldown.until for cooldown in self._cooldowns.active(member, model, now)), default=now)

    def states(self, now: float) -> list[MemberState]:
        """Return one state for every member, and one more for every model that it is cooling down for."""
        return [state for member in range(len(self.members)) for state in self._states(member, now)]

    def inherit(self, old: "Pool") -> None:
        """Take over what is known of members that were there before the configuration was edited."""
        indexes = {member.id: index for index, member in enumerate(self.members)}
        moved = {index: indexes[member.id] for index, member in enumerate(old.members) if member.id in indexes}
        self._cooldowns = old._cooldowns.renumber(moved)
        for session, index in old._sessions.items():
            if index in moved:
                self._sessions[session] = moved[index]

    def _order(self, session: str | None) -> list[int]:
        """Put the session's last member first, then order by a hash: every process finds the same order by itself."""
        if session is None:
            return list(self._by_last_use)
        key = _key(session)
        last = self._sessions.get(key)
        weights = [int.from_bytes(blake2b(key + member.id.encode(), digest_size=8).digest()) for member in self.members]
        return sorted(range(len(self.members)), key=lambda member: (member != last, -weights[member]))

    def _is_free(self, member: int, model: str, now: float) -> bool:
        return not any(cooldown.blocks(now) for cooldown in self._cooldowns.active(member, model, now))

    def _states(self, member: int, now: float) -> Iterator[MemberState]:
        label = self.members[member].label
        whole = next(iter(self._cooldowns.active(member, ALL_MODELS, now)), None)
        yield MemberState(label) if whole is None else MemberState(label, whole.until, whole.reason)
        for model, cooldown in self._cooldowns.list_models(member, now):
            yield MemberState(label, cooldown.until, cooldown.reason, model)


def _key(session: str) -> bytes:
    return blake2b(session.encode(errors="surrogatepass"), digest_size=16).digest()
