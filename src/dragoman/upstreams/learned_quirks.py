"""What upstreams have rejected: later requests are made without it from the start."""

import time
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from dragoman.store.learned_rules import MAX_RULES, MAX_RULES_OF_ONE, RULE_LIFE_S
from dragoman.upstreams.rejections.rules import BY_ID, Found, RuleScope

KEPT_S = float(RULE_LIFE_S)  # then the full form is tried again, because servers are upgraded


class Learned(Struct, frozen=True):
    """A rule that a tenant has learned about a provider."""

    tenant: str
    provider: str
    rule: str
    path: str
    model: str  # empty: every model
    time: float  # when it was learned, in seconds since the epoch

    @property
    def until(self) -> float:
        return self.time + KEPT_S

    @property
    def found(self) -> Found:
        return Found(self.rule, self.path)


_Key = tuple[str, str, str, str, str]  # tenant, provider, rule, path, model


class LearnedQuirks:
    """What upstreams have rejected, by tenant and provider, kept from request to request in this process.

    A rule is learned from an upstream's refusal, and a refusal may repeat what the client wrote: one client key must
    not be able to change how another key's requests are made. Called in every request: nothing here waits.
    `everywhere` holds, by provider, what is known for every tenant, as text.
    """

    def __init__(
        self, everywhere: Mapping[str, Iterable[str]] | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._everywhere = {name: tuple(map(parse_rule, texts)) for name, texts in (everywhere or {}).items()}
        self._clock = clock
        self.counts: dict[str, int] = {}  # by rule: how many were learned here
        self._all: dict[_Key, Learned] = {}  # the oldest first
        self._by_owner: dict[tuple[str, str], dict[_Key, Learned]] = {}

    def find(self, tenant: str, provider: str, model: str) -> tuple[Found, ...]:
        """Return the rules that hold for this tenant's requests to the provider's model, in the order of learning."""
        own = self._by_owner.get((tenant, provider))
        known = self._everywhere.get(provider)
        if own is None and known is None:  # nearly always
            return ()
        found = [rule for rule, of_model in known or () if of_model in ("", model)]
        if own is not None:
            now = self._clock()
            for learned in [learned for learned in own.values() if learned.until <= now]:
                self._remove(learned)
            found += [learned.found for learned in own.values() if learned.model in ("", model)]
        return tuple(found)

    def add(self, tenant: str, provider: str, model: str, found: Found) -> None:
        """Keep a rule with which the provider has answered this tenant's request."""
        scope = BY_ID[found.rule].scope
        if scope is not RuleScope.REQUEST:
            of_model = model if scope is RuleScope.MODEL else ""
            if self.keep(Learned(tenant, provider, found.rule, found.path, of_model, self._clock())):
                self.counts[found.rule] = self.counts.get(found.rule, 0) + 1

    def keep(self, learned: Learned) -> bool:
        """Keep a rule, and return whether it is new; one that is known already keeps its time."""
        key = _make_key(learned)
        if key in self._all:
            return False
        own = self._by_owner.setdefault((learned.tenant, learned.provider), {})
        self._all[key] = own[key] = learned
        if len(own) > MAX_RULES_OF_ONE:
            self._remove(next(iter(own.values())))
        if len(self._all) > MAX_RULES:
            self._remove(next(iter(self._all.values())))
        return True

    def forget(self, provider: str | None = None) -> None:
        """Forget what was learned about a provider, or of all."""
        for learned in [learned for learned in self._all.values() if provider in (None, learned.provider)]:
            self._remove(learned)

    def list_all(self) -> list[Learned]:
        """Return what is known now, the oldest first."""
        now = self._clock()
        return [learned for learned in self._all.values() if learned.until > now]

    def list_known_to(self, tenant: str) -> dict[str, tuple[str, ...]]:
        """Return everything that this tenant has learned, by provider, as text; for captures."""
        known: dict[str, list[str]] = {}
        for provider, rules in self._everywhere.items():
            known[provider] = [format_rule(found, model) for found, model in rules]
        for (owner, provider), own in self._by_owner.items():
            if owner == tenant:
                texts = [format_rule(learned.found, learned.model) for learned in own.values()]
                known.setdefault(provider, []).extend(texts)
        return {provider: tuple(texts) for provider, texts in sorted(known.items()) if texts}

    def _remove(self, learned: Learned) -> None:
        key = _make_key(learned)
        del self._all[key]
        own = self._by_owner[learned.tenant, learned.provider]
        del own[key]
        if not own:
            del self._by_owner[learned.tenant, learned.provider]


def _make_key(learned: Learned) -> _Key:
    return learned.tenant, learned.provider, learned.rule, learned.path, learned.model


def format_rule(found: Found, model: str) -> str:
    """Return a rule as one line: its id, its path, and its model, if it is of one."""
    return f"{found.rule} {found.path} {model}".rstrip()


def parse_rule(text: str) -> tuple[Found, str]:
    """Return what `format_rule` has written; captures of earlier versions have a quirk, perhaps with a model."""
    rule, _, rest = text.partition(" ")
    if not rest:
        rule, _, model = rule.partition(":")
        return Found(rule), model
    path, _, model = rest.partition(" ")
    return Found(rule, path), model
