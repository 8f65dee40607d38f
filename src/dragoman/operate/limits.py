"""The limits of all scopes: list them with what is spent, set and remove those of the store."""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Annotated

from msgspec import Meta, Struct

from dragoman.config.limit_sections import find_name_problem
from dragoman.config.limits import (
    MAX_AMOUNT,
    NANO,
    NO_LIMITS,
    DollarLimit,
    LimitName,
    Limits,
    WholeLimit,
    format_amount,
    to_values,
)
from dragoman.config.problems import list_known, suggest
from dragoman.operate import Conflict, InvalidArgument, NotFound, VersionMismatch
from dragoman.operate.key_fields import MAX_EXPIRY
from dragoman.store import Store
from dragoman.store.audit import AuditRow
from dragoman.store.limit_tables import ALL, EACH, EACH_USER, KEY, PROVIDER, TEAM, USER, LimitRow
from dragoman.store.meter import Level, Meter
from dragoman.store.spending import FOREVER_MS, UNITS, SpendingAdjustment
from dragoman.tenancy.policies import LimitOrigin, Policies, join_providers, split_providers
from dragoman.tenancy.windows import Window, WindowKind, find_window, name_counter, name_scope

SCOPES = (ALL, TEAM, EACH_USER, USER, KEY, PROVIDER)
ORDER = {name: place for place, name in enumerate(LimitName)}  # in which limits are listed


class LimitTarget(Struct, frozen=True):
    """What limits are set for. `id` is how the store knows it, `name` how it is shown."""

    scope: str
    id: str
    name: str

    @property
    def title(self) -> str:
        match self.scope, self.id:
            case (scope, _) if scope == ALL:
                return "all keys together"
            case (scope, id) if id == EACH:
                return f"each {scope}"
            case (scope, _) if scope == EACH_USER:
                return f'each user of the team "{self.name}"'
            case _:
                return f'the {self.scope} "{self.name}"'


class ListedLimit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A limit, in its own unit: dollars, credits, tokens, requests.

    What is spent and reserved is null for a default, which each counts for itself, and while it is not known.
    `set_for` is the scope and name of the default that this limit comes from; left out if it is the scope's own.
    """

    scope: str
    name: str
    limit: str
    value: int | float
    spent: int | float | None
    reserved: int | float | None
    resets_at: int | None  # Unix seconds
    origin: LimitOrigin
    set_for: str = ""


class LimitPage(Struct, frozen=True):
    limits: list[ListedLimit]
    next: str | None


class StoredLimits(Struct, frozen=True, kw_only=True):
    """The limits that the store has for a scope, and those that the file sets, which count instead."""

    scope: str
    name: str
    limits: dict[str, int | float]
    in_file: dict[str, int | float]
    version: int


class Forgiveness(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is forgiven of what was spent: one amount, in its own unit."""

    usd: DollarLimit | None = None
    tokens: WholeLimit | None = None
    credits: WholeLimit | None = None
    until: int | None = None  # Unix seconds, after which it counts again; null: for good
    reason: Annotated[str, Meta(max_length=200)] = ""


class Forgiven(Struct, frozen=True, kw_only=True):
    """What was forgiven, in every window that has this moment."""

    scope: str
    name: str
    unit: str
    amount: int | float
    until: int | None
    reason: str


class FoundLimit(Struct, frozen=True):
    """A limit before its level is read."""

    target: LimitTarget
    limit: LimitName
    amount: int
    origin: LimitOrigin
    set_for: str = ""


def find_target(policies: Policies, providers: Collection[str], scope: str, name: str) -> LimitTarget:
    """Return what a scope and a name stand for; raises InvalidArgument or NotFound."""
    if scope == ALL:
        if name not in ("", ALL, EACH):
            raise InvalidArgument('The scope all has no name: write "all".', "name")
        return LimitTarget(ALL, ALL, ALL)
    if scope in (USER, KEY) and name == EACH:
        return LimitTarget(scope, EACH, EACH)
    match scope:
        case "team" | "each_user":
            if name not in policies.teams:
                raise _unknown("team", name, policies.teams, "teams")
            return LimitTarget(scope, name, name)
        case "user":
            problem = find_name_problem(name)
            if problem is not None:
                raise InvalidArgument(f"user: {problem}", "name")
            return LimitTarget(USER, name, name)
        case "key":
            keys = [key for key in policies.keys if name in (key.id, key.name)]
            found = next((key for key in keys if key.id == name), keys[0] if keys else None)
            if found is None:
                raise _unknown("valid key", name, [key.name for key in policies.keys], "keys")
            return LimitTarget(KEY, found.id, found.name)
        case "provider":
            for provider in split_providers(name):
                if provider not in providers:
                    raise _unknown("provider", provider, providers, "providers")
            joined = join_providers(split_providers(name))
            return LimitTarget(PROVIDER, joined, joined)
    others = suggest(scope, SCOPES) or list_known(SCOPES, "scopes")
    raise InvalidArgument(f"There is no scope {scope[:80]!r}{others}", "scope")


class ScopedLimits(Struct, frozen=True):
    """The limits of each scope: those of the store, which can be changed, and those of the file."""

    store: Store
    policies: Policies

    async def read(self, target: LimitTarget) -> StoredLimits:
        """Return what the store has for a scope."""
        rows = (await self.store.read_policies()).limits
        found = (row for row in rows if (row.scope, row.name) == (target.scope, target.id))
        return self._describe(target, next(found, LimitRow(target.scope, target.id, NO_LIMITS)))

    async def replace(
        self, target: LimitTarget, limits: Limits, version: int | None = None, audit: AuditRow | None = None
    ) -> StoredLimits:
        """Replace the limits that the store has for a scope; raises Conflict for one that the file sets."""
        in_file = self.policies.find_in_file(target.scope, target.id)
        for name, _ in limits.items():
            if in_file.get(name) is not None:
                raise Conflict(f"{name} of {target.title} is set in dragoman.toml: change it there.")
        row = await self.store.set_limits(LimitRow(target.scope, target.id, limits), version, audit)
        if row is None:
            raise VersionMismatch(f"The limits of {target.title} were changed since you read them.")
        return self._describe(target, row)

    async def remove(
        self, target: LimitTarget, version: int | None = None, audit: AuditRow | None = None
    ) -> StoredLimits:
        """Remove the limits that the store has for a scope; raises NotFound or Conflict if only the file has some."""
        if not (await self.read(target)).limits:
            if self.policies.find_in_file(target.scope, target.id):
                raise Conflict(f"The limits of {target.title} are set in dragoman.toml: remove them there.")
            raise NotFound(f"There are no limits of {target.title}.")
        return await self.replace(target, NO_LIMITS, version, audit)

    async def forgive(self, target: LimitTarget, given: Forgiveness, audit: AuditRow | None = None) -> Forgiven:
        """Take an amount off what a scope has spent; the windows of all its limits in that unit have more room then."""
        if target.id == EACH or target.scope == EACH_USER:
            raise InvalidArgument(f"{target.title} counts for itself: name one.", "name")
        amounts = {unit: value for unit in UNITS if (value := getattr(given, unit)) is not None}
        if len(amounts) != 1:
            raise InvalidArgument(f"Give one amount, of {', '.join(UNITS)}.", "usd")
        [(unit, value)] = amounts.items()
        scale = 1 if unit == "tokens" else NANO
        amount = min(round(Decimal(str(value)) * scale), MAX_AMOUNT)
        now = time.time()
        if given.until is not None and not now < given.until <= MAX_EXPIRY:
            raise InvalidArgument("until must be a time in the future, in Unix seconds.", "until")
        until_ms = FOREVER_MS if given.until is None else given.until * 1000
        adjustment = SpendingAdjustment(int(now * 1000), name_target(target), unit, -amount, until_ms, given.reason)
        await self.store.add_adjustment(adjustment, audit)
        return Forgiven(
            scope=target.scope, name=target.name, unit=unit, amount=value, until=given.until, reason=given.reason
        )

    def _describe(self, target: LimitTarget, row: LimitRow) -> StoredLimits:
        return StoredLimits(
            scope=target.scope,
            name=target.name,
            limits=to_values(row.limits),
            in_file=to_values(self.policies.find_in_file(target.scope, target.id)),
            version=row.version,
        )


def list_limits(
    policies: Policies, scope: str | None = None, name: str | None = None, *, effective: bool = False
) -> list[FoundLimit]:
    """Return every limit that is set, or those of a scope, and of the team, user, key or providers of a name.

    If `effective`, those that users and keys get by default instead of defaults.
    """
    names = {key.id: key.name for key in policies.keys}
    found = [
        FoundLimit(LimitTarget(one.scope, one.name, names.get(one.name, one.name)), one.limit, one.amount, one.origin)
        for one in policies.list_limits()
        if one.scope != KEY or one.name == EACH or one.name in names
    ]
    if effective:
        own = [one for one in found if one.target.id != EACH and one.target.scope != EACH_USER]
        found = [*own, *_list_inherited(policies, found)]
    accepted = (name, join_providers(split_providers(name or "")))  # providers in any order
    found = [
        one
        for one in found
        if scope in (None, one.target.scope) and (name is None or one.target.name in accepted or one.target.id == name)
    ]
    return sorted(found, key=_sort_key)


def _sort_key(found: FoundLimit) -> tuple[int, str, str, int]:
    target = found.target
    return SCOPES.index(target.scope), target.name, target.id, ORDER[found.limit]


def _list_inherited(policies: Policies, found: Iterable[FoundLimit]) -> Iterator[FoundLimit]:
    """Yield the defaults of users and keys that have no limit of their own."""
    defaults: dict[tuple[str, str], list[FoundLimit]] = {}
    for one in found:
        defaults.setdefault((one.target.scope, one.target.id), []).append(one)
    for user in policies.list_users():
        sources = (EACH_USER, policies.find_team_of_user(user)), (USER, EACH)
        yield from _inherit(LimitTarget(USER, user, user), policies.find_limits(USER, user), sources, defaults)
    for key in policies.keys:
        if key.role != "admin":
            target = LimitTarget(KEY, key.id, key.name)
            yield from _inherit(target, policies.find_limits(KEY, key.id), ((KEY, EACH),), defaults)


def _inherit(
    target: LimitTarget,
    own: Limits,
    sources: Sequence[tuple[str, str]],
    defaults: Mapping[tuple[str, str], Sequence[FoundLimit]],
) -> Iterator[FoundLimit]:
    known = {name for name, _ in own.items()}
    for source in sources:
        for one in defaults.get(source, ()):
            if one.limit not in known:
                known.add(one.limit)
                yield FoundLimit(target, one.limit, one.amount, one.origin, ":".join(source))


async def read_levels(policies: Policies, meter: Meter | None, found: Sequence[FoundLimit]) -> list[ListedLimit]:
    """Return limits with what is spent and reserved of each; without a meter, that is not known."""
    now = time.time()
    counters = {index: name_limit_counter(policies, one, now) for index, one in enumerate(found) if _is_counted(one)}
    counted = list(dict.fromkeys(counters.values()))
    levels = {} if meter is None or not counted else {level.counter: level for level in await meter.read(counted)}
    return [_list_one(policies, one, levels.get(counters.get(index, "")), now) for index, one in enumerate(found)]


def name_limit_counter(policies: Policies, found: FoundLimit, now_s: float) -> str:
    """Return the name of the counter of a limit now."""
    scope = name_target(found.target)
    window = find_limit_window(policies, found.limit, now_s)
    return (
        f"{scope}:{found.limit}" if window is None else name_counter(scope, found.limit.partition("_per_")[0], window)
    )


def name_target(target: LimitTarget) -> str:
    """Return by what the counters of a scope begin."""
    parts = () if target.scope == ALL else split_providers(target.id) if target.scope == PROVIDER else (target.id,)
    return name_scope(target.scope, *parts)


def find_limit_window(policies: Policies, limit: LimitName, now_s: float) -> Window | None:
    """Return the window in which a limit counts now; None for rates and slots."""
    kind = limit.partition("_per_")[2]
    return find_window(WindowKind(kind), now_s, policies.time_zone) if kind in set(WindowKind) else None


def _is_counted(found: FoundLimit) -> bool:
    return found.target.id != EACH and found.target.scope != EACH_USER


def _list_one(policies: Policies, found: FoundLimit, level: Level | None, now_s: float) -> ListedLimit:
    window = find_limit_window(policies, found.limit, now_s)
    is_slot = found.limit is LimitName.CONCURRENT
    spent = None if level is None else level.running if is_slot else level.spent
    reserved = None if level is None else 0 if is_slot else level.reserved
    end_ms = None if window is None or not _is_counted(found) else window.end_ms
    return ListedLimit(
        scope=found.target.scope,
        name=found.target.name,
        limit=found.limit.value,
        value=format_amount(found.limit, found.amount),
        spent=None if spent is None else format_amount(found.limit, spent),
        reserved=None if reserved is None else format_amount(found.limit, reserved),
        resets_at=None if end_ms is None else end_ms // 1000,
        origin=found.origin,
        set_for=found.set_for,
    )


def _unknown(kind: str, name: str, known: Iterable[str], command: str) -> NotFound:
    advice = suggest(name, list(known)) or f"; `dragoman {command} list` shows all"
    return NotFound(f'There is no {kind} "{name}"{advice}.')
