"""Cooldowns of credentials: which are not used, for which model, and until when.

Times are seconds since the epoch and are passed in; nothing here waits or does I/O.
"""

import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol

from msgspec import Struct

from dragoman.translate.hub.failure import Kind

MAX_COOLDOWNS = 1_000  # models are named by clients, who may invent any number of them
PROBE_AFTER_S = 300.0  # in a longer cooldown, one request in between finds out whether it still holds
MAX_PROBE_INTERVAL_S = 3600.0
ALL_MODELS = ""
USABLE_AFTER_ANSWER_S = 60.0  # a credential that has just answered a request is used in spite of an untimed limit
FIRST_UNTIMED_S = 5.0
MAX_UNTIMED_S = 60.0


class CredentialCooldown(Struct, frozen=True):
    """For which model a credential is not to be used, until when, and why."""

    model: str  # or ALL_MODELS
    until: float
    reason: str


class ActiveCooldown(Struct):
    """Why a credential is not used, until when, and when the next request may probe it."""

    until: float
    reason: str
    probe_at: float
    probe_interval_s: float
    probed_at: float | None = None  # since when one request of this process has probed it

    def blocks(self, now: float) -> bool:
        return now < self.until and (self.probed_at is not None or now < self.probe_at)


class Cooldowns(Protocol):
    """The cooldowns of one provider's credentials, which are identified by the id of the pool's member.

    Gateways that use the same accounts should agree on them. They are read in many requests: nothing here waits.
    """

    def active(self, member: str, model: str, now: float) -> Iterable[ActiveCooldown]:
        """Return the cooldowns that a request for this model meets: the model's, and that of all models."""

    def list_models(self, member: str, now: float) -> Iterable[tuple[str, ActiveCooldown]]:
        """Return the cooldowns of single models."""

    def start(self, member: str, cooldown: CredentialCooldown, now: float) -> None:
        """Do not use the member until then. After a probe that failed, the next one is twice as far away."""

    def end(self, member: str, model: str) -> None:
        """End the cooldowns that a request for this model meets."""

    def end_all(self, members: Collection[str]) -> int:
        """End all of these members; return how many there were."""

    def begin_probes(self, member: str, model: str, now: float) -> tuple[ActiveCooldown, ...]:
        """Return the cooldowns that a request probes which uses the member now; no other request probes them too."""

    def end_probes(self, probes: Iterable[ActiveCooldown]) -> None:
        """Let another request probe these cooldowns."""


class MemoryCooldowns:
    """Cooldowns in this process."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], ActiveCooldown] = {}  # by member and model

    def find(self, member: str, model: str) -> ActiveCooldown | None:
        """Return the cooldown of exactly this model, or of ALL_MODELS, even if it is over."""
        return self._known.get((member, model))

    def list_all(self) -> Iterator[tuple[str, str, ActiveCooldown]]:
        """Return all with member and model; some may be over."""
        for (member, model), cooldown in self._known.items():
            yield member, model, cooldown

    def replace_all(self, known: Mapping[tuple[str, str], ActiveCooldown]) -> None:
        """Forget what is known, and know this instead."""
        self._known = dict(known)

    def active(self, member: str, model: str, now: float) -> Iterator[ActiveCooldown]:
        for key in {(member, ALL_MODELS), (member, model)}:
            cooldown = self._known.get(key)
            if cooldown is not None and now < cooldown.until:
                yield cooldown

    def list_models(self, member: str, now: float) -> Iterator[tuple[str, ActiveCooldown]]:
        for one, model, cooldown in self.list_all():
            if one == member and model != ALL_MODELS and now < cooldown.until:
                yield model, cooldown

    def start(self, member: str, cooldown: CredentialCooldown, now: float) -> None:
        if cooldown.until <= now:
            return
        old = self._known.get((member, cooldown.model))
        interval_s = PROBE_AFTER_S
        if old is not None:  # no success since
            is_due = now >= old.probe_at
            interval_s = min(old.probe_interval_s * 2, MAX_PROBE_INTERVAL_S) if is_due else old.probe_interval_s
        self.put(member, cooldown.model, ActiveCooldown(cooldown.until, cooldown.reason, now + interval_s, interval_s))
        if len(self._known) > MAX_COOLDOWNS:
            self._drop(now)

    def put(self, member: str, model: str, cooldown: ActiveCooldown) -> None:
        self._known[member, model] = cooldown

    def remove(self, member: str, model: str) -> None:
        self._known.pop((member, model), None)

    def end(self, member: str, model: str) -> None:
        self.remove(member, ALL_MODELS)
        self.remove(member, model)

    def end_all(self, members: Collection[str]) -> int:
        ended = [key for key in self._known if key[0] in members]
        for key in ended:
            del self._known[key]
        return len(ended)

    def begin_probes(self, member: str, model: str, now: float) -> tuple[ActiveCooldown, ...]:
        probes = tuple(cooldown for cooldown in self.active(member, model, now) if cooldown.probed_at is None)
        for cooldown in probes:
            cooldown.probed_at = now
        return probes

    def end_probes(self, probes: Iterable[ActiveCooldown]) -> None:
        for cooldown in probes:
            cooldown.probed_at = None

    def _drop(self, now: float) -> None:
        """Drop cooldowns that are over, and of too many those that end first."""
        active = [(key, cooldown) for key, cooldown in self._known.items() if now < cooldown.until]
        active.sort(key=lambda item: -item[1].until)
        self._known = dict(active[: MAX_COOLDOWNS // 2])


class CredentialHistory(Struct):
    """What one process knows of a credential and a model: its last answer, and its untimed limits since."""

    answered_at: float = -math.inf
    until: float = -math.inf
    seconds: float = 0.0  # the length of the last cooldown


class UntimedLimits:
    """Rate limits for which the upstream names no reset, by credential and model.

    They often meet new conversations only, so each process judges by its own requests: there is no cooldown if the
    credential has just answered another one. Else it is 5 s, and twice as long each time until an answer, up to 60 s.
    """

    def __init__(self, known: Mapping[tuple[int, str], CredentialHistory] | None = None) -> None:
        self._known = OrderedDict(known or {})  # least recently changed first

    def record_answer(self, member: int, model: str, now: float) -> None:
        self._put(member, model, CredentialHistory(answered_at=now))

    def record_limit(self, member: int, model: str, now: float) -> float:
        """Return the seconds for which the member is not to be used; limits during a cooldown do not extend it."""
        old = self._known.get((member, model), CredentialHistory())
        if now < old.answered_at + USABLE_AFTER_ANSWER_S:
            return 0.0
        if now < old.until:
            return old.until - now
        seconds = min(old.seconds * 2, MAX_UNTIMED_S) or FIRST_UNTIMED_S
        self._put(member, model, CredentialHistory(until=now + seconds, seconds=seconds))
        return seconds

    def active(self, member: int, model: str, now: float) -> Iterator[ActiveCooldown]:
        known = self._known.get((member, model))
        if known is not None and now < known.until:
            yield ActiveCooldown(known.until, Kind.RATE_LIMITED.value, known.until, 0.0)

    def list_models(self, member: int, now: float) -> Iterator[tuple[str, ActiveCooldown]]:
        for index, model in self._known:
            if index == member:
                for cooldown in self.active(member, model, now):
                    yield model, cooldown

    def end_all(self) -> int:
        """End all cooldowns; return how many there were."""
        limited = [key for key, known in self._known.items() if known.seconds]
        for key in limited:
            del self._known[key]
        return len(limited)

    def renumber(self, indexes: Mapping[int, int]) -> "UntimedLimits":
        """Return what is known of the members that have a new index, after the configuration was edited."""
        kept = ((member, model, known) for (member, model), known in self._known.items() if member in indexes)
        return UntimedLimits({(indexes[member], model): known for member, model, known in kept})

    def _put(self, member: int, model: str, history: CredentialHistory) -> None:
        self._known[(member, model)] = history
        self._known.move_to_end((member, model))
        if len(self._known) > MAX_COOLDOWNS:
            self._known.popitem(last=False)
