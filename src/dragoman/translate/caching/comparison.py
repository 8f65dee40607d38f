"""Compare two upstream requests of a session, and say why a prompt cache had less of the later one than it could.

Pure: what is compared are bodies that were captured, and what the upstream reported.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import msgspec
from msgspec import Struct

from dragoman.translate.caching.client_places import find_in_client
from dragoman.translate.caching.lookback import find_window
from dragoman.translate.caching.outlook import READ_SHARE, Miss
from dragoman.translate.caching.placing import BYTES_PER_TOKEN
from dragoman.translate.caching.rendering import read_fields
from dragoman.translate.caching.request_pair import (
    CapturedRequest,
    ComparedBlock,
    DifferentValues,
    RequestPair,
    count_common,
    count_common_bytes,
    name_tool,
    pair_requests,
)
from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.translate.framing.redaction import mask_text
from dragoman.translate.hub.profile import Profile
from dragoman.translate.hub.request import Json

MESSAGES = Miss.MESSAGES.value
EXCERPT = 40  # characters on each side of the first difference
WINDOW = 4096  # characters on each side in which secrets are looked for
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class ReportedInput(Struct, frozen=True):
    """What the upstream reported of the later request; None: it did not."""

    tokens: int | None = None
    read: int | None = None


class FirstDifference(Struct, frozen=True):
    """Where the later request differs first, in the order in which the vendor reads it."""

    byte: int  # of the rendered request
    upstream_path: str  # JSON pointer in the upstream's body
    client_path: str | None  # the same in the client's body; None: it is not found there
    earlier: str  # the characters around it, without secrets
    later: str


class CacheComparison(Struct, frozen=True):
    cause: str | None  # None: a hit
    detail: str
    difference: FirstDifference | None  # None: the later request continues the earlier one
    tokens_before: int  # that are the same
    tokens_after: int
    possible_tokens: int
    read_tokens: int | None


Cause = tuple[str, str]  # its name, and what was found


def compare_requests(
    earlier: CapturedRequest, later: CapturedRequest, reported: ReportedInput, profile: Profile
) -> CacheComparison:
    """Return what the cache could have had of the later request, and why it had less; cause None: it had it."""
    pair = pair_requests(earlier, later)
    sizes = [len(block.text) for block in pair.second]
    total, same = sum(sizes), sum(sizes[: pair.common])
    byte = same + count_common_bytes(pair)
    tokens = total // BYTES_PER_TOKEN if reported.tokens is None else reported.tokens
    before = round(tokens * byte / (total or 1))
    possible = round(tokens * same / (total or 1))
    is_same_target = _find_move(pair) is None
    is_hit = is_same_target and pair.place is None and reported.read is not None
    if is_hit and (reported.read or 0) >= READ_SHARE * possible and total:
        cause, detail = None, "the upstream read what it could from its cache"
    else:
        cause, detail = _find_cause(pair, tokens, profile) if total else ("unknown", "nothing of it can be compared")
    difference = None if pair.place is None else _describe(pair, pair.place, byte)
    return CacheComparison(cause, detail, difference, before, tokens - before, possible, reported.read)


def _describe(pair: RequestPair, place: DifferentValues, byte: int) -> FirstDifference:
    earlier, later = pair.texts
    at = count_common(earlier, later)
    return FirstDifference(
        byte,
        place.pointer,
        place.pointer if pair.later.is_passed else find_in_client(pair, place, later, at),
        _cut_around(earlier, at),
        _cut_around(later, at),
    )


def _cut_around(text: str, at: int) -> str:
    """Return the characters around a place; secrets are masked before anything is cut off them."""
    start = max(0, at - WINDOW)
    masked = mask_text(text[start : at + WINDOW])
    at -= start
    return masked[max(0, at - EXCERPT) : at + EXCERPT]


# Causes: the first that fits is the one


def _find_cause(pair: RequestPair, tokens: int, profile: Profile) -> Cause:
    checks: tuple[Callable[[], Cause | None], ...] = (
        lambda: _find_move(pair),
        lambda: _find_gap(pair, profile),
        lambda: _find_short(pair, tokens, profile),
        lambda: _find_unmarked(pair),
        lambda: _find_tool_change(pair),
        lambda: _find_setting_change(pair),
        lambda: _find_other_form(pair),
        lambda: _find_billing_line(pair),
        lambda: _find_volatile(pair),
        lambda: _find_rewritten(pair),
        lambda: _find_image(pair),
    )
    for check in checks:
        found = check()
        if found is not None:
            return found
    if pair.place is None:
        return "unknown", "the later request continues the earlier one, and no cause was found for what was not read"
    return pair.section, f"{'the system prompt' if pair.section == 'system' else 'a message'} has changed"


def _find_move(pair: RequestPair) -> Cause | None:
    old, new = pair.earlier, pair.later
    if old.model != new.model:
        return "model", f"another model: {old.model} before, {new.model} now"
    if old.provider != new.provider:
        return "account", f"another provider: {old.provider} before, {new.provider} now"
    if old.account and new.account and old.account != new.account:
        return "account", f"another account of {new.provider}: {old.account} before, {new.account} now"
    if old.key and new.key and old.key != new.key:
        return "key", f"another client key: {old.key} before, {new.key} now"
    return None


def _find_gap(pair: RequestPair, profile: Profile) -> Cause | None:
    earlier = pair.earlier
    gap = pair.later.started_at - earlier.started_at
    life = earlier.reader.find_life_s(read_fields(earlier.body), profile)
    return ("expired", f"{gap:.0f} s after the earlier request; the cache lives {life:.0f} s") if gap > life else None


def _find_short(pair: RequestPair, tokens: int, profile: Profile) -> Cause | None:
    sent = sum(len(block.text) for block in pair.first) / BYTES_PER_TOKEN
    shortest = min(tokens, sent) if pair.place is None else tokens
    if shortest >= profile.cache_minimum:
        return None
    return "below_minimum", f"about {shortest:.0f} tokens; this model caches {profile.cache_minimum} and more"


def _find_unmarked(pair: RequestPair) -> Cause | None:
    """For upstreams that cache at marks: nothing was written, or the later request does not look there."""
    list_marks = pair.later.reader.list_marks
    if list_marks is None:
        return None
    written, marks = list_marks(pair.earlier.body), list_marks(pair.later.body)
    if not written:
        return "no_mark", "the earlier request has no mark, so that nothing was written"
    if not marks:
        return "no_mark", "the later request has no mark, so that nothing is looked for"
    entries = [index for index in written if index < pair.common]
    runs = [_run_of(block) for block in pair.second]
    windows = [(find_window(runs.__getitem__, mark), mark) for mark in marks]
    if not entries or any(first <= entry <= mark for first, mark in windows for entry in entries):
        return None
    return "lookback", "no mark is within 20 positions after what the earlier request wrote"


def _run_of(block: ComparedBlock) -> str | None:
    if block.section == "settings":
        return ""
    value = block.read()
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if kind in ("tool_use", "tool_result") else None


def _find_tool_change(pair: RequestPair) -> Cause | None:
    old, new = (dict(_list_tools(blocks)) for blocks in (pair.first, pair.second))
    if list(old.items()) == list(new.items()):
        return None
    if old == new:
        return "tools", "the same tools in another order"
    found = [
        ("added", [name for name in new if name not in old]),
        ("removed", [name for name in old if name not in new]),
        ("other schema or description", [name for name in new if name in old and new[name] != old[name]]),
    ]
    return "tools", "; ".join(f"{how}: {', '.join(names[:5])}" for how, names in found if names)


def _list_tools(blocks: Sequence[ComparedBlock]) -> Iterator[tuple[str, bytes]]:
    for block in blocks:
        if block.section != "tools":
            continue
        tool = block.read()
        declared = tool.get("functionDeclarations") if isinstance(tool, dict) else None
        for one in declared if isinstance(declared, list) else [tool]:
            yield mask_text(name_tool(one)), _encode(one)


def _find_setting_change(pair: RequestPair) -> Cause | None:
    sides = (pair.first, pair.second)
    old, new = ({block.pointer: block.text for block in side if block.section == "settings"} for side in sides)
    for pointer, text in new.items():
        if old.get(pointer, text) != text:
            was, now = (mask_text(value.decode(errors="replace"))[:80] for value in (old[pointer], text))
            return "settings", f"{pointer[1:]}: {was} before, {now} now"
    return None


_BILLING = re.compile(r"x-anthropic-[\w-]+:")


def _find_billing_line(pair: RequestPair) -> Cause | None:
    earlier, later = pair.texts
    at = count_common(earlier, later)
    lines = [_line_at(text, at) for text in (earlier, later)]
    if any(map(_BILLING.match, lines)):
        return "billing_line", "the line with which Claude Code tells its vendor who pays"
    return None


def _line_at(text: str, at: int) -> str:
    return text[text.rfind("\n", 0, at) + 1 :].partition("\n")[0]


_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_DAYS = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
_GIT_LINE = re.compile(
    r"(?: ?[MADRCU?!]{1,2} +\S+$)|\s*(?:gitStatus|On branch|Current branch|Your branch|nothing to commit|modified:"
    r"|new file:|deleted:|renamed:|Untracked files|Changes (?:not staged|to be)|[0-9a-f]{7,12} \S)"
)
_VOLATILE = (
    (
        "date_or_time",
        "a date or time",
        re.compile(
            rf"\d{{4}}-\d\d?-\d\d?(?:[T ]\d\d?:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?)?|\d\d?:\d\d(?::\d\d)?"
            rf"|\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}}|\d{{4}}/\d\d?/\d\d?|(?:{_DAYS})[a-z]*,? "
            r"|\b1[5-9]\d{8}(?:\d{3})?\b"  # seconds or milliseconds since the epoch
            rf"|(?:{_MONTHS})[a-z]* \d{{1,2}}(?:, \d{{4}})?|\d{{1,2}} (?:{_MONTHS})[a-z]*(?: \d{{4}})?"
        ),
    ),
    ("uuid", "a uuid", re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")),
    ("hex_id", "a hexadecimal id", re.compile(r"\b(?=[a-f]*[0-9])(?:0x)?[0-9a-fA-F]{7,}\b")),
    ("path", "a path", re.compile(r"(?:[A-Za-z]:\\|~?/|\.{1,2}/)[\w.@+~-]+(?:[/\\][\w.@+~-]*)*")),
)


def _find_volatile(pair: RequestPair) -> Cause | None:
    """Find what changes by itself: on both sides, it stands where they differ first."""
    earlier, later = pair.texts
    if not earlier or not later:
        return None
    at = count_common(earlier, later)
    if any(_GIT_LINE.match(_line_at(text, at)) for text in (earlier, later)):
        return "git_status", "the state of a git repository"
    for name, words, pattern in _VOLATILE:
        if _covers(pattern, earlier, at) and _covers(pattern, later, at):
            return name, f"{words} changes from request to request"
    return None


def _covers(pattern: re.Pattern[str], text: str, at: int) -> bool:
    start = max(0, at - 256)
    found = pattern.finditer(text[start : at + 256])
    return any(start + one.start() <= at < start + one.end() for one in found)


_OPAQUE = ("signature", "thoughtSignature", "thought_signature", "encrypted_content", "data", "reasoning_details")
_REMOVED = re.compile(r"masked|cleared|truncated|omitted|elided|skip_thought_signature", re.IGNORECASE)


def _find_rewritten(pair: RequestPair) -> Cause | None:
    if pair.place is None or pair.section != MESSAGES:
        return None
    if pair.place.pointer.rpartition("/")[2] in _OPAQUE:
        return "history_rewritten", "the signature of earlier reasoning has changed"
    earlier, later = pair.texts
    if _REMOVED.search(later[:WINDOW]) and not _REMOVED.search(earlier[:WINDOW]):
        return "history_rewritten", "an earlier output was masked"
    if len(pair.second) < len(pair.first):
        return "history_rewritten", "the list of messages is shorter"
    return None


_TEXT_TYPES = ("text", "input_text", "output_text")


def _find_other_form(pair: RequestPair) -> Cause | None:
    if pair.place is None or pair.common >= min(len(pair.first), len(pair.second)):
        return None
    old, new = pair.first[pair.common].read(), pair.second[pair.common].read()
    if _normalise(old) != _normalise(new):
        return None
    blame = "the client's" if pair.later.is_passed else "the gateway's: please report it"
    return "form", f"the same text in another form (string or list, or the order of keys); the fault is {blame}"


def _normalise(value: Json) -> Json:
    """Return a value that is equal for all forms of the same text; equality of objects ignores the order of keys."""
    if isinstance(value, list):
        return [_normalise(inner) for inner in value]
    if isinstance(value, str):
        return _normalise_text(value)
    if not isinstance(value, dict):
        return value
    if value.get("type") in _TEXT_TYPES and isinstance(value.get("text"), str):
        return _normalise_text(str(value["text"]))
    return {name: _unwrap(_normalise(inner)) for name, inner in value.items()}


def _normalise_text(text: str) -> Json:
    if text[:1] not in ("{", "["):
        return text
    try:
        return cast("Json", _decode(text))  # arguments of a call
    except JSON_ERRORS:
        return text


def _unwrap(value: Json) -> Json:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


_IMAGES = (b'"image"', b'"input_image"', b'"image_url"', b'"inlineData"', b'"inline_data"', b'"images"')


def _find_image(pair: RequestPair) -> Cause | None:
    old, new = (
        sum(_count_images(block) for block in side if block.section == MESSAGES) for side in (pair.first, pair.second)
    )
    if old == new:
        return None
    return "image_added", "an image was added" if new > old else "an image was removed"


def _count_images(block: ComparedBlock) -> int:
    return sum(block.text.count(name) for name in _IMAGES)
