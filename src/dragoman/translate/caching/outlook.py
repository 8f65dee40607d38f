"""Estimate what a request can read from the upstream's cache, and why it may read less, before its usage is known.

Pure: from what its session has sent, and what was built.
"""

from enum import Enum
from math import inf

from msgspec import Struct

from dragoman.translate.caching.branches import DIGEST_BYTES, count_common
from dragoman.translate.caching.placing import BYTES_PER_TOKEN
from dragoman.translate.hub.caching import BuiltPrompt, SessionMemory, WrittenPrefix

READ_SHARE = 0.9  # of what could be read: less of it is a miss


class Miss(Enum):
    """Why a request reads less than it could, or can read nothing. The first that fits is the one."""

    FIRST = "first"  # the session is new
    MODEL = "model"
    ACCOUNT = "account"
    EXPIRED = "expired"
    BELOW_MINIMUM = "below_minimum"
    NO_MARK = "no_mark"
    LOOKBACK = "lookback"
    TOOLS = "tools"  # from here on: where the prompt differs from the earlier one first
    SYSTEM = "system"
    SETTINGS = "settings"
    MESSAGES = "messages"
    UNKNOWN = "unknown"


class CacheOutlook(Struct, frozen=True):
    """What a request can read from the cache."""

    extends: bool  # it continues a branch that has not expired
    common: int  # how many of its first blocks it shares with the branch that has most in common, of those not expired
    share: float  # of its bytes in these blocks
    path: str  # JSON pointer of the first block that differs; empty: nothing to compare with, or none differs
    cause: Miss  # why little may be read, should it be so

    def explain(self, read: int, possible: float) -> Miss | None:
        """Return why fewer tokens were read than possible; None: the request did not miss."""
        return None if self.extends and read >= READ_SHARE * possible else self.cause


# Looked up once: on Python 3.11, each look-up of a member is slow.
_BELOW_MINIMUM, _NO_MARK, _UNKNOWN = Miss.BELOW_MINIMUM, Miss.NO_MARK, Miss.UNKNOWN
NEW_SESSION = CacheOutlook(False, 0, 0.0, "", Miss.FIRST)
_Match = tuple[int, bool, WrittenPrefix]  # blocks in common with a branch, whether they are all that it has
_NO_MATCH: _Match = (-1, False, WrittenPrefix(0, 0.0))


def judge_prompt(built: BuiltPrompt, memory: SessionMemory | None, at: float) -> CacheOutlook:
    """Return what the request that starts at `at` can read. `memory`: as it was asked before; None: it was not."""
    if memory is None:
        return CacheOutlook(False, 0, 0.0, "", Miss.UNKNOWN)
    if not memory.branches:
        return NEW_SESSION if memory.moved is None else CacheOutlook(False, 0, 0.0, "", Miss(memory.moved.value))
    chain, best, live = built.sent.chain, _NO_MATCH, _NO_MATCH
    for branch, written in zip(memory.branches, memory.written or _list_written(memory), strict=True):
        common = count_common(chain, branch)
        match = common, common * DIGEST_BYTES == len(branch), written
        if match[:2] > best[:2]:
            best = match
        if written.expires_at >= at and match[:2] > live[:2]:
            live = match
    common, is_extended, _ = live
    if best[0] > common or live is _NO_MATCH:
        return CacheOutlook(False, max(0, common), _measure(built, common), _locate(built, best), Miss.EXPIRED)
    path = "" if is_extended else _locate(built, live)
    return CacheOutlook(is_extended, common, _measure(built, common), path, _find_cause(built, live))


def _find_cause(built: BuiltPrompt, match: _Match) -> Miss:
    """Return why less than what is in common with a branch may be read."""
    common, is_extended, prefix = match
    could_be_cached = built.sizes[:common] if is_extended else built.sizes
    if sum(could_be_cached) < built.minimum * BYTES_PER_TOKEN:
        return _BELOW_MINIMUM
    if built.marked is not None:
        written = prefix.blocks
        if not built.marked.marks or not written:
            return _NO_MARK
        if common >= written and not built.marked.reach(written):
            return Miss.LOOKBACK
    if is_extended:
        return _UNKNOWN
    place = built.find_place(common)
    return Miss.MESSAGES if place is None else Miss(place[0])


def _locate(built: BuiltPrompt, match: _Match) -> str:
    common, is_extended, _ = match
    place = None if is_extended else built.find_place(common)
    return "" if place is None else place[1]


def _measure(built: BuiltPrompt, blocks: int) -> float:
    """Return the share of the bytes that the first blocks have."""
    sizes = built.sizes
    return 1.0 if blocks == len(sizes) else sum(sizes[: max(0, blocks)]) / (sum(sizes) or 1)


def _list_written(memory: SessionMemory) -> tuple[WrittenPrefix, ...]:
    return tuple(WrittenPrefix(len(one) // DIGEST_BYTES, inf) for one in memory.branches)
