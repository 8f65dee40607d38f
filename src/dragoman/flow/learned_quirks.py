"""The quirks that upstreams have shown, kept from request to request and separately for each client key.

A quirk is learnt from an upstream's refusal, and a refusal may repeat what the client wrote: one client key must not be
able to change how another key's requests are built.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

MAX_ENTRIES = 10_000  # pairs of a tenant and a provider; the least recently used go first
MAX_QUIRKS = 100  # of one entry: some are learnt per model, and clients may invent model names

NOTHING: frozenset[str] = frozenset()


class LearnedQuirks:
    """Quirks by tenant and provider. `everywhere` holds, by provider, what is known for every tenant."""

    def __init__(self, everywhere: Mapping[str, Iterable[str]] | None = None) -> None:
        self._everywhere = {name: frozenset(quirks) for name, quirks in (everywhere or {}).items()}
        self._entries: OrderedDict[tuple[str, str], frozenset[str]] = OrderedDict()

    def quirks(self, tenant: str, provider: str) -> frozenset[str]:
        """Return what this tenant's requests to the provider have taught."""
        entry = (tenant, provider)
        own = self._entries.get(entry)
        if own is None:
            return self._everywhere.get(provider, NOTHING)
        self._entries.move_to_end(entry)
        return own | self._everywhere.get(provider, NOTHING)

    def add(self, tenant: str, provider: str, quirk: str) -> None:
        entry = (tenant, provider)
        own = self._entries.get(entry, NOTHING)
        if len(own) < MAX_QUIRKS:
            self._entries[entry] = own | {quirk}
            self._entries.move_to_end(entry)
        while len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)

    def list_known_to(self, tenant: str) -> dict[str, tuple[str, ...]]:
        """Return everything that this tenant has learnt, by provider; for captures."""
        providers = {*self._everywhere, *(provider for owner, provider in self._entries if owner == tenant)}
        found = {provider: tuple(sorted(self.quirks(tenant, provider))) for provider in sorted(providers)}
        return {provider: quirks for provider, quirks in found.items() if quirks}
