"""Cooldowns that several gateways agree on: each has a copy of all of them, so that no request waits.

What changes here is handed to the others by `valkey_cooldowns.py` or `stored_cooldowns.py`, which also bring what
others have changed. Times in rows are milliseconds since the epoch.
"""

import asyncio
from collections.abc import Collection, Iterable
from hashlib import blake2b

from dragoman.store.cooldowns import CooldownChange, CooldownRow, EndedCooldown
from dragoman.upstreams.credentials.cooldowns import (
    ALL_MODELS,
    MAX_COOLDOWNS,
    ActiveCooldown,
    CredentialCooldown,
    MemoryCooldowns,
)

PROBING_S = 60.0  # for which other gateways wait for the result of a probe

Key = tuple[str, str]  # member, model


class CooldownBoard:
    """The copy of this process, and the changes that the others do not know yet."""

    def __init__(self) -> None:
        self.known = MemoryCooldowns()
        self.unsent: dict[Key, CooldownChange] = {}
        self.has_unsent = asyncio.Event()

    def start(self, member: str, cooldown: CredentialCooldown, now: float) -> None:
        self.known.start(member, cooldown, now)
        self._send(member, cooldown.model)

    def end(self, member: str, model: str) -> None:
        ended = [one for one in {ALL_MODELS, model} if self.known.find(member, one) is not None]
        self.known.end(member, model)
        for one in ended:  # none after most requests
            self._send(member, one)

    def end_all(self, members: Collection[str]) -> int:
        ended = [(member, model) for member, model, _ in self.known.list_all() if member in members]
        for member, model in ended:
            self.known.remove(member, model)
            self._send(member, model)
        return len(ended)

    def begin_probes(self, member: str, model: str, now: float) -> tuple[ActiveCooldown, ...]:
        """Let other gateways send no probes of their own meanwhile."""
        probes = self.known.begin_probes(member, model, now)
        if probes:
            self._send_probed(tuple(filter(_holds_off_others, probes)))
        return probes

    def end_probes(self, probes: Iterable[ActiveCooldown]) -> None:
        """Let others probe those without a result."""
        probes = tuple(probes)
        if not probes:
            return
        held_off = tuple(filter(_holds_off_others, probes))
        self.known.end_probes(probes)
        self._send_probed(held_off)

    def _send_probed(self, probes: Collection[ActiveCooldown]) -> None:
        for member, model, cooldown in list(self.known.list_all()):
            if any(cooldown is probe for probe in probes):
                self._send(member, model)

    def record_sent(self, change: CooldownChange) -> None:
        """Note that the others get a change, unless there is a newer one by now."""
        key = (change.member, change.model)
        if self.unsent.get(key) is change:
            del self.unsent[key]
        if not self.unsent:
            self.has_unsent.clear()

    def send_all(self) -> None:
        """Hand the others everything: what is between them has forgotten it."""
        for member, model, _ in list(self.known.list_all()):
            self._send(member, model)

    def adopt(self, rows: Iterable[CooldownRow]) -> None:
        """Know what all gateways know, and what they do not know yet."""
        known = {(row.member, row.model): self._read(row) for row in rows}
        for member, model in self.unsent:
            own = self.known.find(member, model)
            if own is None:
                known.pop((member, model), None)
            else:
                known[member, model] = own
        self.known.replace_all(known)

    def apply(self, change: CooldownChange) -> None:
        """Make a change of another gateway, or of this one, in the order in which all get them."""
        if (change.member, change.model) in self.unsent:
            return  # ours comes later
        if isinstance(change, CooldownRow):
            self.known.put(change.member, change.model, self._read(change))
        else:
            self.known.remove(change.member, change.model)

    def _send(self, member: str, model: str) -> None:
        if not model.isprintable():  # a client's invention, which not every store can hold
            return
        cooldown = self.known.find(member, model)
        ended = EndedCooldown(member, model)
        self.unsent[member, model] = ended if cooldown is None else _write(member, model, cooldown)
        while len(self.unsent) > MAX_COOLDOWNS:
            del self.unsent[next(iter(self.unsent))]
        self.has_unsent.set()

    def _read(self, row: CooldownRow) -> ActiveCooldown:
        """Return the cooldown of a row; the one that is known, with its probe, if it is the same."""
        known = self.known.find(row.member, row.model)
        if known is not None and _write(row.member, row.model, known) == row:
            return known
        return ActiveCooldown(row.until_ms / 1000, row.reason, row.probe_at_ms / 1000, row.probe_interval_ms / 1000)


class SharedCooldowns:
    """The cooldowns of one provider, of those that all gateways know."""

    def __init__(self, board: CooldownBoard, provider: str) -> None:
        self._board = board
        self._provider = provider
        self._names: dict[str, str] = {}

    def active(self, member: str, model: str, now: float) -> Iterable[ActiveCooldown]:
        return self._board.known.active(self._name(member), model, now)

    def list_models(self, member: str, now: float) -> Iterable[tuple[str, ActiveCooldown]]:
        return self._board.known.list_models(self._name(member), now)

    def start(self, member: str, cooldown: CredentialCooldown, now: float) -> None:
        self._board.start(self._name(member), cooldown, now)

    def end(self, member: str, model: str) -> None:
        self._board.end(self._name(member), model)

    def end_all(self, members: Collection[str]) -> int:
        return self._board.end_all({self._name(member) for member in members})

    def begin_probes(self, member: str, model: str, now: float) -> tuple[ActiveCooldown, ...]:
        return self._board.begin_probes(self._name(member), model, now)

    def end_probes(self, probes: Iterable[ActiveCooldown]) -> None:
        self._board.end_probes(probes)

    def _name(self, member: str) -> str:
        name = self._names.get(member)
        if name is None:
            name = self._names[member] = name_member(self._provider, member)
        return name


def name_member(provider: str, id: str) -> str:
    """Return what all gateways call a credential, which does not tell what it is."""
    return blake2b(f"{provider}\0{id}".encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _holds_off_others(cooldown: ActiveCooldown) -> bool:
    """Return whether a request of this process probes it, and others would probe it too before there is a result."""
    return cooldown.probed_at is not None and cooldown.probe_at < cooldown.probed_at + PROBING_S


def _write(member: str, model: str, cooldown: ActiveCooldown) -> CooldownRow:
    probe_at = cooldown.probe_at
    if cooldown.probed_at is not None and _holds_off_others(cooldown):
        probe_at = cooldown.probed_at + PROBING_S
    times = (cooldown.until, probe_at, cooldown.probe_interval_s)
    until_ms, probe_at_ms, interval_ms = (round(seconds * 1000) for seconds in times)
    return CooldownRow(member, model, until_ms, cooldown.reason, probe_at_ms, interval_ms)
