"""Which of several credentials a conversation is asked with: answers and refusals come in, the member to ask goes out.

Times are seconds since the epoch and are handed in; nothing here waits or asks. `Pool.states` is what there is to show.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from hashlib import blake2b
from typing import Protocol

from msgspec import Struct

MAX_SESSIONS = 10_000
MAX_RESTS = 1_000  # models are named by clients, who may invent any number of them
DOUBTED_S = 300.0  # a longer rest is not believed without asking again in between
MAX_DOUBT_S = 3600.0
EVERYTHING = ""  # a rest for every model


class Member(Struct, frozen=True):
    id: str  # by which it is known again after an edit of the configuration; never shown
    label: str  # what people are told: its number, and where it comes from


class Rest(Struct):
    """Why a member is left alone, until when, and when that is next doubted."""

    until: float
    why: str
    doubt_at: float
    doubt_s: float
    probed: bool = False  # one request is finding out now

    def hinders(self, now: float) -> bool:
        return now < self.until and (self.probed or now < self.doubt_at)


class Choice(Struct, frozen=True):
    """Whom to ask, and which of its rests this question is to find out about."""

    member: int
    doubts: tuple[Rest, ...] = ()


class CredentialChooser(Protocol):
    """Chooses among several credentials: a pool, or what recorded or replays its choices."""

    def choose(self, session: str | None, model: str, tried: Collection[int], now: float) -> Choice | None:
        """Return the credential to use next; None if all that may be used were tried."""

    def soonest(self, model: str, now: float) -> int:
        """Return the credential that may be used soonest."""


class State(Struct, frozen=True):
    """How a member stands: `free_at` is None where it may be asked now; `model` is empty where the rest is for all."""

    label: str
    free_at: float | None = None
    why: str = ""
    model: str = ""


class Pool:
    """The members of one provider; members are named by their place in the list."""

    def __init__(self, members: tuple[Member, ...], clock: Callable[[], float] = time.time) -> None:
        self.members = members
        self.clock = clock  # what those who ask are to take for now
        self._rests: dict[tuple[int, str], Rest] = {}
        self._served: OrderedDict[bytes, int] = OrderedDict()  # session -> who answered it last
        self._asked: list[int] = list(range(len(members)))  # least recently asked first

    def choose(self, session: str | None, model: str, tried: Collection[int], now: float) -> Choice | None:
        """Whom to ask now. Never None for a request that has tried nobody: it is not refused by hearsay."""
        free = (member for member in self._order(session) if member not in tried and self._is_free(member, model, now))
        chosen = next(free, None)
        if chosen is None:
            if tried:
                return None
            chosen = min(self._order(session), key=lambda member: self.free_at(member, model, now))
        doubts = tuple(rest for rest in self._live(chosen, model, now) if not rest.probed)
        for rest in doubts:
            rest.probed = True
        self._asked.remove(chosen)
        self._asked.append(chosen)
        return Choice(chosen, doubts)

    def served(self, member: int, model: str, *sessions: str | None) -> None:
        """It has answered: what was said of its rest is no longer so, and these sessions are its own."""
        self._rests.pop((member, EVERYTHING), None)
        self._rests.pop((member, model), None)
        for session in sessions:
            if session is not None:
                self._served[_key(session)] = member
                self._served.move_to_end(_key(session))
        while len(self._served) > MAX_SESSIONS:
            self._served.popitem(last=False)

    def park(self, member: int, model: str, until: float, why: str, now: float) -> None:
        """It is left alone until then; asked in vain to find out, it is doubted half as often."""
        if until <= now:
            return
        old = self._rests.get((member, model))
        doubt_s = DOUBTED_S
        if old is not None:  # it has answered nothing since
            doubt_s = min(old.doubt_s * 2, MAX_DOUBT_S) if now >= old.doubt_at else old.doubt_s
        self._rests[(member, model)] = Rest(until, why, now + doubt_s, doubt_s)
        if len(self._rests) > MAX_RESTS:
            self._forget(now)

    def left(self, choice: Choice) -> None:
        """The question came to an end, whatever it told."""
        for rest in choice.doubts:
            rest.probed = False

    def is_at_rest(self, model: str, now: float) -> bool:
        """Whether each member is left alone now, for this model at least."""
        return not any(self._is_free(member, model, now) for member in range(len(self.members)))

    def awakes_at(self, model: str, reasons: Collection[str], others_than: Collection[int], now: float) -> float | None:
        """When the first of those is free that are left alone for these reasons only."""
        moments: list[float] = []
        for member in range(len(self.members)):
            rests = list(self._live(member, model, now))
            if rests and member not in others_than and all(rest.why in reasons for rest in rests):
                moments.append(max(rest.until for rest in rests))
        return min(moments, default=None)

    def home(self, session: str | None) -> int | None:
        """Who answered the session last."""
        return None if session is None else self._served.get(_key(session))

    def soonest(self, model: str, now: float) -> int:
        """Who is left alone for the shortest time, or not at all."""
        return min(range(len(self.members)), key=lambda member: self.free_at(member, model, now))

    def free_at(self, member: int, model: str, now: float) -> float:
        return max((rest.until for rest in self._live(member, model, now)), default=now)

    def states(self, now: float) -> list[State]:
        """One for every member, and one more for every model that a member does not answer for."""
        return [state for member in range(len(self.members)) for state in self._states(member, now)]

    def inherit(self, old: "Pool") -> None:
        """What is known of members that were there before an edit of the configuration."""
        places = {member.id: place for place, member in enumerate(self.members)}
        moved = {place: places[member.id] for place, member in enumerate(old.members) if member.id in places}
        self._rests = {(moved[place], model): rest for (place, model), rest in old._rests.items() if place in moved}
        for session, place in old._served.items():
            if place in moved:
                self._served[session] = moved[place]

    def _order(self, session: str | None) -> list[int]:
        """Who answered last, then whoever the session falls to; every process finds the same, without agreeing."""
        if session is None:
            return list(self._asked)
        key = _key(session)
        home = self._served.get(key)
        weights = [_weight(key, member.id) for member in self.members]
        return sorted(range(len(self.members)), key=lambda member: (member != home, -weights[member]))

    def _is_free(self, member: int, model: str, now: float) -> bool:
        return not any(rest.hinders(now) for rest in self._live(member, model, now))

    def _live(self, member: int, model: str, now: float) -> Iterator[Rest]:
        for key in {(member, EVERYTHING), (member, model)}:
            rest = self._rests.get(key)
            if rest is not None and now < rest.until:
                yield rest

    def _states(self, member: int, now: float) -> Iterator[State]:
        label = self.members[member].label
        whole = next(self._live(member, EVERYTHING, now), None)
        yield State(label) if whole is None else State(label, whole.until, whole.why)
        for (place, model), rest in self._rests.items():
            if place == member and model != EVERYTHING and now < rest.until:
                yield State(label, rest.until, rest.why, model)

    def _forget(self, now: float) -> None:
        """Rests that are over go; of too many, those that end first."""
        live = [(key, rest) for key, rest in self._rests.items() if now < rest.until]
        live.sort(key=lambda item: -item[1].until)
        self._rests = dict(live[: MAX_RESTS // 2])


def _key(session: str) -> bytes:
    return blake2b(session.encode(errors="surrogatepass"), digest_size=16).digest()


def _weight(session: bytes, member: str) -> int:
    return int.from_bytes(blake2b(session + member.encode(), digest_size=8).digest())
