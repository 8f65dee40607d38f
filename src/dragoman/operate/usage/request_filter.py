"""The filter language of the list of requests: `route:kiro/* outcome:!ok ttft>5s cost>0.1 after:2h`."""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from msgspec import Struct

from dragoman.operate import InvalidArgument
from dragoman.store.usage_rows import Comparison, Condition, RequestSearch, UsageSpan, Value
from dragoman.tenancy.keys import ENVIRONMENT_KEY, KeyRow

MAX_CHARACTERS = 2000
MAX_TERMS = 30
TERM = re.compile(r'([a-z_]+)(:!?|<=|>=|<|>)("[^"]*"|\S*)(?=\s|$)')
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)?")
UNIT_MS = {"ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6, "d": 8.64e7, "w": 6.048e8}
NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,12})?")
MAX_NUMBER = 2**62
COMPARISONS: dict[str, Comparison] = {"<": "<", "<=": "<=", ">": ">", ">=": ">="}

TEXTS = (
    *("route", "provider", "model", "requested_model", "key", "client", "client_protocol", "upstream_protocol"),
    *("outcome", "error_code", "request_id", "client_request_id", "run", "usage_source"),
    *("session", "agent", "parent_agent", "user", "team", "tags", "lease", "cache_miss", "cache_miss_path"),
)
TIMES = ("after", "before")


class Number(Struct, frozen=True):
    """A field that is compared with a number, and the factor of its column."""

    column: str
    factor: float = 1.0
    is_duration: bool = False


NUMBERS = {
    "ttft": Number("ttft_ms", is_duration=True),
    "duration": Number("duration_ms", is_duration=True),
    "cost": Number("cost_nano_usd", 1e9),
    "input": Number("input_tokens"),
    "output": Number("output_tokens"),
    "reasoning": Number("reasoning_tokens"),
    "cache_read": Number("cache_read_tokens"),
    "cache_write": Number("cache_write_tokens"),
    "cache_possible": Number("cache_possible_tokens"),
    "cache_saved": Number("cache_saved_nano_usd", 1e9),
    "credits": Number("credits"),
    "losses": Number("losses"),
    "attempts": Number("attempts"),
    "rounds": Number("rounds"),
    "web_searches": Number("web_searches"),
    "web_fetches": Number("web_fetches"),
}
NAMES = (*TEXTS, *NUMBERS, "stream", *TIMES)


class Term(Struct, frozen=True):
    name: str
    operator: str
    value: str
    text: str  # as it was written


def parse_filter(text: str, now: datetime, key_names: Mapping[str, str]) -> RequestSearch:
    """Return the search that a filter describes; all terms must hold. `key_names` has the names of keys by their ids.

    Raises InvalidArgument, which names the term.
    """
    search = RequestSearch()
    since, until, conditions = search.since_ms, search.until_ms, []
    for term in _split(text):
        match term.name:
            case "after":
                since = max(since, _parse_time(term, now))
            case "before":
                until = min(until, _parse_time(term, now))
            case "stream":
                values: dict[str, Value] = {"yes": True, "no": False}
                if term.operator not in (":", ":!") or term.value not in values:
                    raise InvalidArgument(f"{term.text!r}: write stream:yes or stream:no.")
                conditions.append(Condition("stream", "=", values[term.value], term.operator == ":!"))
            case "key":
                conditions.append(_find_keys(_parse_text(term), key_names))
            case name if name in NUMBERS:
                conditions.append(_parse_number(term, NUMBERS[name]))
            case _:
                conditions.append(_parse_text(term))
    return RequestSearch(since, until, tuple(conditions))


def name_keys(rows: Iterable[KeyRow]) -> dict[str, str]:
    """Return the names of keys by their ids; of several with a name, one that is not revoked, or the newest, has it."""
    names, named = dict[str, str](), set[str]()
    for row in sorted(rows, key=lambda row: (row.revoked_at is None, row.created_at), reverse=True):
        names[row.id] = row.id if row.name in named else row.name
        named.add(row.name)
    return names | {ENVIRONMENT_KEY: str(ENVIRONMENT_KEY)}


def restrict_usage(span: UsageSpan, search: RequestSearch) -> UsageSpan:
    """Return what of a span a filter leaves, never more than the span has.

    Raises InvalidArgument for a filter by more than one key, user, team and provider, since there are no sums of that.
    """
    only = {"key": span.key, "user": span.user, "team": span.team, "provider": span.provider}
    since, until = max(span.since_ms, search.since_ms), min(span.until_ms, search.until_ms)
    for condition in search.conditions:
        name, value = condition.field, condition.value
        is_one = condition.comparison == "=" or value == ()
        if name not in only or not is_one or condition.negated:
            raise InvalidArgument(
                "Usage is filtered by one each of key:, user:, team: and provider:VALUE, and by after: and before:; "
                f"not by {name} {'not ' if condition.negated else ''}{condition.comparison} {str(value)[:80]!r}."
            )
        if value == () or only[name] not in (None, value):
            until = since
        else:
            only[name] = str(value)
    return UsageSpan(since, max(since, until), only["key"], only["team"], only["user"], only["provider"])


def _split(text: str) -> Iterable[Term]:
    if len(text) > MAX_CHARACTERS:
        raise InvalidArgument(f"The filter has more than {MAX_CHARACTERS} characters.")
    place, found = 0, 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        found += 1
        if found > MAX_TERMS:
            raise InvalidArgument(f"The filter has more than {MAX_TERMS} terms.")
        match = TERM.match(text, place)
        word = text[place:].split(maxsplit=1)[0]
        place = match.end() if match else place + len(word)
        if match is None and re.fullmatch(r"[^:<>\"]+", word):
            yield Term("request_id", ":", word, word)  # a word alone is a request id
        elif match is None or match[1] not in NAMES or not match[3].strip('"'):
            raise InvalidArgument(f"{word[:80]!r} is not a filter. Write FIELD:VALUE, FIELD:!VALUE or FIELD>NUMBER "
                                  f"with one of {', '.join(NAMES)}.")  # fmt: skip
        else:
            yield Term(match[1], match[2], match[3].strip('"'), match[0])


def _parse_text(term: Term) -> Condition:
    if term.operator not in (":", ":!"):
        raise InvalidArgument(f"{term.text!r}: {term.name} is text, so write {term.name}:VALUE.")
    is_negated = term.operator == ":!"
    if "*" in term.value:
        return Condition(term.name, "matches", term.value, is_negated)
    return Condition(term.name, "=", term.value, is_negated)


def _find_keys(condition: Condition, names: Mapping[str, str]) -> Condition:
    """Replace the name of a key, or a pattern, by the ids of the keys that have it."""
    requested = str(condition.value)
    fits: Callable[[str], bool] = lambda name: name == requested  # noqa: E731
    if condition.comparison == "matches":
        pattern = requested.replace("[", "[[]").replace("?", "[?]")
        fits = lambda name: fnmatchcase(name, pattern)  # noqa: E731
    ids = tuple(key for key, name in names.items() if fits(name) or fits(key))
    if len(ids) == 1:
        return Condition("key", "=", ids[0], condition.negated)
    return Condition("key", "in", ids, condition.negated)


def _parse_number(term: Term, number: Number) -> Condition:
    if number.is_duration:
        value = _parse_duration(term)
    elif NUMBER.fullmatch(term.value):
        value = float(term.value) * number.factor
    else:
        raise InvalidArgument(f"{term.text!r}: {term.name} must be a number, such as {term.name}>10.")
    whole = min(round(value), MAX_NUMBER) if number.column != "credits" else value
    if term.operator in COMPARISONS:
        return Condition(number.column, COMPARISONS[term.operator], whole)
    return Condition(number.column, "=", whole, term.operator == ":!")


def _parse_duration(term: Term) -> float:
    match = DURATION.fullmatch(term.value)
    if match is None or len(term.value) > 20:
        raise InvalidArgument(f"{term.text!r}: {term.name} must be a duration, such as 500ms, 5s, 2m or 2h.")
    return float(match[1]) * UNIT_MS[match[2] or "s"]


def _parse_time(term: Term, now: datetime) -> int:
    """Return milliseconds since the epoch: of a time, a day (in UTC if it names no zone), or that long ago."""
    if term.operator == ":" and DURATION.fullmatch(term.value) and not term.value.isdigit():
        return max(0, round(now.timestamp() * 1000 - _parse_duration(term)))
    try:
        moment = datetime.fromisoformat(term.value)
    except ValueError:
        moment = None
    if moment is None or term.operator != ":" or moment.year < 1970:
        raise InvalidArgument(
            f"{term.text!r}: write {term.name}:2h (that long ago), {term.name}:2026-11-15 or "
            f"{term.name}:2026-11-15T09:30Z."
        )
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
