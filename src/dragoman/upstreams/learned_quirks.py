"""The quirks that upstreams have shown in refusals: later requests are built for them from the start."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Protocol

MAX_QUIRK_ENTRIES = 10_000  # pairs of a tenant and a provider; the least recently used go first
MAX_QUIRKS = 100  # of one entry: some are learnt per model, and clients may invent model names

NO_QUIRKS: frozenset[str] = frozenset()


class QuirkMemory(Protocol):
    """The quirks that upstreams have shown, by tenant and provider, kept from request to request.

    A quirk is learnt from an upstream's refusal, and a refusal may repeat what the client wrote: one client key must
    not be able to change how another key's requests are built. Called in every request: nothing here waits.
    """

    def quirks(self, tenant: str, provider: str) -> frozenset[str]:
        """Return the quirks learned from this tenant's requests to the provider."""

    def add(self, tenant: str, provider: str, quirk: str) -> None:
        """Keep a quirk that the provider has shown to this tenant."""

    def list_known_to(self, tenant: str) -> dict[str, tuple[str, ...]]:
        """Return everything that this tenant has learnt, by provider; for captures."""


class LearnedQuirks:
    """A QuirkMemory in this process. `everywhere` holds, by provider, what is known for every tenant."""

    def __init__(self, everywhere: Mapping[str, Iterable[str]] | None = None) -> None:
        self._everywhere = {name: frozenset(quirks) for name, quirks in (everywhere or {}).items()}
        self._entries: OrderedDict[tuple[str, str], frozenset[str]] = OrderedDict()

    def quirks(self, tenant: str, provider: str) -> frozenset[str]:
        entry = (tenant, provider)
        own = self._entries.get(entry)
        if own is None:
            return self._everywhere.get(provider, NO_QUIRKS)
        self._entries.move_to_end(entry)
        return own | self._everywhere.get(provider, NO_QUIRKS)

    def add(self, tenant: str, provider: str, quirk: str) -> None:
        entry = (tenant, provider)
        own = self._entries.get(entry, NO_QUIRKS)
        if len(own) < MAX_QUIRKS:
            self._entries[entry] = own | {quirk}
            self._entries.move_to_end(entry)
        while len(self._entries) > MAX_QUIRK_ENTRIES:
            self._entries.popitem(last=False)

    def list_known_to(self, tenant: str) -> dict[str, tuple[str, ...]]:
        providers = {*self._everywhere, *(provider for owner, provider in self._entries if owner == tenant)}
        found = {provider: tuple(sorted(self.quirks(tenant, provider))) for provider in sorted(providers)}
        return {provider: quirks for provider, quirks in found.items() if quirks}
