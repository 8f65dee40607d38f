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
        self._unsaved: dict[Learned, None] = {}
        self._seen = -1  # the version of the store that was read last

    def adopt(self, sections: Mapping[str, Struct]) -> None:
        """Forget what was learned about a provider whose section has changed."""
        digests = {name: hashlib.sha256(repr(section).encode()).hexdigest()[:16] for name, section in sections.items()}
        changed = {name for name, digest in self._sections.items() if digests.get(name) != digest}
        for name in changed:
            self.forget(name)
        self._unsaved = {learned: None for learned in self._unsaved if learned.provider not in changed}
        self._sections = digests
        self._seen = -1

    def keep(self, learned: Learned) -> bool:
        is_new = super().keep(learned)
        if is_new and self._store is not None:
            self._unsaved[learned] = None
            section = self._sections.get(learned.provider, "")  # now: it may have changed before the task runs
            spawn(self._save(self._store, learned, section), name="learned rule")
        return is_new

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
        version = await self._store.rules_version()
        if version == self._seen:
            return
        rows = await self._store.list_rules(int(self._clock()))
        unsaved = list(self._unsaved)
        self.forget()
        for row in rows:
            if self._sections.get(row.provider) == row.section:
                super().keep(Learned(row.tenant, row.provider, row.rule, row.path, row.model, float(row.learnt_at)))
        for learned in unsaved:
            super().keep(learned)
        self._seen = version

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
