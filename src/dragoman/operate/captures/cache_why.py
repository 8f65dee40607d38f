"""Explain why a prompt cache had less of a request than it could: from captures, else from the request's row."""

import asyncio
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.settings import Debug
from dragoman.operate import AdminError, NotFound
from dragoman.operate.captures.files import find_capture, list_captures, read_capture
from dragoman.proxy.capture.format import Capture, LookupName, UpstreamRequest, find_values
from dragoman.store import Store
from dragoman.store.usage_rows import Comparison, Condition, RequestSearch, UsageRow
from dragoman.translate.caching.comparison import CacheComparison, ReportedInput, compare_requests
from dragoman.translate.caching.outlook import Miss
from dragoman.translate.caching.request_pair import CapturedRequest
from dragoman.translate.profiles.model_table import find_profile
from dragoman.translate.protocols import PROTOCOLS

HIT, MISSED, UNKNOWN = "hit", "miss", "unknown"
MAX_OLDER = 50  # captures that are looked through for the one before, where there is no row

_SAME_TARGET = "Keep a session at one model, account and key: they do not share caches."
_STABLE = "Move what changes to the end of the prompt, or leave it out: all that follows it is paid for again."
REMEDIES = {
    "first": "Nothing: the first request of a session writes the cache.",
    "model": _SAME_TARGET,
    "account": _SAME_TARGET,
    "key": _SAME_TARGET,
    "expired": 'Shorter pauses, or a longer life: cache_ttl = "1h" of the provider, or the client\'s own setting.',
    "below_minimum": "Nothing: prompts as short as this are not cached.",
    "no_mark": 'Let the gateway set marks (cache = "auto" of the provider), or enable caching in the client.',
    "lookback": "Set fewer marks in the client: the gateway then sets one where the earlier request ended.",
    "tools": "Keep the tools and their order for the whole session.",
    "settings": "Keep thinking, effort, tool choice and format for the whole session.",
    "billing_line": "Set CLAUDE_CODE_ATTRIBUTION_HEADER=0 in the client's environment.",
    **dict.fromkeys(("date_or_time", "uuid", "hex_id", "path", "git_status"), _STABLE),
    "history_rewritten": "Keep the client from rewriting its history: check its settings of compaction and masking.",
    "form": "If the gateway has built the request, please report it, with a fixture of both captures.",
    "image_added": "Nothing, if the image is needed: the messages have to be read again.",
    "system": _STABLE,
    Miss.MESSAGES.value: _STABLE,
    "unknown": "Set debug.capture to all, and ask again about a later request of the session: captures tell more.",
}
_WORDS = {
    "first": "the first request of its session at this target",
    "model": "the session's last request went to another model",
    "account": "the session's last request went to another account or provider",
    "expired": "the cache of the earlier requests has expired",
    "below_minimum": "the prompt is shorter than what the model caches",
    "no_mark": "nothing was marked, so that nothing is cached",
    "lookback": "no mark is within 20 positions after what the earlier request wrote",
    "tools": "the tools have changed",
    "system": "the system prompt has changed",
    "settings": "a setting has changed that the vendor renders before the messages",
    Miss.MESSAGES.value: "an earlier message has changed",
    "unknown": "no cause was found for what was not read",
}


class CacheExplanation(Struct, frozen=True, kw_only=True):
    """Why a prompt cache had less of a request. What is not known is null."""

    verdict: str  # hit, miss or unknown
    request_id: str
    against: str | None  # the request that it was compared with
    source: str  # captures, or row
    route: str
    session: str
    cause: str | None
    detail: str
    remedy: str
    first_byte: int | None = None
    upstream_path: str | None = None  # JSON pointer in the upstream's body
    client_path: str | None = None
    earlier: str | None = None  # what stands there, without secrets
    later: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    input_tokens: int | None = None
    read_tokens: int | None = None
    possible_tokens: int | None = None


class _Known(Struct, frozen=True):
    """What is kept of a request; it has at least one of the two."""

    row: UsageRow | None
    capture: Capture | None

    @property
    def id(self) -> str:
        return self.row.request_id if self.row is not None else self.capture.request_id if self.capture else ""

    @property
    def route(self) -> str:
        return self.row.route if self.row is not None else self.capture.route if self.capture else ""

    @property
    def session(self) -> str:
        return self.row.session if self.row is not None else self.capture.session if self.capture else ""


async def explain_cache(store: Store | None, debug: Debug, which: str, against: str | None) -> CacheExplanation:
    """Compare a request with another one, by default with the one before it of its session at the same target.

    `which` and `against` are request ids, their beginnings or ends, or `last`. Raises NotFound.
    """
    request = await _find(store, debug, which)
    if against is not None:
        other: _Known | None = await _find(store, debug, against)
    else:
        other = await _find_before(store, debug, request)
    comparison = None
    if other is not None and other.capture is not None and request.capture is not None:
        comparison = await asyncio.to_thread(_compare, other, request)
    return _explain_row(request, other) if comparison is None else _explain(request, other, comparison)


async def _find(store: Store | None, debug: Debug, which: str) -> _Known:
    row = await _search(store, "=", which)
    capture = await _run(lambda: find_capture(debug, which if row is None else row.request_id))
    if row is None and capture is not None:
        row = await _search(store, "=", capture.request_id)
    for pattern in () if row is not None or capture is not None else _list_patterns(which):
        row = row or await _search(store, "matches", pattern)
    if row is None and capture is None:
        raise NotFound(f'There is no request "{which}": no row of usage and no capture has that id.')
    if row is not None and capture is None:
        id = row.request_id
        capture = await _run(lambda: find_capture(debug, id))
    return _Known(row, capture)


def _list_patterns(which: str) -> tuple[str, ...]:
    if which == "last":
        return ("*",)
    plain = which.replace("*", "")
    return (f"{plain}*", f"*{plain}") if plain else ()


async def _search(store: Store | None, comparison: Comparison, id: str) -> UsageRow | None:
    if store is None:
        return None
    page = await store.search_requests(RequestSearch(conditions=(Condition("request_id", comparison, id),), limit=1))
    return page.rows[0] if page.rows else None


async def _run(find: Callable[[], Capture]) -> Capture | None:
    try:
        return await asyncio.to_thread(find)
    except AdminError:  # not captured, or not readable: the row is left
        return None


async def _find_before(store: Store | None, debug: Debug, request: _Known) -> _Known | None:
    """Return the request of the same session, key and target before this one that its upstream answered."""
    row = request.row
    if row is None or store is None:
        capture = await asyncio.to_thread(_find_captured_before, debug, request.capture)
        return None if capture is None else _Known(None, capture)
    conditions = [Condition(name, "=", getattr(row, name)) for name in ("key", "session", "provider", "model")]
    conditions += [Condition("input_tokens", ">", 0)]
    if not row.session:
        conditions.append(Condition("client", "=", row.client))
    page = await store.search_requests(RequestSearch(conditions=tuple(conditions), after=row.id, limit=1))
    if not page.rows:
        return None
    before = page.rows[0]
    return _Known(before, await _run(lambda: find_capture(debug, before.request_id)))


def _find_captured_before(debug: Debug, capture: Capture | None) -> Capture | None:
    if capture is None:
        return None
    older = [kept for kept in list_captures(debug) if kept.summary.time < capture.time]
    for kept in reversed(older[-MAX_OLDER:]):
        if kept.summary.route == capture.route and kept.summary.outcome == "ok":
            found = read_capture(kept.file)
            if found.session == capture.session:
                return found
    return None


def _compare(earlier: _Known, later: _Known) -> CacheComparison | None:
    """Return None if the body of one of them was not kept."""
    sides = _read_sent(earlier, first=False), _read_sent(later, first=True)
    if sides[0] is None or sides[1] is None:
        return None
    row = later.row
    reported = ReportedInput() if row is None else ReportedInput(row.input_tokens, row.cache_read_tokens)
    return compare_requests(sides[0], sides[1], reported, find_profile(sides[1].model))


def _read_sent(known: _Known, *, first: bool) -> CapturedRequest | None:
    """Return the upstream request that was answered: of several, such as rounds of tools, the first or the last."""
    capture = known.capture
    if capture is None:
        return None
    answered = [one for one in capture.upstream_requests if _is_answered(one) and one.route == known.route]
    if not answered:
        return None
    sent = answered[0 if first else -1]
    upstream = PROTOCOLS[sent.protocol].upstream if sent.protocol in PROTOCOLS else None
    if upstream is None or upstream.prompts is None or not sent.body:
        return None
    provider, _, model = sent.route.partition("/")
    members = find_values(capture, LookupName.CREDENTIAL, provider)
    return CapturedRequest(
        reader=upstream.prompts,
        provider=provider,
        model=model,
        account=str(members[-1]) if members else "",
        key="" if known.row is None else known.row.key,
        started_at=capture.started_at,
        body=sent.body,
        client_body=capture.request.body,
        is_passed=capture.passthrough,
    )


def _is_answered(request: UpstreamRequest) -> bool:
    return request.response is not None and request.response.status == 200


def _explain(request: _Known, other: _Known | None, found: CacheComparison) -> CacheExplanation:
    row, difference = request.row, found.difference
    cause, detail = found.cause, found.detail
    if cause == "unknown" and row is not None and row.cache_miss not in (None, Miss.UNKNOWN.value):
        cause, detail = row.cache_miss, _WORDS.get(str(row.cache_miss), "")
    return replace(
        _begin(request, other, "captures", cause),
        detail=detail,
        first_byte=None if difference is None else difference.byte,
        upstream_path=None if difference is None else difference.upstream_path,
        client_path=None if difference is None else difference.client_path,
        earlier=None if difference is None else difference.earlier,
        later=None if difference is None else difference.later,
        tokens_before=found.tokens_before,
        tokens_after=found.tokens_after,
        input_tokens=None if row is None else row.input_tokens,
        read_tokens=found.read_tokens,
        possible_tokens=found.possible_tokens,
    )


def _explain_row(request: _Known, other: _Known | None) -> CacheExplanation:
    """Answer without two captures: the row knows cause and block by digests, not what stands there."""
    row = request.row
    cause: str | None = Miss.UNKNOWN.value
    if row is not None and (row.cache_miss is not None or row.input_tokens is not None):
        cause = row.cache_miss
    detail = "the upstream read what it could from its cache" if cause is None else _WORDS.get(cause, "")
    possible, whole = (None, None) if row is None else (row.cache_possible_tokens, row.input_tokens)
    return replace(
        _begin(request, other, "row", cause),
        detail=detail,
        upstream_path=None if row is None else row.cache_miss_path,
        tokens_before=possible,
        tokens_after=None if whole is None or possible is None else whole - possible,
        input_tokens=whole,
        read_tokens=None if row is None else row.cache_read_tokens,
        possible_tokens=possible,
    )


def _begin(request: _Known, other: _Known | None, source: str, cause: str | None) -> CacheExplanation:
    """Return what is known without looking at the prompts."""
    return CacheExplanation(
        verdict=HIT if cause is None else UNKNOWN if cause == Miss.UNKNOWN.value else MISSED,
        request_id=request.id,
        against=None if other is None else other.id,
        source=source,
        route=request.route,
        session=request.session,
        cause=cause,
        detail="",
        remedy="" if cause is None else REMEDIES.get(cause, ""),
    )
