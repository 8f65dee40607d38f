"""What upstreams have rejected, kept in the store: it survives a restart, and workers agree on it."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping

from msgspec import Struct

from dragoman.net.tasks import spawn
from dragoman.store.database import StoreError
from dragoman.store.learned_rules import RuleRow
from dragoman.store.store import Store
from dragoman.upstreams.learned_quirks import Learned, LearnedQuirks

log = logging.getLogger(__name__)


class KeptRules(LearnedQuirks):
    """Rules that follow the store; without one, or while it fails, it knows what this process has learned."""

    def __init__(self, store: Store | None, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock=clock)
        self._store = store
        self._sections: dict[str, str] = {}  # of the providers, as digests
        self._unsaved: dict[Learned, str] = {}  # with the digest of the provider's section: it may change meanwhile
        self._saving: asyncio.Task[None] | None = None
        self._recent: list[Learned] | None = None  # while the store is read: what it may not have had yet
        self._seen = -1  # the version of the store that was read last

    def adopt(self, sections: Mapping[str, Struct]) -> None:
        """Forget what was learned about a provider whose section has changed."""
        digests = {name: hashlib.sha256(repr(section).encode()).hexdigest()[:16] for name, section in sections.items()}
        changed = {name for name, digest in self._sections.items() if digests.get(name) != digest}
        for name in changed:
            self.forget(name)
        if self._recent is not None:
            self._recent[:] = [learned for learned in self._recent if learned.provider not in changed]
        self._sections = digests
        self._seen = -1

    def keep(self, learned: Learned) -> bool:
        is_new = super().keep(learned)
        if is_new and self._store is not None:
            self._unsaved[learned] = self._sections.get(learned.provider, "")
            if self._recent is not None:
                self._recent.append(learned)
            if self._saving is None or self._saving.done():
                self._saving = spawn(self._save_all(self._store), name="learned rules")
        return is_new

    def _remove(self, learned: Learned) -> None:
        super()._remove(learned)
        self._unsaved.pop(learned, None)

    async def watch(self, poll_s: float) -> None:
        """Follow what other processes learn and forget, forever."""
        if self._store is None:
            return
        is_failing = False
        while True:
            try:
                await self.load()
                is_failing = False
            except StoreError as error:
                if not is_failing:
                    log.warning("what upstreams reject could not be read from the store: %s", error)
                is_failing = True
            await asyncio.sleep(poll_s)

    async def load(self) -> None:
        """Read the store if it has changed; raises StoreError."""
        if self._store is None:
            return
        recent = self._recent = list(self._unsaved)
        try:
            version = await self._store.rules_version()
            if version == self._seen:
                return
            rows = await self._store.list_rules(int(self._clock()))
        finally:
            self._recent = None
        unsaved = dict(self._unsaved)
        self.forget()
        for row in rows:
            if self._sections.get(row.provider) == row.section:
                super().keep(Learned(row.tenant, row.provider, row.rule, row.path, row.model, float(row.learnt_at)))
        for learned in recent:
            super().keep(learned)
        self._unsaved = unsaved
        self._seen = version

    async def _save_all(self, store: Store) -> None:
        """Save one rule after the other: an upstream may refuse very many fields, of which the last ones are kept."""
        while self._unsaved:
            learned, section = next(iter(self._unsaved.items()))
            await self._save(store, learned, section)

    async def _save(self, store: Store, learned: Learned, section: str) -> None:
        row = RuleRow(
            learned.tenant,
            learned.provider,
            learned.rule,
            learned.path,
            learned.model,
            section,
            int(learned.time),
        )
        try:
            await store.add_rule(row, int(self._clock()))
        except StoreError as error:
            log.warning("a rule that was learned could not be stored: %s", error)
        finally:
            self._unsaved.pop(learned, None)
